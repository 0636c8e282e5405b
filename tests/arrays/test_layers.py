"""Gradients, batches, traces, fake kernels of other libraries' arrays; bits that DLPack hides."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import keyfold as kf
from tests.helpers.array_libraries import MAKERS, to_numpy

aten = kf.ops.aten


def test_gradients_are_in_kind(library):
    x = library.array([1.0, 2.0, 3.0])
    f = kf.grad(lambda x: kf.sum(x * x))
    assert isinstance(f(x), library.kind)
    assert to_numpy(f(x)).tolist() == [2.0, 4.0, 6.0]
    value, gradient = kf.value_and_grad(lambda x: kf.sum(x * x))(x)
    assert isinstance(value, library.kind)
    assert isinstance(gradient, library.kind)
    unused = kf.grad(lambda x, y: kf.sum(kf.asarray(x)), argnums=1)(x, x)
    assert isinstance(unused, library.kind)
    assert to_numpy(unused).tolist() == [0.0, 0.0, 0.0]
    tree = kf.grad(lambda t: kf.sum(t["a"] * t["b"][0]))({"a": x, "b": [x]})
    assert isinstance(tree["b"][0], library.kind)


def test_what_grad_passes_through_is_in_kind(library):
    x = library.array([1.0, 2.0])
    gradient, aux = kf.grad(lambda x: (kf.sum(x * x), {"y": [x * 2.0], "n": 3}), has_aux=True)(x)
    assert isinstance(gradient, library.kind)
    assert isinstance(aux["y"][0], library.kind)
    assert to_numpy(aux["y"][0]).tolist() == [2.0, 4.0]
    assert aux["n"] == 3
    result = kf.value_and_grad(lambda x: (kf.sum(x * x), x + 1.0), has_aux=True)(x)
    assert isinstance(result[0][1], library.kind)


def test_checkpoints_take_them(library):
    x = library.array([1.0, 2.0])
    f = kf.grad(lambda x: kf.sum(kf.checkpoint(lambda y: y * y, x)))
    assert isinstance(f(x), library.kind)
    assert to_numpy(f(x)).tolist() == [2.0, 4.0]


def test_batches_are_in_kind(library):
    x = library.array([[1.0, 2.0], [3.0, 4.0]])
    result = kf.vmap(lambda x: kf.sum(x * x))(x)
    assert isinstance(result, library.kind)
    assert to_numpy(result).tolist() == [5.0, 25.0]
    both = kf.vmap(kf.grad(lambda x: kf.sum(x * x)))(x)
    assert isinstance(both, library.kind)
    assert to_numpy(both).tolist() == [[2.0, 4.0], [6.0, 8.0]]


def test_batches_of_several_libraries_are_keyfolds(library):
    if library.name in ("numpy", "keyfold"):
        library = MAKERS["own"]()
    x = library.array([1.0, 2.0])
    result = kf.vmap(lambda x, y: x + y)(x, np.array([3.0, 4.0]))
    assert isinstance(result, kf.Tensor)
    assert result.tolist() == [4.0, 6.0]


def test_traces_have_them_as_inputs(library):
    x = library.array([1.0, 2.0])
    graph = kf.trace(lambda x: kf.exp(kf.add(x, x)), x)
    assert [node.operator for node in graph.nodes] == ["aten::add", "aten::exp"]
    result = graph(library.array([0.0, 0.0]))
    assert isinstance(result, library.kind)
    assert to_numpy(result).tolist() == [1.0, 1.0]


def test_a_fake_kernel_may_return_its_argument(library, lib, ns, c_library):
    lib.define("scale(Tensor x, float k) -> Tensor")
    kernel = kf.NativeKernel.from_library(c_library, "keyfold_example_scale")
    lib.impl("scale", kernel, "CPU")
    kf.register_fake(f"{ns}::scale", lambda x, k: x)
    x = library.array([1.0, 2.0])
    result = getattr(kf.ops, ns).scale(x, 3.0)
    assert isinstance(result, library.kind)
    assert to_numpy(result).tolist() == [3.0, 6.0]


def test_a_tensor_over_an_array_says_what_the_array_says():
    jax = MAKERS["jax"]().module
    x = jax.numpy.ones(2)
    for made in [kf.asarray, kf.from_dlpack]:
        tensor = made(x)
        assert tensor.readonly
        with pytest.raises(kf.ReadOnlyError):
            aten.fill_(tensor, 7.0)
    assert x.tolist() == [1.0, 1.0]
    x = jax.numpy.ones(2, dtype=jax.numpy.bfloat16)
    assert kf.from_dlpack(x).readonly


def test_a_negated_torch_tensor_has_its_own_values_everywhere():
    torch = MAKERS["torch"]().module
    x = torch._neg_view(torch.tensor([1.0, 2.0]))
    for made in [kf.asarray, kf.from_dlpack, lambda x: kf.astype(x, kf.float64)]:
        assert np.asarray(made(x)).tolist() == [-1.0, -2.0]
    assert kf.grad(lambda x: kf.sum(x * x))(x).tolist() == [-2.0, -4.0]
    assert kf.vmap(lambda x: x * 1.0)(x).tolist() == [-1.0, -2.0]
    conjugated = torch.tensor([1 + 2j]).conj()
    assert np.asarray(kf.asarray(conjugated)).tolist() == [1 - 2j]
    with pytest.raises(kf.GradientError, match=r"from_dlpack\(\).*detach"):
        kf.from_dlpack(torch.ones(2, requires_grad=True))


def test_an_array_in_a_list_is_refused_by_the_arguments_name():
    torch = MAKERS["torch"]().module
    with pytest.raises(kf.GradientError, match=r"aten::stack\(\) argument '\w+': .*detach"):
        aten.stack([torch.ones(2), torch.ones(2, requires_grad=True)])


def test_a_registered_torch_class_keeps_what_torch_says():
    torch = MAKERS["torch"]().module

    class Marked(torch.Tensor):
        pass

    kf.register_array_type(Marked, "CPU")
    x = torch._neg_view(torch.tensor([1.0, 2.0])).as_subclass(Marked)
    result = aten.neg(x)
    assert isinstance(result, torch.Tensor)
    assert result.tolist() == [1.0, 2.0]
    with pytest.raises(kf.GradientError):
        aten.neg(torch.ones(2, requires_grad=True).as_subclass(Marked))


def test_torch_learns_of_writes_in_place():
    torch = MAKERS["torch"]().module
    w, t = torch.ones(2, requires_grad=True), torch.full((2,), 3.0)
    product = (w * t).sum()
    before = t._version
    aten.fill_(t, 7.0)
    assert t._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    with torch.inference_mode():
        inference = torch.ones(2)
    aten.fill_(inference, 2.0)
    assert inference.tolist() == [2.0, 2.0]


def test_no_code_of_a_subclass_runs_while_arrays_are_viewed():
    torch = MAKERS["torch"]().module
    asked = []

    class Nosy(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            asked.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    x = torch.ones(3).as_subclass(Nosy)
    y = torch._neg_view(torch.ones(3)).as_subclass(Nosy)
    asked.clear()
    assert torch.equal(aten.add(x, y).as_subclass(torch.Tensor), torch.zeros(3))
    assert not asked


def test_a_tensor_of_tvm_ffi_that_was_moved_from_is_refused():
    tvm_ffi = MAKERS["tvm_ffi"]().module
    x = tvm_ffi.from_dlpack(np.ones(2))
    assert np.from_dlpack(aten.neg(x)).tolist() == [-1.0, -1.0]
    y = type(x).__new__(type(x))
    y.__move_handle_from__(x)
    with pytest.raises(kf.ExchangeError, match="moved from"):
        aten.neg(x)


@pytest.mark.parametrize("module", ["torch", "torch.foo", "tvm_ffi", "tvm_ffi.core", "jaxlib.x"])
@pytest.mark.parametrize("base", [object, float])
def test_a_name_alone_makes_no_array(module, base, raises_saying):
    name = "ArrayImpl" if module.startswith("jax") else "Tensor"
    impostor = type(name, (base,), {"__module__": module})
    for _ in range(3):
        with pytest.raises((TypeError, AttributeError, BufferError)):
            aten.neg(impostor())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("make", [kf.asarray, kf.from_dlpack, lambda x: aten.reshape(x, [3, 2])])
def test_memory_outlives_what_torch_does_to_its_tensor(make, dtype):
    torch = MAKERS["torch"]().module
    x = torch.arange(6).to(getattr(torch, dtype)).reshape(2, 3)
    held = make(x)
    x.set_(torch.zeros(1, dtype=x.dtype))
    junk = [torch.full((6,), 9.0) for _ in range(64)]
    assert [float(value) for value in kf.astype(held, kf.float64).reshape([6])] == list(range(6))
    assert len(junk) == 64
    x = torch.arange(6).to(getattr(torch, dtype)).reshape(2, 3)
    held = make(x)
    with pytest.raises(RuntimeError, match="not resizable"):
        x.resize_(100_000)
    assert kf.astype(held, kf.float64).shape in [(2, 3), (3, 2)]


def test_a_storage_that_was_made_smaller_is_refused():
    torch = MAKERS["torch"]().module
    for size in [0, 8]:
        x = torch.arange(6.0)[2:]
        x.untyped_storage().resize_(size)
        with pytest.raises(kf.ExchangeError, match=r"resized|null"):
            aten.neg(x)


def test_read_only_results_become_copies():
    torch = MAKERS["torch"]().module
    array = np.ones(2)
    array.flags.writeable = False
    with kf.Library("readonly_results") as lib:
        lib.define("f(Tensor x) -> Tensor")
        lib.impl("f", lambda x: array, "CPU")
    result = kf.ops.readonly_results.f(torch.zeros(2))
    result.add_(1.0)
    assert array.tolist() == [1.0, 1.0]
    lib.close()


def test_an_array_that_runs_code_is_viewed_before_others(lib, ns, c_library):
    torch = MAKERS["torch"]().module
    x = torch.full((4,), 2.0)

    class Nasty:
        def __init__(self):
            self.data = np.ones(4, np.float32)

        def __dlpack__(self, **options):
            x.set_(torch.zeros(4))
            return self.data.__dlpack__(**options)

        def __dlpack_device__(self):
            return (1, 0)

    lib.define("two(Tensor x, Tensor y) -> float", mixed_arrays=True)
    kernel = kf.NativeKernel.from_library(c_library, "keyfold_example_fail")
    lib.impl("two", kernel, "CPU")
    with pytest.raises(kf.KernelFailed):
        getattr(kf.ops, ns).two(x, Nasty())


def test_numpy_scalars_are_numbers_beside_other_arrays(library):
    x = library.array([1.0, 2.0])
    result = aten.add(x, np.float64(2))
    assert isinstance(result, library.kind)
    assert to_numpy(result).tolist() == [3.0, 4.0]


def test_dtypes_and_devices_may_be_torchs():
    torch = MAKERS["torch"]().module
    x = torch.ones(2)
    assert aten.to(x, torch.float64).dtype == torch.float64
    assert kf.zeros(2, dtype=torch.int64, device=torch.device("cpu")).dtype == kf.int64


def test_tangents_are_refused():
    torch = MAKERS["torch"]().module
    with warnings.catch_warnings():
        # torch warns of its own deprecated things when this is first used.
        warnings.simplefilter("ignore")
        import torch.autograd.forward_ad as forward

        with forward.dual_level():
            forward.make_dual(torch.ones(1), torch.ones(1))
    with forward.dual_level():
        dual = forward.make_dual(torch.ones(2), torch.ones(2))
        with pytest.raises(kf.GradientError, match="tangent"):
            aten.neg(dual)
        assert aten.neg(torch.ones(2)).tolist() == [-1.0, -1.0]


def test_fake_tensors_are_refused_with_the_reason():
    MAKERS["torch"]()
    from torch import ones
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = ones(3)
    with pytest.raises(kf.ExchangeError, match=r"no strided memory.*need a Python kernel"):
        aten.neg(fake)


def test_opcheck_says_which_examples_it_takes():
    torch = MAKERS["torch"]().module
    with pytest.raises(kf.BindingError, match=r"opcheck\(aten::neg\).*torch.Tensor"):
        kf.opcheck("aten::neg", (torch.ones(2),))


def test_a_custom_op_is_an_operator():
    @kf.custom_op("array_layers::twice", mutates_args=())
    def twice(x: np.ndarray) -> np.ndarray:
        return x * 2

    with twice:
        assert "array_layers::twice" in str(kf.explain(twice, np.ones(2)))
        assert kf.opcheck(twice, (np.ones(2),), tests="schema") == {"schema": "passed"}
