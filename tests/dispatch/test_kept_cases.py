"""Cases kept from the engines that this one follows, under the names they have there."""

import numpy as np
import pytest

import keyfold as kf
from keyfold import DispatchKey, DispatchKeySet

BUILTIN = [
    "CPU",
    "CUDA",
    "Meta",
    "Deferred",
    "Sparse",
    "Quantized",
    "Nested",
    "Autocast",
    "Autograd",
    "Vmap",
    "Pipeline",
    "Profiler",
    "Tracer",
]


def test_dispatch_key_priority_ordering():
    keys = [DispatchKey(name) for name in BUILTIN]
    assert keys == sorted(keys)
    assert DispatchKey.CPU < DispatchKey.CUDA < DispatchKey.Meta < DispatchKey.Autograd
    assert DispatchKey.Tracer == max(keys)
    assert DispatchKey.Autograd.priority > DispatchKey.CPU.priority


def test_dispatch_key_all_contains_every_key():
    everything = list(DispatchKey)
    assert len(everything) == len(set(everything)) == len(DispatchKey)
    assert [key.name for key in everything if key.name in BUILTIN] == BUILTIN
    assert everything == sorted(everything)


def test_dispatch_key_set_empty():
    empty = DispatchKeySet()
    assert len(empty) == 0
    assert not empty
    assert empty.highest() is None
    assert list(empty) == []
    assert "CPU" not in empty


def test_dispatch_key_set_insert_and_contains():
    one = DispatchKeySet().add("CPU")
    assert DispatchKey.CPU in one
    assert "CPU" in one
    assert "CUDA" not in one
    assert one.add("CPU") == one
    assert one.add("Autograd", DispatchKey.CUDA) == DispatchKeySet("CPU", "CUDA", "Autograd")


def test_dispatch_key_set_remove():
    both = DispatchKeySet("CPU", "Autograd")
    assert both.remove("Autograd") == DispatchKeySet("CPU")
    assert both.remove("CUDA") == both
    assert not both.remove("CPU", "Autograd")
    assert len(both) == 2, "sets never change"


def test_dispatch_key_set_highest():
    assert DispatchKeySet("CPU", "Tracer", "Autograd").highest() is DispatchKey.Tracer
    assert DispatchKeySet("CPU", "CUDA").highest() is DispatchKey.CUDA


def test_dispatch_key_set_iter_desc_gives_priority_order():
    keys = DispatchKeySet("CPU", "Tracer", "Autograd", "CUDA")
    assert [str(key) for key in keys] == ["Tracer", "Autograd", "CUDA", "CPU"]


def test_dispatch_key_set_union_and_intersection():
    a, b = DispatchKeySet("CPU", "Autograd"), DispatchKeySet("CPU", "Tracer")
    assert a | b == DispatchKeySet("CPU", "Autograd", "Tracer")
    assert a & b == DispatchKeySet("CPU")
    assert a - b == DispatchKeySet("Autograd")


def test_dispatch_key_set_all_contains_every_key():
    everything = DispatchKeySet.all()
    assert all(key in everything for key in DispatchKey)
    assert len(everything) == len(DispatchKey)


def test_dispatch_key_set_from_array_literal():
    assert DispatchKeySet(*["CPU", "CUDA"]) == DispatchKeySet("CUDA", "CPU", "CPU")


def word_kernel(word, text):
    return lambda inputs: word(text)


def test_dispatcher_register_and_has_kernel(d, word):
    d.register("add", "CPU", word_kernel(word, "cpu"))
    assert d.has_kernel("add", "CPU")
    assert not d.has_kernel("add", "CUDA")
    assert not d.has_kernel("sub", "CPU")
    assert d.kernel_count() == 1
    assert "1 kernels" in repr(d)


def test_dispatcher_call_empty_keyset_errors(d, word, raises_saying):
    d.register("add", "CPU", word_kernel(word, "cpu"))
    with raises_saying(ValueError, "add", "empty keyset"):
        d.redispatch("add", DispatchKeySet(), [word("x")])


def test_dispatcher_call_no_kernel_errors(d, word, raises_saying):
    d.register("add", "CUDA", word_kernel(word, "cuda"))
    with raises_saying(NotImplementedError, "add", "no kernel registered for CPU", "CUDA"):
        d.call("add", [word("x")])


def test_dispatcher_call_picks_highest_priority_key(d, word):
    d.register("add", "CPU", word_kernel(word, "cpu"))
    d.register("add", "Autograd", word_kernel(word, "autograd"))
    assert d.call("add", [word("x", "CPU", "Autograd")]).text == "autograd"
    assert d.call("add", [word("x")]).text == "cpu"


def test_dispatcher_redispatch_chains_through_keys(d, word):
    d.register("add", "CPU", word_kernel(word, "cpu"))

    @d.impl("add", "Autograd", with_keyset=True)
    def autograd(keyset, inputs):
        below = d.redispatch("add", keyset.remove("Autograd"), inputs)
        return word(f"autograd({below.text})")

    assert d.call("add", [word("x", "CPU", "Autograd")]).text == "autograd(cpu)"


def test_dispatcher_skips_keys_without_kernel(d, word):
    d.register("add", "CPU", word_kernel(word, "cpu"))
    assert d.call("add", [word("x", "CPU", "Autograd")]).text == "cpu"


def test_dispatcher_call_direct_bypasses_priority(d, word):
    d.register("add", "CPU", word_kernel(word, "cpu"))
    d.register("add", "CUDA", word_kernel(word, "cuda"))
    both = DispatchKeySet("CPU", "CUDA")
    assert d.redispatch("add", both, [word("x")]).text == "cuda"
    assert d.call_direct("add", "CPU", [word("x")], keyset=both).text == "cpu"


def test_dispatcher_call_direct_missing_kernel_errors(d, word, raises_saying):
    d.register("add", "CPU", word_kernel(word, "cpu"))
    with raises_saying(NotImplementedError, "add", "CUDA"):
        d.call_direct("add", "CUDA", [word("x")])


def test_dispatcher_full_three_layer_stack(d, word):
    log = []
    d.define("add(Tensor[] inputs) -> Tensor")

    def layer(key, name):
        @d.impl("add", key, with_keyset=True)
        def kernel(keyset, inputs):
            log.append(name)
            return d.redispatch("add", keyset.remove(key), inputs)

    layer("Tracer", "tracer")
    layer("Autograd", "autograd")

    @d.impl("add", "CPU")
    def cpu(inputs):
        log.append("cpu")
        return inputs[0]

    x = word("x", "CPU", "Autograd", "Tracer")
    assert d.call("add", [x]) is x
    assert log == ["tracer", "autograd", "cpu"]


def test_dispatch_keyset_cpu():
    assert DispatchKeySet.from_tensors([np.ones(3), np.ones(2)]) == DispatchKeySet("CPU")
    assert DispatchKeySet.from_tensors([]) == DispatchKeySet()


def test_registry_schema_and_kernel(lib, ns):
    lib.define("double(Tensor x) -> Tensor")

    def double(x):
        return x * 2

    lib.impl("double", double, "CPU")
    op = getattr(kf.ops, ns).double
    assert op.schema == f"{ns}::double(Tensor x) -> Tensor"
    assert op.default.kernels == {"CPU": double}
    assert kf.get_kernel(f"{ns}::double", "CPU")(np.ones(2)).tolist() == [2.0, 2.0]
    assert op(np.ones(2)).tolist() == [2.0, 2.0]


def test_backend_registration_uses_keys(d, npu, npu_backend, word):
    assert str(npu) == "NPU"
    assert npu.is_backend
    assert DispatchKeySet("AutogradNPU") == DispatchKeySet("Autograd", "NPU")
    d.define("f(Tensor x) -> Tensor")
    d.impl("f", "NPU", lambda x: word("on npu", "NPU"))
    assert d.call("f", word("x", "NPU")).text == "on npu"
    assert set(d.get_op("f").table()) == {"NPU"}
    # A backend with devices: kernels at its key in the process's dispatcher, and tensors there.
    x = kf.ones((2,), device="npu")
    assert x.device.type == "npu"
    assert DispatchKeySet.from_tensors([x]) == DispatchKeySet("NPU")
    add = kf.ops.aten.add.default
    assert all(add.has_kernel(key) for key in ("CPU", "Meta", "NPU"))
    npu_backend.remove()
    assert add.has_kernel("CPU")
    assert not add.has_kernel("NPU")


def test_dispatch_prefers_meta_when_input_meta(npu_backend):
    assert all(kf.ops.aten.add.default.has_kernel(key) for key in ("CPU", "Meta", "NPU"))
    like_npu = kf.explain("aten::add", *[kf.ones((2,), device="meta")] * 2)
    assert like_npu.key is DispatchKey.Meta
    meta = kf.ops.aten.empty([2, 3], device="meta")
    assert "Meta" in DispatchKeySet.from_tensors([meta])
    assert kf.explain("aten::add", meta, meta).key is DispatchKey.Meta
    result = kf.ops.aten.add(meta, meta)
    assert DispatchKeySet.from_tensors([result]) == DispatchKeySet("Meta")


def test_dispatch_prefers_npu_over_cpu(d, npu_backend, word):
    d.define("f(Tensor x) -> Tensor")
    d.impl("f", "CPU", lambda x: word("cpu"))
    d.impl("f", "NPU", lambda x: word("npu", "NPU"))
    assert d.call("f", word("x", "CPU", "NPU")).text == "npu"
    assert d.call("f", word("x", "CPU")).text == "cpu"
    # A 0-dim tensor of the CPU stands beside tensors of the device, and the device computes.
    x, two = kf.ones((2,), device="npu"), kf.asarray(2.0)
    assert DispatchKeySet.from_tensors([x, two]) == DispatchKeySet("NPU", "CPU")
    assert kf.explain("aten::add", x, two).key is DispatchKey.NPU
    result = kf.ops.aten.add(x, two)
    assert result.device.type == "npu"
    assert result.tolist() == [3.0, 3.0]
    assert kf.ops.aten.add(two, two).device.type == "cpu"


def test_keyset_includes_autograd_when_needed(npu_backend):
    there = kf.ones((2,), device="npu").requires_grad_()
    assert there.device.type == "npu"
    with_grad = DispatchKeySet.from_tensors([there], grad_enabled=True)
    assert with_grad == DispatchKeySet("Autograd", "NPU") == DispatchKeySet("AutogradNPU")
    assert DispatchKeySet.from_tensors([there], grad_enabled=False) == DispatchKeySet("NPU")
    x = kf.asarray([1.0, 2.0]).requires_grad_()
    assert x.requires_grad
    with_grad = DispatchKeySet.from_tensors([x], grad_enabled=True)
    assert with_grad == DispatchKeySet("Autograd", "CPU")
    assert DispatchKeySet.from_tensors([x], grad_enabled=False) == DispatchKeySet("CPU")
    plain = kf.asarray([1.0])
    assert DispatchKeySet.from_tensors([plain], grad_enabled=True) == DispatchKeySet("CPU")


@pytest.mark.parametrize("enabled", [True, False])
def test_keyset_includes_pipeline_when_enabled(enabled):
    keys = DispatchKeySet.from_tensors([np.ones(2)], pipeline_enabled=enabled)
    assert ("Pipeline" in keys) is enabled
    assert "CPU" in keys
