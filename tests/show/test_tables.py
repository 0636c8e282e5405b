"""Tables as text: 80 columns, nothing lost, one line for what is the same, no internal names."""

import re

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import keyfold as kf
from keyfold._cli import main
from keyfold._show import _text

# Names that only keyfold's own sources have.
INTERNAL = re.compile(r"crates/|\.rs\b|_cpu\b|_meta\b|_vmap\b|autogradalias", re.IGNORECASE)


def fits(text, width=80):
    too_long = [line for line in text.splitlines() if _text.size(line) > width]
    assert not too_long
    return text


def built_in():
    packets = [getattr(kf.ops.aten, name) for name in dir(kf.ops.aten)]
    return [getattr(packet, name) for packet in packets for name in packet.overloads()]


def test_the_table_of_every_built_in_operator_is_narrow_and_names_nothing_internal():
    for op in built_in():
        for fallbacks in (False, True):
            text = fits(str(op.table(fallbacks=fallbacks)))
            assert not INTERNAL.search(text), text
            # Below title, head and rule a row for each layer, and one for all backends together.
            keys = [line.split("  ")[0] for line in text.splitlines()[3:] if line[0] != " "]
            assert len(keys) == len(set(keys))
            assert sum("CPU" in row for row in keys) <= 1
            assert "built in" in text


def test_the_table_says_what_the_explanation_says_of_each_kernel(lib, ns):
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: x, "CPU")
    own = kf.get_op(f"{ns}::f")
    layers = ("Profiler", "Tracer", "Autocast", "Autograd", "Vmap")
    said = {
        op: {key: entry.origin for key, entry in op.table(fallbacks=True).items()}
        for op in (own, kf.ops.aten.matmul.default, kf.ops.aten.detach.default)
    }
    first, second, third = said.values()
    assert first["VmapCPU"] == "built in: one call per example"
    assert first["AutogradCPU"] == "built in: no derivative"
    assert second["TracerCPU"] == "built in: record in the graph"
    assert second["ProfilerCPU"] == "built in: record in the profile"
    assert third["AutogradCPU"] == "built in: no gradient passes"
    for op, origins in said.items():
        table = op.table(fallbacks=True)
        text, page = str(table), table._repr_html_()
        args = (np.ones((2, 2)),) * len(op.schema.arguments)
        for layer in layers:
            origin = origins.get(f"{layer}CPU")
            if origin is None or table[f"{layer}CPU"].kernel is kf.fallthrough:
                continue
            with kf.include_keys(layer):
                assert origin in str(kf.explain(op, *args))
            # The file of a fallback of keyfold.torch takes room: the name is then in two lines.
            shown = origin.split(":")[0] if "keyfold/torch" in text else origin
            assert re.search(rf"^{layer} +{re.escape(shown)}", text, re.MULTILINE)
            assert origin in page


def test_what_is_the_same_for_all_backends_is_one_line(d):
    d.define("f(Tensor x) -> Tensor")
    d.impl("f", "CompositeExplicitAutograd", lambda x: x)
    d.impl("f", "Tracer", lambda keyset, x: x, with_keyset=True)
    shown = [line.split()[0] for line in str(d.get_op("f").table()).splitlines()]
    assert shown == ["f", "key", "-------------", "Tracer", "every"]
    d.impl("f", "CPU", abs)
    lines = str(d.get_op("f").table()).splitlines()
    assert [line[:22] for line in lines if line[0] != " "][3:] == [
        f"{'Tracer':22}",
        "every backend but CPU ",
        f"{'CPU':22}",
    ]
    d.impl("f", "AutogradCPU", lambda x: x)
    assert re.search(r"^AutogradCPU  ", str(d.get_op("f").table()), re.MULTILINE)
    with pytest.raises(KeyError):
        d.get_op("f").table()["Tracer"]


def test_tables_of_operators_with_long_names_and_many_keys_fit(d):
    name = "a_namespace_with_a_long_name::" + "operator_" * 9
    d.define(f"{name}(Tensor x) -> Tensor")
    space = {}
    exec(f"def {'kernel_' * 20}(x): return x\ndef {'核' * 50}(x): return x", space)
    long, wide = (value for key, value in space.items() if key != "__builtins__")
    d.impl(name, "CompositeImplicitAutograd", long)
    d.impl(name, "CPU", wide)
    for key in ("Tracer", "Profiler", "Vmap", "Autograd", "Autocast", "SparseCPU", "NestedCUDA"):
        d.impl(name, key, long)
    table = d.get_op(name).table()
    text = fits("\n".join(str(table).splitlines()[1:]))
    joined = re.sub(r"\s", "", text)
    assert joined.count("kernel_" * 3) >= 8
    assert "核核核" in joined
    fits(repr(d.explain(name, np.ones(2))))
    fits("\n".join(table._lines(40)[1:]), 40)


def test_many_columns_become_pairs():
    heads = [f"axis {number}" for number in range(20)]
    lines = _text.table([[str(number) for number in range(20)]] * 2, heads)
    assert lines[0].split() == ["axis", "0", "0"]
    assert len(lines) == 41
    axes = {f"axis_{number}": ["a", "b"] for number in range(12)}
    table = kf.DispatchTable("many", **axes)
    fits(repr(table))
    table.impl(axis_0="a")(lambda: None)
    fits(repr(table))


@given(st.text(alphabet="ab _/.,é名", max_size=60), st.integers(2, 30))
def test_wrapped_text_loses_nothing(text, room):
    lines = _text.wrap(text, room)
    assert all(_text.size(line) <= room for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


def test_names_of_several_words_are_broken_between_them():
    name = "CompositeExplicitAutograd"
    assert _text.wrap(name, 20) == ["CompositeExplicit", "Autograd"]
    assert _text.wrap(name, 10) == ["Composite", "Explicit", "Autograd"]
    rows = [("schema(" + "Tensor x, " * 9, f"Autocast, Autograd, Vmap, Profiler, {name}")]
    lines = _text.table(rows, ("operator", "kernels"), hang=2)
    assert any(line.endswith(f"  {name}") for line in lines)
    assert max(map(len, lines)) <= 80


def test_texts_cannot_move_the_cursor():
    (line,) = _text.table([["a\nb\x1b[2J", "é"]])
    assert line == r"a\nb\x1b[2J  é"
    assert _text.pairs([("head", "one\ntwo")]) == ["  head  one", "        two"]


@pytest.mark.parametrize(
    "words",
    [
        ("ops",),
        ("ops", "aten"),
        ("ops", "aten::add"),
        ("doctor",),
        ("table", "aten::log_softmax"),
        ("table", "aten::sum", "--fallbacks"),
        ("explain", "aten::add", "3:float32", "3:float32:meta"),
        ("explain", "aten::add", "3:float32", "2", "--include", "Autograd", "--include", "Tracer"),
    ],
)
def test_the_commands_print_80_columns_and_nothing_internal(capsys, words):
    assert main(words) == (1 if "3:float32:meta" in words else 0)
    text = fits(capsys.readouterr().out)
    assert words[0] == "doctor" or not INTERNAL.search(text)


def test_ops_says_once_what_all_operators_have(capsys):
    main(("ops", "aten"))
    out = capsys.readouterr().out
    assert '  kernels for CPU, Meta, unless a line says "only"\n' in out
    assert re.search(r"^  aten::abs\(Tensor self\) -> Tensor +Autograd, Vmap$", out, re.MULTILINE)
    assert re.search(r"^  aten::masked_select\(.* only CPU, Autograd$", out, re.MULTILINE)
    main(("ops", "aten::masked_select"))
    assert re.search(r"-> Tensor +Autograd$", capsys.readouterr().out, re.MULTILINE)


def profiled(names=("step",), calls=1):
    with kf.profile() as p:
        for name in names:
            with p.range(name):
                for _ in range(calls):
                    kf.ops.aten.exp(np.ones(3))
    return p


def test_a_profile_leaves_columns_out_and_says_so():
    p = profiled(["a range with a name that is quite long, " * 3, "名前" * 30])
    table = p.table()
    text = fits(str(table))
    lines = text.splitlines()
    assert "the keys of each call: CPU" in lines
    left_out = re.search(r"^no room for: (.*) \(see rows\)$", text, re.MULTILINE)[1].split(", ")
    assert set(left_out) <= set(table.heads)
    assert not set(left_out) & set(lines[0].split())
    assert {"operator", "calls", "self", "share"} <= set(lines[0].split())
    for by in ("mean", "bytes", "allocated", "total"):
        assert by in fits(str(p.table(sort=by))).splitlines()[0].split()
    assert "no room" not in str(profiled().table())


def test_the_profile_of_many_key_paths_keeps_their_column():
    x = kf.ones(3).requires_grad_()
    with kf.profile() as p:
        (x * 2.0).sum().backward()
        kf.ops.aten.exp(np.ones(3))
    text = fits(str(p.table()))
    assert "keys of each call" not in text
    assert "Autograd > CPU" in text


def test_an_explanation_shows_itself_at_the_prompt():
    with kf.include_keys("Tracer"):
        e = kf.explain("aten::add", np.ones(2), np.ones(2))
    assert repr(e) == str(e)
    assert not INTERNAL.search(fits(repr(e)))
    assert re.search(r"^  kernel +built in: record in the graph$", repr(e), re.MULTILINE)
    assert re.search(r"^  a redispatch goes to +CPU: built in$", repr(e), re.MULTILINE)


def test_a_graph_shows_itself_at_the_prompt_and_a_long_one_in_part():
    graph = kf.trace(lambda x: x * 2.0, np.ones(3))
    assert repr(graph) + "\n" == str(graph)

    def long(x):
        for _ in range(400):
            x = x + 1.0
        return x

    graph = kf.trace(long, np.ones(3))
    assert len(str(graph).splitlines()) > 400
    shown = repr(graph).splitlines()
    assert len(shown) == 201
    assert sum("more lines: print(graph)" in line for line in shown) == 1
    assert shown[-1].startswith("  return ")
    assert graph._repr_html_().count("<tr>") == 202


def test_backends_show_themselves_as_a_table():
    text = fits(repr(kf.backends()))
    assert text.splitlines()[0].split()[:3] == ["name", "device", "type"]
    assert re.search(r"^\S+ +cpu +cpu ", text, re.MULTILINE)
    assert repr(kf.fallbacks()) == "[]"


def test_a_report_of_opcheck_folds_what_failed(d):
    d.define("f(Tensor x) -> Tensor")
    d.impl("f", "CPU", lambda x: x)
    report = kf.opcheck(d.get_op("f"), (np.ones(2),), tests="schema", raise_exception=False)
    assert "FAILED: " in fits(str(report))
    assert len(str(report).splitlines()) > 2
