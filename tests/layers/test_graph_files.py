"""Graphs simplified, of random programs, drawn, and in JSON, files and pickles."""

import copy
import inspect
import json
import pickle
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyfold as kf
from keyfold import Graph, TraceError, trace
from tests.helpers.notebook import Reader
from tests.helpers.tensors import tensor

X = np.arange(6.0).reshape(2, 3)


# Leaving out.


def test_calls_that_nobody_needs_are_left_out():
    w = tensor(3)

    def f(x):
        kf.exp(x) * w
        y = x * 2.0
        y[0] = 1.0
        return x + 1.0

    graph = trace(f, X)
    simple = graph.simplified()
    assert len(graph.constants) >= len(simple.constants)
    assert "aten::exp" not in str(simple)
    assert any(node.effects for node in simple.nodes)
    np.testing.assert_array_equal(simple(X), X + 1.0)
    simpler = trace(lambda x: (kf.exp(x) * w, x)[1], X).simplified()
    assert not simpler.nodes
    assert not simpler.constants


# Random programs.

UNARY = [kf.exp, kf.abs, kf.relu, kf.negative, kf.square, kf.softmax]
BINARY = [kf.add, kf.subtract, kf.multiply, kf.maximum, kf.minimum]
VIEWS = [
    lambda x: x[1:],
    lambda x: x[..., ::-1],
    lambda x: kf.permute_dims(x, (1, 0)),
    lambda x: kf.reshape(x, (-1, 1)),
    lambda x: kf.expand_dims(x, axis=0)[0],
    lambda x: kf.broadcast_to(x[:1], x.shape),
    lambda x: kf.flip(x),
    lambda x: x[kf.asarray([0, 0])],
]
REDUCED = [
    lambda x: kf.sum(x, axis=0, keepdims=True),
    lambda x: kf.max(x, axis=1, keepdims=True),
    lambda x: kf.mean(x, keepdims=True),
]


def program(choices):
    """A function that makes tensors of tensors, by the numbers that it is given."""

    def f(x, y):
        made = [x, y, kf.asarray([[0.5]])]
        for kind, which, a, b in choices:
            first, second = made[a % len(made)], made[b % len(made)]
            try:
                if kind == 0:
                    made.append(UNARY[which % len(UNARY)](first))
                elif kind == 1:
                    made.append(BINARY[which % len(BINARY)](first, second))
                elif kind == 2:
                    made.append(VIEWS[which % len(VIEWS)](first))
                elif kind == 3:
                    made.append(REDUCED[which % len(REDUCED)](first))
                elif kind == 4:
                    made.append(first * (which / 4 - 1))
                elif kind == 5:
                    made.append(kf.where(first > second, first, which * 1.0))
                else:
                    first[0] = which / 8
            except (kf.ShapeError, kf.IndexOutOfRange, kf.InvalidValue):
                # A combination that doesn't fit is left out, in every run alike.
                continue
        return made[2:], {"last": made[-1]}

    return f


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 11), st.integers(0, 30), st.integers(0, 30)),
        max_size=14,
    ),
    st.integers(0, 1000),
)
def test_random_programs_replay_as_they_run(choices, seed):
    f = program(choices)

    def fresh(add):
        generator = np.random.default_rng(seed + add)
        return [kf.from_numpy(generator.uniform(-1, 1, shape)) for shape in [(3, 2), (3, 2)]]

    graph = trace(f, *fresh(0))
    graphs = [graph, Graph.from_json(graph.to_json()), graph.simplified()]
    for add in (0, 1):
        expected, last = f(*fresh(add))
        for one in graphs:
            result, result_last = one(*fresh(add))
            assert len(result) == len(expected)
            for got, wanted in zip(result, expected, strict=True):
                np.testing.assert_array_equal(got, wanted)
            np.testing.assert_array_equal(result_last["last"], last["last"])
    check_dot(graph)
    check_mermaid(graph)


# Drawings.


def dot_statements(text):
    """Splits DOT text at `;`, `{` and `}` outside of quotes; fails where quotes don't close."""
    statements, now, quoted, depth, i = [], "", False, 0, 0
    while i < len(text):
        c = text[i]
        if quoted and c == "\\":
            now += text[i : i + 2]
            i += 2
            continue
        if c == '"':
            quoted = not quoted
        if not quoted and c in ";{}":
            depth += {"{": 1, "}": -1}.get(c, 0)
            statements.append(now.strip())
            now = ""
        else:
            assert not quoted or c != "\n"
            now += c
        i += 1
    assert not quoted
    assert depth == 0
    return [statement for statement in statements if statement]


def check_dot(graph):
    statements = dot_statements(graph.dot())
    boxes = {s.split(" ")[0] for s in statements if "[label=" in s and "->" not in s}
    arrows = [s.split(" [")[0].split(" -> ") for s in statements if " -> " in s]
    assert len(boxes) == (
        len(graph.inputs) + len(graph.constants) + len(graph.nodes) + len(graph.outputs)
    )
    assert all(end in boxes for arrow in arrows for end in arrow)


def check_mermaid(graph):
    lines = graph.mermaid().splitlines()
    assert lines[0] == "flowchart TD"
    arrows = [line.split() for line in lines if "-->" in line]
    boxes = [line for line in lines if ":::" in line]
    assert len(boxes) == (
        len(graph.inputs) + len(graph.constants) + len(graph.nodes) + len(graph.outputs)
    )
    names = {line.strip().split("[")[0].split("(")[0] for line in boxes}
    assert all(arrow[0] in names and arrow[-1] in names for arrow in arrows)


def test_drawings_show_shapes_groups_and_kinds(op):
    sign, _ = op('odd(Tensor x, str how="a") -> Tensor', lambda x, how: x)
    w, half = tensor(3, 4), kf.asarray(np.asarray(0.5))

    def f(x):
        y = kf.reshape(x @ w, (-1,)) * half
        y[0] = 1.0
        return sign(y, 'say "hi" \\ <b>#1;\nnew')

    graph = trace(f, X)
    for direction in ("down", "right"):
        dot, mermaid = graph.dot(direction), graph.mermaid(direction)
        assert ("rankdir=TB" in dot) == (direction == "down")
        assert mermaid.startswith("flowchart TD" if direction == "down" else "flowchart LR")
    check_dot(graph)
    check_mermaid(graph)
    for part in ["float64[2, 3]", "matmul", "cluster_inputs", "cluster_constants", "0.5"]:
        assert part in graph.dot()
    assert 'say \\"hi\\"' in graph.dot()
    assert "#34;hi#34;" in graph.mermaid()
    assert '"hi"' not in graph.mermaid()
    with pytest.raises(kf.InvalidValue, match="sideways"):
        graph.dot("sideways")


def test_notebooks_show_a_table(op):
    odd, _ = op('odd(Tensor x, str how="a") -> Tensor', lambda x, how: x)
    graph = trace(lambda x: odd(x + tensor(3), "<script>"), X)
    text = graph._repr_html_()
    assert "<script>" not in text
    seen = Reader(text).text
    for part in ["%0", "x", "float64[2, 3]", "aten::add(%0, %c0)", "'<script>'", "returns"]:
        assert part in seen, part


# JSON, files, pickle.


def rich():
    w = np.array([[1.0, np.nan, np.inf]])

    def f(x, options):
        y = kf.where(x > 0.5, x * w, float("-inf")) * options["scale"]
        return (y, [y.shape, None, 2.5, 1 + 2j, kf.float32], {1: kf.astype(y, kf.float32)})

    return f, trace(f, X, {"scale": float("inf"), "n": 2**70})


def test_json_brings_back_everything():
    _, graph = rich()
    text = graph.to_json()
    back = Graph.from_json(text)
    assert str(back) == str(graph)
    assert back.to_json() == text
    options = {"scale": float("inf"), "n": 2**70}
    np.testing.assert_equal(back(X, options)[0], graph(X, options)[0])
    assert back(X, options)[1] == [(2, 3), None, 2.5, 1 + 2j, kf.float32]
    assert json.loads(text)["format"] == "keyfold-graph"
    assert json.loads(text, parse_constant=pytest.fail)


def test_files_pickle_and_copies(tmp_path):
    _, graph = rich()
    graph.save(tmp_path / "graph.json")
    for back in [
        Graph.load(tmp_path / "graph.json"),
        Graph.load(str(tmp_path / "graph.json")),
        pickle.loads(pickle.dumps(graph)),
        copy.deepcopy(graph),
    ]:
        assert str(back) == str(graph)
    (tmp_path / "graph.json").write_bytes(b"\xff\xfe")
    with pytest.raises(TraceError, match="UTF-8"):
        Graph.load(tmp_path / "graph.json")


def test_what_has_no_json_is_named(word, op, raises_saying):
    graph = trace(lambda x, how: x, X, object())
    with raises_saying(TraceError, "args[1]", "object"):
        graph.to_json()
    note, _ = op("note(Tensor x, Tensor w) -> Tensor", lambda x, w: x)
    graph = trace(lambda x: note(x, word("a")), X)
    assert "object" in str(graph)
    with raises_saying(TraceError, "%c0"):
        graph.to_json()
    assert graph(X) is X


CHANGES = [
    ('"keyfold-graph"', '"other"', "format"),
    ('"version":1', '"version":7', "version"),
    ('"float64"', '"float63"', "values[0].dtype"),
    ('"input":0', '"input":1', "extra.arguments"),
    ('"output":0', '"output":5', "extra.result"),
    ('"numpy":false', '"numpy":3', "extra.result"),
    ('"static":null', '"static":{"float":"x"}', "extra.result"),
    ('"arguments":[', '"arguments":[3,', "extra.arguments[0]"),
    ('"aten::mul"', "7", "nodes["),
]


@pytest.mark.parametrize(("old", "new", "place"), CHANGES)
def test_damaged_json_is_refused_with_the_place(old, new, place, raises_saying):
    text = rich()[1].to_json()
    assert old in text
    with raises_saying(TraceError, "no keyfold graph", place):
        Graph.from_json(text.replace(old, new, 1))


def test_no_text_gives_another_error_than_the_typed_one():
    text = rich()[1].to_json()
    generator = random.Random(5)
    pieces = ["0", "1", "null", "{}", "[]", '"', "-", "true", "input", "list", ",", "\\", "1e999"]
    survived = 0
    for _ in range(3000):
        at = generator.randrange(len(text))
        changed = text[:at] + generator.choice(pieces) + text[at + generator.randrange(4) :]
        if generator.random() < 0.1:
            changed = text[:at]
        try:
            graph = Graph.from_json(changed)
        except TraceError:
            continue
        survived += 1
        str(graph), graph.dot(), graph._repr_html_()
        try:
            graph.run(X, {"scale": float("inf"), "n": 2**70}, any_shape=True)
        except (kf.Error, TypeError):
            continue
    assert survived


@pytest.mark.parametrize("text", ["", "null", "[1]", '"graph"', "{}", "[" * 1000, "\x00"])
def test_other_texts_are_refused(text):
    with pytest.raises(TraceError, match="no keyfold graph"):
        Graph.from_json(text)


def test_a_graph_is_not_made_by_hand():
    with pytest.raises(TraceError, match=r"keyfold\.trace"):
        Graph()


def test_every_public_part_has_a_text():
    for thing in [trace, Graph, kf.GraphValue, kf.GraphNode]:
        assert thing.__doc__
    for name, member in inspect.getmembers(Graph):
        if not name.startswith("_"):
            assert member.__doc__, name
