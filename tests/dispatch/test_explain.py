"""`explain` and `table`: as data, as text, as HTML; nothing of the call runs."""

import pickle

import numpy as np
import pytest

import keyfold as kf
from keyfold import DispatchKey, DispatchKeySet


def cpu(x, n):
    raise AssertionError("explaining runs nothing")


def traced(keyset, x, n):
    raise AssertionError("explaining runs nothing")


def composite(x, n):
    raise AssertionError("explaining runs nothing")


@pytest.fixture
def f(d):
    """`ns::f` with a kernel, a layer, and one that loses."""
    d.define("ns::f(Tensor x, int n=1) -> Tensor")
    d.impl("ns::f", "CPU", cpu)
    d.impl("ns::f", "Tracer", traced, with_keyset=True)
    d.impl("ns::f", "CompositeExplicitAutograd", composite)
    return d


def test_as_data(f, word):
    with kf.include_keys("Profiler"), kf.exclude_keys("Autocast"):
        e = f.explain("ns::f", word("x", "CPU", "Tracer", "Autocast"))
    assert e.operator is f.get_op("ns::f")
    assert e.key is DispatchKey.Tracer
    assert e.kernel is traced
    assert e.rule == "Functionality"
    ((name, keys, device),) = e.arguments
    assert (name, keys) == ("x", DispatchKeySet("CPU", "Tracer", "Autocast"))
    assert device == "cpu"
    assert e.included == DispatchKeySet("Profiler")
    assert e.excluded == DispatchKeySet("Autocast")
    assert e.keyset == DispatchKeySet("CPU", "Tracer", "Profiler")
    assert e.backend is DispatchKey.CPU
    assert e.error is None
    assert not e.default_backend
    assert [choice.key for choice in e.next] == [DispatchKey.CPU]
    assert e.next[0].kernel is cpu
    assert e.next[0].losers[0][0] == "CompositeExplicitAutograd"


def test_what_lost_and_what_is_shadowed(f, word):
    f.impl("ns::f", "CPU", lambda x, n: x, override="shadow")
    choice = f.explain("ns::f", word("x")).choice
    assert choice.key is DispatchKey.CPU
    assert choice.registered_at == "CPU"
    assert choice.rule == "Direct"
    assert any("composite" in who for _, _, who in choice.losers)
    assert any("cpu" in who for who in choice.shadows)


def test_skipped_modes(f, word):
    e = f.explain("ns::f", word("x", "CPU", "Profiler", "Autograd"))
    assert e.skipped == DispatchKeySet("Profiler", "Autograd")
    assert e.key is DispatchKey.CPU


def test_a_call_that_would_fail_is_explained(f, word):
    e = f.explain("ns::f", word("x", "CPU", "Sparse"))
    assert e.key is None
    assert e.kernel is None
    assert e.rule is None
    assert e.choice is None
    assert "no kernel registered for SparseCPU" in e.error
    assert "no kernel registered for SparseCPU" in str(e)
    assert "no kernel registered" in e._repr_html_()


def test_an_empty_key_set_is_explained(f, word):
    with kf.exclude_keys("CPU"):
        e = f.explain("ns::f", word("x"))
    assert "empty keyset" in e.error
    assert e.key is None


def test_different_devices_are_explained(d, word):
    d.define("ns::g(Tensor x, Tensor y) -> Tensor")
    e = d.explain("ns::g", word("x", "CPU"), word("y", "CUDA"))
    assert "'x' is on cpu" in e.error
    assert "'y' is on cuda" in e.error


def test_the_default_device_is_said(d):
    d.define("ns::g(int n) -> int")
    d.impl("ns::g", "CPU", lambda n: n)
    e = d.explain("ns::g", 1)
    assert e.default_backend
    assert e.backend is DispatchKey.CPU
    assert "default" in str(e)


def test_arguments_are_bound_as_in_a_call(f, word):
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        f.explain("ns::f")
    with pytest.raises(TypeError, match="argument 'n' must be int"):
        f.explain("ns::f", word("x"), "no")
    assert f.explain("ns::f", x=word("x"), n=3).key is DispatchKey.CPU


@pytest.mark.parametrize("door", ["name", "packet", "overload"])
def test_through_every_door(door):
    a = np.ones(2)
    op = {"name": "aten::add", "packet": kf.ops.aten.add, "overload": kf.ops.aten.add.default}[door]
    e = kf.explain(op, a, a)
    assert e.key is DispatchKey.CPU
    assert e.operator.name == "aten::add"


def test_it_finds_the_overload_that_a_call_would_take():
    assert kf.explain("aten::add", np.ones(2), 3).operator.name == "aten::add.Scalar"


def test_it_says_what_the_call_does(word):
    """On isolated dispatchers of many shapes, the chosen kernel is the one that runs."""
    keys = ["CPU", "Autograd", "AutogradCPU", "Tracer", "CompositeImplicitAutograd"]
    for bits in range(1, 1 << len(keys)):
        d = kf.Dispatcher()
        d.define("f(Tensor x) -> Tensor")
        for i, key in enumerate(keys):
            if bits >> i & 1:
                d.impl("f", key, lambda x, key=key: word(key))
        x = word("x", "CPU", "Autograd", "Tracer")
        e = d.explain("f", x)
        if e.error is None:
            assert d.call("f", x) is not None
            assert d.call("f", x).text == e.choice.registered_at
            assert e.kernel(x).text == e.choice.registered_at
        else:
            with pytest.raises(kf.MissingKernel):
                d.call("f", x)


def test_a_native_kernel_is_built_in():
    e = kf.explain("aten::add", np.ones(1), np.ones(1))
    assert e.choice.origin == "built in"
    assert callable(e.kernel)
    assert e.kernel(np.ones(1), np.ones(1))[0] == 2.0


def test_as_text(f, word):
    text = str(f.explain("ns::f", word("x", "CPU", "Tracer")))
    for part in ["ns::f(Tensor x, int n=1) -> Tensor", "argument x", "chosen key", "Tracer"]:
        assert part in text
    for part in ["traced", "test_explain.py:", "redispatch goes to", "cpu"]:
        assert part in text


def test_as_html(f, word):
    html = f.explain("ns::f", word("x", "CPU", "Tracer"))._repr_html_()
    for part in ["ns::f(Tensor x, int n=1) -&gt; Tensor", "Tracer", "test_explain.py:"]:
        assert part in html
    assert "<locals>" not in html


def test_html_is_escaped(d, word):
    d.define("ns::f(Tensor x) -> Tensor")
    d.impl("ns::f", "CPU", lambda x: x)
    for html in [
        d.explain("ns::f", word("x"))._repr_html_(),
        d.get_op("ns::f").table()._repr_html_(),
    ]:
        assert "&lt;lambda&gt;" in html
        assert "<lambda>" not in html


def test_a_table_is_a_mapping_of_runtime_keys(f):
    table = f.get_op("ns::f").table()
    assert table["CPU"].kernel is cpu
    assert table["CPU"].registered_at == "CPU"
    assert table["CPU"].rule == "Direct"
    assert table["CUDA"].kernel is composite
    assert table["CUDA"].registered_at == "CompositeExplicitAutograd"
    assert table["TracerCPU"].kernel is traced
    assert table["TracerCPU"].registered_at == "Tracer"
    assert table[DispatchKey.CPU].kernel is cpu
    assert "AutogradCPU" not in table
    assert {"CPU", "CUDA", "Meta", "TracerCPU", "TracerCUDA", "TracerMeta"} <= set(table)
    assert len(table) == len(list(table)) == len(table.items())
    assert isinstance(table["CPU"].registered_at, str)
    with pytest.raises(KeyError):
        table["SparseCPU"]


def test_a_table_entry_says_what_lost(f):
    assert any("composite" in who for who in f.get_op("ns::f").table()["CPU"].shadows)


def test_a_table_with_fallbacks(f):
    def fallback(op, keyset, args, kwargs):
        raise AssertionError

    f.fallback("Profiler", fallback)
    op = f.get_op("ns::f")
    assert "ProfilerCPU" not in op.table()
    entry = op.table(fallbacks=True)["ProfilerCPU"]
    assert entry.kernel is fallback
    assert entry.rule == "Fallback"
    assert entry.registered_at == "Profiler"


def test_a_table_shows_fallthrough(f):
    f.impl("ns::f", "Profiler", kf.fallthrough)
    assert f.get_op("ns::f").table()["ProfilerCPU"].kernel is kf.fallthrough


def test_a_table_prints(f):
    text = str(f.get_op("ns::f").table())
    assert text.splitlines()[0] == "ns::f"
    assert "CompositeExplicitAutograd" in text
    assert "test_explain.py:" in text
    f.define("ns::g(Tensor x) -> Tensor")
    assert str(f.get_op("ns::g").table()) == "ns::g: no kernels"
    assert "CompositeExplicitAutograd" in f.get_op("ns::f").table()._repr_html_()


def test_an_explanation_through_a_fallback(f, word):
    def fallback(op, keyset, args, kwargs):
        raise AssertionError

    f.fallback("Profiler", fallback)
    e = f.explain("ns::f", word("x", "CPU", "Profiler"))
    assert e.rule == "Fallback"
    assert e.kernel is fallback


def test_a_table_is_of_its_moment(f):
    op = f.get_op("ns::f")
    before = op.table()
    f.impl("ns::f", "CUDA", cpu)
    assert before["CUDA"].kernel is composite
    assert op.table()["CUDA"].kernel is cpu


def test_the_fallthrough_mark_pickles():
    assert pickle.loads(pickle.dumps(kf.fallthrough)) is kf.fallthrough
