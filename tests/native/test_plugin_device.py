"""Devices of plugins: examples/plugin-device, which works late, and one in C, as users use them."""

from __future__ import annotations

import gc
import pickle
import threading

import numpy as np
import pytest

import keyfold as kf
from keyfold._cli import _doctor, _json
from tests.helpers.compiler import compile_c
from tests.helpers.guide import Guide, steps
from tests.helpers.pages import blocks, run, same
from tests.helpers.paths import ROOT
from tests.helpers.plugins import mapped

NAME = "keyfold-example-device 0.1.0"

# What a foreign function sees of a tensor.
PROBE = """
#include "keyfold_plugin.h"
KEYFOLD_EXPORT int probe(void *handle, const TVMFFIAny *args, int32_t n, TVMFFIAny *result) {
    const DLTensor *t = (const DLTensor *)args[0].v_ptr;
    if (n != 1 || t->device.device_type != kDLExtDev || t->data == NULL) return 1;
    result->type_index = kTVMFFIInt;
    result->v_int64 = t->device.device_id % 256 * 1000 + (int64_t)t->byte_offset;
    return handle != NULL;
}
"""


@pytest.fixture
def late(example_device):
    """The example's plugin, closed after the test."""
    with kf.load_plugin(example_device) as plugin:
        yield plugin


def there(values, dtype="float32", device="late:1"):
    return kf.asarray(values, dtype=dtype, device=device)


def row():
    (found,) = [backend for backend in kf.backends() if backend.device_type == "late"]
    return found


# What there is


def test_the_device_is_listed_with_its_plugin(late):
    devices = (kf.Device("late:0"), kf.Device("late:1"))
    groups = ("pointwise", "reduce", "rows", "scan", "linalg", "index", "random")
    groups += ("optim", "dropout")
    number = row().dlpack_number
    assert row() == kf.Backend(NAME, "late", devices, 1, groups, number)
    assert (late.device_types, late.abi_version) == (["late"], (1, 2))
    assert repr(late) == f"<Plugin({NAME}: 1 operators, 2 kernels, device late)>"
    x = there([1.0, 2.0])
    rows = list(_doctor._backends())
    assert ("late", f"{NAME}: offers {', '.join(row().groups)}") in rows
    assert ("", f"late:1: {x.nbytes} bytes in use, 0 kept, 1 stream") in rows
    assert NAME in [backend["name"] for backend in _json.backends()]
    stats = kf.memory_stats("late:1")
    assert (stats["live"], stats["allocations"]) == (8, 1)


def test_a_device_may_be_named_wherever_a_device_is_taken(late):
    x = there([[1.0, 2.0], [3.0, 4.0]])
    assert (x.device, x.tolist()) == ("late:1", [[1.0, 2.0], [3.0, 4.0]])
    assert kf.zeros((2, 3), device="late").tolist() == [[0.0] * 3] * 2
    assert kf.full((2,), 7, device="LATE:1").tolist() == [7, 7]
    assert kf.ones(3, device="late").to("late:1").device == "late:1"
    assert x.T.to("late:0").cpu().tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert pickle.loads(pickle.dumps(x)).device == "late:1"
    x[:, 1] = 9.0
    assert x.tolist() == [[1.0, 9.0], [3.0, 9.0]]
    assert "device='late:1'" in repr(x)


# What it computes


@pytest.mark.parametrize(
    "f",
    [
        lambda x, i: x + i,
        lambda x, i: kf.tanh(x) * kf.erf(x) - kf.log1p(kf.exp(x)),
        lambda x, i: kf.where(x > 0, x, i) / 2,
        lambda x, i: i // 3 + (i << 2) % 5 - (i ^ 1),
        lambda x, i: kf.softmax(x, 0) + kf.log_softmax(x, -1),
        lambda x, i: kf.cumulative_sum(i.T, axis=0) - kf.cumulative_prod(i % 5, axis=-1),
        lambda x, i: x.T @ x + (x[:, None] @ x.T[None]).sum((0, 1)).mean(),
        lambda x, i: kf.stack([x.sum(0), x.mean(0), x.max(0), x.min(0)]),
        lambda x, i: i.argmax(1) + i.argmin(1),
        lambda x, i: kf.all(x != 0) & kf.any(i > 100),
        lambda x, i: i.to("uint8").to("float64") + x.to("int16"),
        lambda x, i: x[i % 4, [0, -1, 2, 1]] + x[x > 0].sum() + kf.ops.aten.gather(x, 0, i % 4),
        lambda x, i: (x.to("complex64") * 1j @ i).sum(0)[[2, 0]].imag,
        lambda x, i: kf.exp(x.to("float16") / 4).to("bfloat16") @ x.to("bfloat16"),
    ],
)
def test_results_are_those_of_the_cpu(late, f):
    values = np.random.default_rng(5).normal(size=(4, 4)) * 3
    args = [(values, "float32"), (values * 50, "int64")]
    expected = f(*(kf.asarray(v).to(dtype) for v, dtype in args))
    result = f(*(kf.asarray(v).to(dtype).to("late") for v, dtype in args))
    assert (result.device, result.dtype) == ("late:0", expected.dtype)
    tolerance = 1e-2 if expected.dtype == "bfloat16" else 2e-5
    np.testing.assert_allclose(result.tolist(), expected.tolist(), rtol=tolerance, atol=1e-6)


def test_layers_work_over_it(late):
    x = there([[0.5, 1.0], [2.0, -1.0]])

    def f(x):
        return (x.tanh() @ x).sum()

    def close(a, b):
        np.testing.assert_allclose(a.cpu().numpy(), b.numpy(), rtol=1e-5)

    close(kf.grad(f)(x), kf.grad(f)(x.cpu()))
    assert kf.grad(f)(x).device == "late:1"
    close(kf.vmap(lambda row: (row * row).sum())(x), (x.cpu() ** 2).sum(1))
    graph = kf.trace(lambda x: x.sigmoid() + 1, x)
    close(graph(x), x.cpu().sigmoid() + 1)
    with kf.profile() as profile:
        _ = x @ x
    (event,) = profile.events
    assert (event["name"], event["device_time"] is None) == ("aten::matmul", False)
    assert kf.infer_meta(kf.ops.aten.matmul, x, x).shape == (2, 2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_random_numbers_are_those_of_the_cpu(late, dtype):
    def made(f, device):
        kf.manual_seed(7)
        return f(5, 3, dtype=dtype, device=device).cpu().tolist()

    assert made(kf.rand, "late:1") == made(kf.rand, "cpu")
    np.testing.assert_allclose(made(kf.randn, "late"), made(kf.randn, "cpu"), rtol=1e-2, atol=1e-6)


def test_its_own_operator_gets_the_devices_handles(late, raises_saying):
    x = there([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    square = kf.ops.late_demo.square
    for view in (x, x.T, x[1:, ::2], x[:0]):
        assert square(view).device == "late:1"
        assert square(view).tolist() == (view.cpu() ** 2).tolist()
    with raises_saying(kf.DTypeError, "late_demo::square", "float64"):
        square(there([1.0], "float64"))
    with raises_saying(kf.MissingKernel, "late_demo::square", "CPU"):
        square(x.cpu())


def test_calls_from_many_threads(late):
    x, failures = there(np.linspace(-1, 1, 60).reshape(6, 10)), []
    expected = (x.cpu().numpy() @ x.cpu().numpy().T).sum()

    def work():
        for _ in range(20):
            if not np.allclose((x @ x.T).sum().item(), expected, atol=1e-4):
                failures.append(threading.get_ident())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# Errors: missing devices, memory and operations


def test_what_it_hasnt_is_an_error_that_names_the_plugin(late, raises_saying):
    with raises_saying(kf.DeviceError, "late has 2 devices: late:0, late:1"):
        kf.ones(2, device="late:2")
    with raises_saying(MemoryError, "there are no", NAME, "allocate of"):
        kf.empty((1 << 50,), device="late")


def test_a_late_error_names_the_operator_that_failed(late, raises_saying):
    base, power = there([2], "int64"), there([-1], "int64")
    kf.synchronize("late:1")
    result = base**power
    parts = ["aten::pow: a whole number", "device late of the plugin", NAME, "download"]
    with raises_saying(ValueError, *parts):
        result.tolist()
    assert there([3.0]).tolist() == [3.0]


# The conformance kit

# The fewest cases of each group.
FEWEST = {
    "factories": 100,
    "pointwise": 1500,
    "linalg": 25,
    "reduce": 250,
    "scan": 30,
    "shape": 250,
    "index": 150,
    "in_place": 50,
    "random": 8,
    "optim": 8,
    "device": 25,
    "cache": 250,
    "memory": 150,
    "streams": 50,
    "errors": 20,
}


# The groups that the example leaves out.
LEFT_OUT = ("norm", "linear", "convolution", "pool", "attention", "recurrent", "decomposition")


@pytest.mark.one_python
def test_it_conforms_and_lacks_the_groups_alone_that_it_leaves_out(late):
    report = kf.conformance("late", processes=False)
    assert report.conforms, report
    assert {finding["verdict"] for finding in report.findings} == {"lacking"}, report
    reasons = {finding["message"] for finding in report.findings}
    assert reasons <= {f"it doesn't have the operations of group {name}" for name in LEFT_OUT}
    cases = {group["name"]: group["cases"] for group in report.groups}
    assert all(cases[name] >= fewest for name, fewest in FEWEST.items()), cases


# Foreign functions, other libraries


def test_kernels_in_c_get_it_as_an_extension_device(late, d, tmp_path):
    (tmp_path / "probe.c").write_text(PROBE)
    library = compile_c(tmp_path / "probe.c", tmp_path / "libprobe.so")
    d.define("demo::probe(Tensor x) -> int")
    d.impl("demo::probe", "LATE", kf.NativeKernel.from_library(library, "probe"))
    x = there([1.0, 2.0, 3.0])
    assert d.call("demo::probe", x) == 1000
    assert d.call("demo::probe", x[1:]) == 1004
    assert d.call("demo::probe", x.to("late:0")[2:]) == 8


def test_functions_of_tvm_ffi_get_it_too(late, d):
    tvm_ffi = pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi isn't installed")
    seen = []

    def look(x):
        seen.append((x.__dlpack_device__(), x.shape))
        return len(seen)

    d.define("demo::look(Tensor x) -> int")
    function = (
        tvm_ffi.convert_func(look) if hasattr(tvm_ffi, "convert_func") else tvm_ffi.convert(look)
    )
    d.impl("demo::look", "LATE", kf.NativeKernel(function))
    assert d.call("demo::look", there([1.0, 2.0])) == 1
    assert seen == [((12, 256 * row().dlpack_number + 1), (2,))]


def test_dlpack_shares_its_memory(late):
    x = there([1.0, 2.0, 3.0])
    assert x.__dlpack_device__() == (12, 256 * row().dlpack_number + 1)
    y = kf.from_dlpack(x[1:])
    y[0] = 7.0
    assert x.tolist() == [1.0, 7.0, 3.0]
    assert x.data_ptr() == 0


# Loading and closing


def test_closing_removes_the_device_and_keeps_its_tensors(example_device, raises_saying):
    plugin = kf.load_plugin(example_device)
    x = there([1.0, 2.0])
    plugin.close()
    assert plugin.closed
    assert "late" not in [backend.device_type for backend in kf.backends()]
    with raises_saying(kf.DeviceError, "the backend of late was removed"):
        there([1.0])
    with raises_saying(kf.MissingKernel, "aten::add", "late was removed"):
        _ = x + x
    assert x.cpu().tolist() == x.tolist() == [1.0, 2.0]
    with kf.load_plugin(example_device):
        with raises_saying(kf.DeviceError, "a backend of late:1 that was removed", ".cpu()"):
            _ = x + x
        assert (x.cpu().to("late") * 2).tolist() == [2.0, 4.0]


def test_a_second_plugin_with_the_device_is_refused(late, d, example_device, raises_saying):
    parts = [str(example_device), "late has backend 'keyfold-example-device 0.1.0' already"]
    with raises_saying(kf.RegistrationError, *parts):
        kf.load_plugin(example_device, dispatcher=d)
    assert d.operator_names() == []
    assert there([2.0]).tolist() == [2.0]


def test_loading_and_closing_many_times(d, example_device):
    for at in range(8):
        with kf.load_plugin(example_device, dispatcher=d):
            assert there([at]).tolist() == [at]
    assert "late" not in [backend.device_type for backend in kf.backends()]


def device_in_c(folder, case):
    """A device in C with one thing wrong, of a name that other tests have too: names are few."""
    source = ROOT / "crates" / "ffi" / "tests" / "device.c"
    flags = [f"-DCASE={case}", '-DNAME="other"', '-DKEY="OTHER"']
    return compile_c(source, folder / "libdevice.so", *flags)


def test_a_device_in_c(d, tmp_path, raises_saying):
    path = device_in_c(tmp_path, 1)
    with kf.load_plugin(path, dispatcher=d) as plugin:
        assert (plugin.name, plugin.version) == ("board-in-c", "2.1")
        assert plugin.device_types == ["other"]
        x = kf.asarray([[1.0, 2.0], [3.0, 4.0]], dtype="float32", device="other:1")
        assert (x * x.T + x).tolist() == [[2.0, 8.0], [9.0, 20.0]]
        assert (x.sum().item(), x.sum(1).tolist()) == (10.0, [3.0, 7.0])
        assert d.call("board::block", x[1:]) == 16008
        reason = "the board adds and multiplies float32"
        with raises_saying(kf.NotSupported, "exp", "'board-in-c 2.1'", reason):
            kf.exp(x)
    # The library stays loaded as long as a tensor's memory is its.
    assert x.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert mapped(path)
    del x
    gc.collect()
    assert not mapped(path)


def test_the_device_in_c_that_the_page_shows(tmp_path):
    page = (ROOT / "docs/plugins.md").read_text(encoding="utf-8")
    section = page.partition("### In C\n")[2].partition("\n## ")[0]
    reader = Guide(tmp_path)
    followed = [same(step.shown or "", reader.take(step)) for step in steps(section)]
    assert followed == [True] * 4


@pytest.mark.parametrize(
    ("case", "says"),
    [
        (12, "the slots release, fill are null; every device needs them"),
        (22, "it needs features that this keyfold doesn't have"),
        (24, "it was built for version 1.5 of the plugin ABI, and this keyfold has 1.2"),
    ],
)
def test_a_device_with_a_mistake_is_refused(d, tmp_path, raises_saying, case, says):
    path = device_in_c(tmp_path, case)
    with raises_saying(kf.LibraryLoadError, str(path), says):
        kf.load_plugin(path, dispatcher=d)
    assert "other" not in [backend.device_type for backend in kf.backends()]


@pytest.mark.parametrize("page", ["docs/plugins.md", "examples/plugin-device/README.md"])
def test_the_blocks_of_a_page_print_what_it_shows(page, example_device, plugin_target, monkeypatch):
    assert example_device.parts[-3:-1] == ("target", "release")
    monkeypatch.chdir(plugin_target.parent)
    names = {}
    try:
        for block in blocks(page):
            run(block, page, names)
    finally:
        names["plugin"].close()
