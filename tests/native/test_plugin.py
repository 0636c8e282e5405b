"""Plugins: Rust crates built here with cargo and loaded; some in C with one thing wrong."""

from __future__ import annotations

import re
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import keyfold as kf
from tests.helpers.compiler import compile_c
from tests.helpers.paths import ROOT
from tests.helpers.plugins import build, mapped

PANICS = """
#![deny(unsafe_code)]
keyfold_plugin::plugin!(register);
fn register(host: &mut keyfold_plugin::Registrar<'_>) -> keyfold_plugin::Result<()> {
    host.define("plugin_panics::f(Tensor x) -> int")?;
    host.kernel("plugin_panics::f", "CPU", |_: &keyfold_plugin::Args<'_>,
                                            _: &keyfold_plugin::Host<'_>| Ok(1_i64))?;
    let nothing: Option<i32> = None;
    nothing.expect("no table of units");
    Ok(())
}
"""


@pytest.fixture
def ops(example):
    """The example's operators in the process's dispatcher."""
    with kf.load_plugin(example):
        yield kf.ops.plugin_demo


@pytest.fixture
def arithmetic(d):
    """An isolated dispatcher with operators that the example calls, in Python."""
    for name, function in [("mul", np.multiply), ("add", np.add)]:
        d.define(f"aten::{name}(Tensor a, Tensor b) -> Tensor")
        d.impl(f"aten::{name}", "CPU", function)
    return d


def in_c(folder, case):
    """A plugin in C with one thing wrong."""
    source = ROOT / "crates" / "ffi" / "tests" / "plugin.c"
    return compile_c(source, folder / "libin_c.so", f"-DCASE={case}")


def softplus(x, beta=1.0):
    return np.log1p(np.exp(beta * x)) / beta


# Calls


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x.T,
        lambda x: x[::-1, ::2],
        lambda x: x[:, 1],
        lambda x: x[:0],
        lambda x: x[1, 2, ...],
        lambda x: np.broadcast_to(x[0], (3, *x[0].shape)),
    ],
    ids=["contiguous", "transposed", "negative", "column", "empty", "0-dim", "broadcast"],
)
def test_elementwise_over_any_strides(ops, dtype, view):
    x = view(np.linspace(-3, 3, 12, dtype=dtype).reshape(3, 4))
    result = ops.softplus(x, beta=2.0)
    assert type(result) is np.ndarray
    assert result.dtype == x.dtype
    assert result.shape == x.shape
    np.testing.assert_allclose(result, softplus(x, 2.0), rtol=1e-6)


def test_keyfold_tensors_in_and_out(ops):
    x = kf.asarray([[0.0, 1.0], [2.0, 3.0]])
    result = ops.softplus(x.T)
    assert type(result) is kf.Tensor
    np.testing.assert_allclose(np.asarray(result), softplus(np.asarray(x).T))
    low, high = ops.minmax(x)
    assert (low.item(), high.item()) == (0.0, 3.0)


def test_in_place_is_the_callers_array(ops):
    x = np.arange(6.0).reshape(2, 3)
    view = x.T
    assert ops.scale_(view, 10.0) is view
    assert np.array_equal(x, np.arange(6.0).reshape(2, 3) * 10)
    x.setflags(write=False)
    with pytest.raises(kf.ReadOnlyError):
        ops.scale_(x, 2.0)


def test_a_tensor_whose_elements_are_one_isnt_written(ops, raises_saying):
    windows = as_strided(np.ones(4), (3, 2), (8, 8))
    with raises_saying(kf.InvalidValue, "scale_", "'x'", "same element", "copy"):
        ops.scale_(windows, 2.0)
    assert windows.tolist() == [[1.0, 1.0]] * 3


def test_numbers_come_back(ops):
    assert ops.count_positive(np.array([-1.0, 0.0, 2.0, 3.0])) == 2
    assert ops.root(np.array([3.0, 6.0]), 2) == 3.0


def test_shapes_without_data(ops):
    x = kf.empty((2, 5), dtype=kf.float32, device="meta")
    result = ops.softplus(x)
    assert (result.shape, result.dtype, result.device.type) == ((2, 5), kf.float32, "meta")


def test_a_layer_redispatches_with_the_callers_own_objects(ops):
    seen = []
    handle = kf.impl(
        "plugin_demo::softplus",
        "CPU",
        lambda x, beta: seen.append(x) or x,
        override="shadow",
    )
    before = ops.layer_calls()
    x = np.ones(3)
    with kf.include_keys("Pipeline"):
        assert ops.softplus(x) is x
        handle.remove()
        np.testing.assert_allclose(ops.softplus(x), softplus(x))
    ops.softplus(x)
    assert seen[0] is x
    assert ops.layer_calls() == before + 2


def test_explanations_name_function_and_library(ops, example):
    text = str(kf.explain(ops.softplus, np.ones(2)))
    assert "softplus (Rust," in text
    assert f"/{example.name})" in text
    assert "closure in register_layer" in str(ops.softplus.default.table())


def test_calls_from_many_threads(ops):
    x = np.linspace(-1, 1, 1000)
    expected, failures = softplus(x), []

    def work():
        for _ in range(200):
            if not np.allclose(ops.softplus(x), expected):
                failures.append(threading.get_ident())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_the_examples_readme_is_true(example, capsys):
    text = (ROOT / "examples" / "plugin" / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    library = "target/release/libkeyfold_example_plugin.so"
    assert library in code
    exec(code.replace(library, str(example)), {})
    printed = capsys.readouterr().out
    promised = re.findall(r"^print\(.*\)  # (.*)$", code, flags=re.MULTILINE)
    said = [promise.split(":")[0] for promise in promised if not promise.startswith("names")]
    said[0] = said[0].split(":")[0]
    assert len(said) == 4
    for promise in said:
        assert promise in printed.splitlines() or promise in printed


# No second registry: calls go through the dispatcher of the call


def test_kernels_registered_later_are_seen(d, example):
    with kf.load_plugin(example, dispatcher=d):
        a, x, y = np.full(2, 3.0), np.ones(2), np.ones(2)
        with pytest.raises(kf.UnknownOperator, match="aten::mul"):
            d.call("plugin_demo::axpy", a, x, y)
        seen = []
        d.define("aten::mul(Tensor a, Tensor b) -> Tensor")
        d.impl("aten::mul", "CPU", lambda a, b: seen.append(a) or a * b)
        d.define("aten::add(Tensor a, Tensor b) -> Tensor")
        d.impl("aten::add", "CPU", lambda a, b: a + b)
        assert np.array_equal(d.call("plugin_demo::axpy", a, x, y), a * x + y)
        assert seen[0] is a
        d.impl("aten::add", "CPU", lambda a, b: a - b, override="replace")
        assert np.array_equal(d.call("plugin_demo::axpy", a, x, y), a * x - y)


def test_the_process_dispatcher_serves_the_calls_too(ops):
    a = kf.asarray([2.0, 3.0])
    assert np.array_equal(np.asarray(ops.axpy(a, a, a)), [6.0, 12.0])


def test_derivatives_go_through_what_the_kernel_calls(ops):
    gradient = kf.grad(lambda x: kf.sum(ops.axpy(x, x, x)))(kf.asarray([2.0, 3.0]))
    assert np.array_equal(np.asarray(gradient), [5.0, 7.0])


def test_guards_around_the_call_are_seen_inside(arithmetic, example):
    d, seen = arithmetic, []

    def layer(keyset, a, b):
        seen.append("mul")
        return d.redispatch("aten::mul", keyset.remove("Pipeline"), a, b)

    d.impl("aten::mul", "Pipeline", layer, with_keyset=True)
    with kf.load_plugin(example, dispatcher=d):
        x = np.ones(2)
        d.call("plugin_demo::axpy", x, x, x)
        assert seen == []
        with kf.include_keys("Pipeline"):
            d.call("plugin_demo::axpy", x, x, x)
            assert seen == ["mul"]
            with kf.exclude_keys("Pipeline"):
                d.call("plugin_demo::axpy", x, x, x)
        assert seen == ["mul"]


# Errors


def test_errors_have_kind_and_message(ops, raises_saying):
    with raises_saying(ValueError, "plugin_demo::softplus", "beta is -1 and must be positive"):
        ops.softplus(np.ones(2), beta=-1.0)
    with raises_saying(kf.DTypeError, "plugin_demo::softplus", "x is int64"):
        ops.softplus(np.ones(2, dtype=np.int64))
    with raises_saying(kf.ShapeError, "plugin_demo::minmax", "no elements"):
        ops.minmax(np.ones(0))
    with raises_saying(kf.InvalidValue, "argument 'n' is 0 and must be 1 or more"):
        ops.root(np.ones(2), 0)


def test_a_panic_is_an_exception_and_no_more(ops, example, raises_saying):
    parts = ["plugin_demo::tenth", "tenth (Rust", str(example), "panicked", "index is 9"]
    for _ in range(3):
        with raises_saying(kf.KernelPanic, *parts):
            ops.tenth(np.ones(3))
    assert ops.tenth(np.ones(10)) == 1.0


def test_exceptions_of_python_kernels_pass_through_whole(arithmetic, example):
    class Mine(Exception):
        pass

    raised = Mine("from Python")

    def fail(a, b):
        raise raised

    arithmetic.impl("aten::add", "CPU", fail, override="replace")
    with kf.load_plugin(example, dispatcher=arithmetic):
        x = np.ones(2)
        with pytest.raises(Mine) as caught:
            arithmetic.call("plugin_demo::axpy", x, x, x)
    assert caught.value is raised


# Loading and closing


def test_what_a_plugin_says_of_itself(d, example):
    plugin = kf.load_plugin(str(example), dispatcher=d)
    assert type(plugin) is kf.Plugin
    assert (plugin.name, plugin.version) == ("keyfold-example-plugin", "0.1.0")
    assert plugin.path == str(example)
    assert plugin.operators == d.operator_names() or sorted(plugin.operators) == d.operator_names()
    assert ("plugin_demo::softplus", "CPU", "softplus") in plugin.kernels
    assert ("plugin_demo::softplus", "Meta", "like_first") in plugin.kernels
    assert len(plugin.kernels) == d.kernel_count() == 11
    assert "keyfold-example-plugin 0.1.0: 8 operators, 11 kernels)" in repr(plugin)
    plugin.close()
    assert plugin.closed
    assert "closed" in repr(plugin)


def test_close_takes_everything_back(d, example):
    plugin = kf.load_plugin(example, dispatcher=d)
    operator = d.get_op("plugin_demo::softplus")
    with plugin as entered:
        assert entered is plugin
        assert not plugin.closed
    plugin.close()
    assert d.operator_names() == []
    assert d.kernel_count() == 0
    with pytest.raises(kf.OperatorRemoved):
        operator(np.ones(2))
    with pytest.raises(AttributeError):
        _ = d.ops.plugin_demo.softplus


def test_a_plugin_that_nobody_keeps_stays(d, example):
    kf.load_plugin(example, dispatcher=d)
    assert d.call("plugin_demo::count_positive", np.ones(3)) == 3


def test_loading_twice_names_the_first(d, example, raises_saying):
    with kf.load_plugin(example, dispatcher=d):
        parts = [
            str(example),
            "plugin_demo::softplus already has a kernel at CPU",
            "softplus (Rust",
        ]
        with raises_saying(kf.RegistrationError, *parts):
            kf.load_plugin(example, dispatcher=d)
        assert d.kernel_count() == 11
        assert d.call("plugin_demo::count_positive", np.ones(3)) == 3
    with kf.load_plugin(example, dispatcher=d):
        assert d.call("plugin_demo::count_positive", np.ones(3)) == 3


def test_one_library_in_two_dispatchers(example):
    first, second = kf.Dispatcher(), kf.Dispatcher()
    one = kf.load_plugin(example, dispatcher=first)
    two = kf.load_plugin(example, dispatcher=second)
    one.close()
    assert second.call("plugin_demo::count_positive", np.ones(2)) == 2
    two.close()


def test_closing_while_a_call_runs(arithmetic, example, tmp_path):
    d = arithmetic
    path = Path(shutil.copy(example, tmp_path / "libcopy.so"))
    started, go_on, results = threading.Event(), threading.Event(), []

    def wait(a, b):
        started.set()
        assert go_on.wait(60)
        return a * b

    d.impl("aten::mul", "CPU", wait, override="replace")
    plugin = kf.load_plugin(path, dispatcher=d)
    x = np.full(2, 3.0)
    call = threading.Thread(target=lambda: results.append(d.call("plugin_demo::axpy", x, x, x)))
    call.start()
    assert started.wait(60)
    plugin.close()
    assert d.operator_names() == ["aten::add", "aten::mul"]
    # The call is inside the library, in the middle of its kernel.
    assert mapped(path)
    go_on.set()
    call.join()
    assert np.array_equal(results[0], x * x + x)
    # The next registration clears up.
    d.define("demo::f(Tensor x) -> Tensor").remove()
    assert not mapped(path)


def test_a_closed_library_is_unloaded_and_a_new_one_loaded(d, tmp_path):
    path = in_c(tmp_path, "GOOD")
    with kf.load_plugin(path, dispatcher=d) as plugin:
        assert (plugin.name, plugin.version) == ("in-c", "0.3.0")
        assert d.call("in_c::answer") == 42
        assert mapped(path)
    assert not mapped(path)
    # The same file, built anew.
    assert in_c(tmp_path, "SILENT") == path
    with kf.load_plugin(path, dispatcher=d), pytest.raises(kf.KernelFailed, match="code 7"):
        d.call("in_c::answer")


def test_loading_and_closing_many_times(d, example):
    for _ in range(200):
        with kf.load_plugin(example, dispatcher=d):
            assert d.call("plugin_demo::count_positive", np.ones(2)) == 2
    assert d.kernel_count() == 0


# Refused plugins


def refused(d, path, raises_saying, *parts):
    with raises_saying(OSError, str(path), *parts) as raised:
        kf.load_plugin(path, dispatcher=d)
    assert type(raised.value) is kf.LibraryLoadError
    assert d.operator_names() == []
    assert d.kernel_count() == 0


@pytest.mark.parametrize(("case", "version"), [("MAJOR", "7.0"), ("MINOR", "1.900")])
def test_another_version_of_the_abi(d, tmp_path, raises_saying, case, version):
    path = in_c(tmp_path, case)
    refused(d, path, raises_saying, f"version {version} of the plugin ABI", "1.2")


def test_a_library_that_is_no_plugin(d, tmp_path, c_library, raises_saying):
    refused(d, c_library, raises_saying, "is not a keyfold plugin", "keyfold_plugin")
    path = in_c(tmp_path, "MAGIC")
    refused(d, path, raises_saying, "is not a keyfold plugin", "something else")


def test_no_such_file(d, tmp_path, raises_saying):
    refused(d, tmp_path / "libmissing.so", raises_saying, "No such file")


def test_a_file_that_is_no_library(d, tmp_path, raises_saying):
    path = tmp_path / "libtext.so"
    path.write_text("short")
    refused(d, path, raises_saying, "too short for a shared library")
    path.write_text("long enough for a header, and no header")
    refused(d, path, raises_saying, "not a shared library")
    refused(d, tmp_path, raises_saying)


def test_a_library_for_another_machine(d, tmp_path, raises_saying):
    path = in_c(tmp_path, "GOOD")
    code = bytearray(path.read_bytes())
    code[18:20] = (243 if code[18] == 183 else 183).to_bytes(2, "little")
    path.write_bytes(code)
    refused(d, path, raises_saying, "it was built for", "and this process runs on")


def test_a_registration_that_fails_leaves_nothing_behind(d, tmp_path, raises_saying):
    path = in_c(tmp_path, "FAILS")
    refused(d, path, raises_saying, "register function failed: no licence for this machine")


def test_a_schema_that_a_kernel_doesnt_fit(d, tmp_path, raises_saying):
    path = in_c(tmp_path, "RETURNS")
    with raises_saying(kf.RegistrationError, str(path), "in_c::text", "returns a float"):
        kf.load_plugin(path, dispatcher=d)
    assert d.operator_names() == []


def test_an_unknown_key(d, tmp_path, raises_saying):
    refused(d, in_c(tmp_path, "KEY"), raises_saying, "NoSuchKey")


def test_a_registration_that_panics_leaves_nothing_behind(
    d, tmp_path, plugin_target, raises_saying
):
    sdk = ROOT / "crates" / "plugin"
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "lib.rs").write_text(PANICS)
    (tmp_path / "Cargo.toml").write_text(
        '[package]\nname = "panics"\nversion = "1.0.0"\nedition = "2021"\n'
        '[workspace]\n[lib]\ncrate-type = ["cdylib"]\n'
        f"[dependencies]\nkeyfold-plugin = {{ path = '{sdk}' }}\n"
    )
    path = build(tmp_path / "Cargo.toml", plugin_target)
    refused(d, path, raises_saying, "register function panicked: no table of units")
