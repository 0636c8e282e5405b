"""HTML in notebooks: well-formed, escaped, in light and dark, and never a failure."""

import re

import numpy as np
import pytest

import keyfold as kf
from keyfold._show import _html
from keyfold.testing import delayed_device
from tests.helpers.notebook import Reader

ODD = '<script>alert("&")</script></style>'


def shown(thing):
    """The text of an object's HTML, which is checked."""
    text = thing._repr_html_()
    read = Reader(text)
    assert not read.names & {"script", "img", "link", "iframe"}
    assert not re.search(r"https?:|url\(|@import|src=|href=|\bon\w+=", text)
    # A page can hold it: one element, with the one style sheet.
    assert text.startswith('<div class="keyfold"><style>')
    assert text.count("<style>") == 1
    assert "prefers-color-scheme:dark" in text
    return read.text


@pytest.fixture
def scale(ns):
    """An operator with a kernel of an odd name."""
    op = kf.custom_op(f"{ns}::scale", lambda x, k=2.0: x * k, mutates_args=(), schema=SCHEMA)
    with op:
        yield op


SCHEMA = "(Tensor x, float k=2.0) -> Tensor"


def test_every_object_has_html(ns, scale):
    x = np.ones(3)
    assert "lambda" in shown(scale)
    assert f"{ns}::scale" in shown(scale.operator)
    assert "CompositeExplicitAutograd" in shown(scale.operator.table())
    assert "1 overload" in shown(getattr(kf.ops, ns).scale)
    assert "aten::add.Scalar(Tensor self" in shown(kf.ops.aten.add)
    assert "more operators" in shown(kf.ops.aten)
    assert "aten" in shown(kf.ops)
    assert "a redispatch goes to" not in shown(kf.explain(scale.operator, x))
    assert "empty keyset" in explain_without_keys(scale.operator, x)
    assert "passed" in shown(kf.opcheck(scale.operator, (x,), tests="schema"))
    assert "sigmoid(x)" in shown(kf.Expression("log1p(exp(x))"))
    long = " + ".join(f"x ** {power}" for power in range(2, 90))
    assert " characters)" in shown(kf.Expression(long))
    assert "parameters|k" in shown(kf.Expression("x * k", inputs=["x"], params=["k"]))
    assert "%0" in shown(kf.trace(lambda x: scale(x), x))
    with kf.profile() as p:
        scale(x)
    for thing in (p, p.table()):
        assert f"{ns}::scale" in shown(thing)
    assert "cpu" in shown(kf.backends())
    assert "none" in shown(kf.fallbacks())
    assert "dtype|float32" in shown(kf.DispatchTable("f", dtype=["float32"]))
    softplus = kf.elementwise(f"{ns}::softplus(Tensor x) -> Tensor", "log1p(exp(x))")
    assert "log1p(exp(x))" in shown(softplus)
    softplus.remove()
    assert "removed" in shown(softplus)


def test_operators_of_an_isolated_dispatcher_are_counted_by_namespace(d):
    for name in ("f", "f.out", "ns::g"):
        d.define(f"{name}(Tensor x) -> Tensor")
    assert "no namespace|2|ns|1" in shown(d.ops)


def explain_without_keys(op, x):
    with kf.exclude_keys("CPU"):
        return shown(kf.explain(op, x))


def test_everything_is_escaped(ns, scale):
    def odd(x, how=None):
        return x

    odd.__name__ = odd.__qualname__ = ODD
    kf.define(f"{ns}::odd(Tensor x, str how={ODD!r}) -> Tensor")
    kf.impl(f"{ns}::odd", "CPU", lambda x, how: x)
    op = kf.get_op(f"{ns}::odd")
    kf.impl(f"{ns}::odd", "CPU", odd, override="shadow")
    table = kf.DispatchTable(ODD, **{ODD: [ODD]})
    table.impl()(odd)
    with kf.profile() as p, p.range(ODD):
        op(np.ones(2))
    graph = kf.trace(lambda x: kf.ops.aten.exp(scale(x)), kf.asarray(np.ones(2)))
    report = kf._opcheck.OpCheckReport(ODD, {ODD: ODD, "b": f"skipped: {ODD}"})
    things = (op, op.table(), kf.explain(op, np.ones(2)), table, p, graph, report)
    for thing in things:
        assert "<script>alert" not in thing._repr_html_()
        assert thing is graph or "<script>" in shown(thing)
    # Half of a surrogate pair can't be written as UTF-8.
    _html.page(_html.code("\ud800"), _html.pairs([("\udfff", "")])).encode()


def test_a_tensor_shows_its_values_and_what_it_is():
    x = kf.asarray(np.array([[1.5, 2.0], [3.0, 4.0]], dtype=np.float32)).requires_grad_()
    text = shown(x)
    assert "float32, shape (2, 2), on cpu, 16 bytes, requires grad" in text
    assert "[[1.5, 2. ],\n [3. , 4. ]]" in text
    assert "MulBackward" in shown(x * 2.0) or "from <GradNode" in shown(x * 2.0)
    for value in (1.0, [], [True], [1j], np.zeros((0, 3))):
        assert "shape" in shown(kf.asarray(value))
    assert "1., 1." in shown(kf.ones(3, dtype="bfloat16"))
    assert "1000000" not in shown(kf.zeros((1000, 1000)))
    assert len(shown(kf.zeros((1000, 1000)))) < 500


def test_a_tensor_without_values_shows_what_it_is():
    assert "no values" in shown(kf.empty((3, 4), device="meta"))
    seen = []
    kf.vmap(lambda row: seen.append(shown(row)) or row)(kf.ones((5, 3)))
    assert "no values: it is an example of a batch of 5, level 1" in seen[0]


def test_of_a_device_s_tensor_no_more_than_the_shown_values_are_read():
    values = np.arange(600_000).reshape(3, 200, 1000)
    with delayed_device("late", devices=1) as late:
        x = kf.asarray(values).to(late.devices[0])
        before = late.count("download")
        text = shown(x)
        # The four corners of the two long dimensions, by themselves.
        assert late.count("download") == before + 4
        assert "on late:0" in text
        assert "599999" in text
        on_host = repr(kf.asarray(values))
        assert repr(x) == on_host.removesuffix(")") + ", device='late:0')"
        with np.printoptions(threshold=10**9):
            assert "599500" in repr(x[:, :, ::100])
    assert "599999" in shown(x)


def test_a_tensor_that_cannot_be_read_shows_why():
    late = delayed_device("late", devices=1)
    x = kf.ones(3).to(late.devices[0])
    late.fail_at(1, "download")
    assert "the values can't be read: " in shown(x)
    late.remove()
    assert "1., 1., 1." in shown(x)


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * p for weight, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("colours", [_html.LIGHT, _html.DARK])
def test_words_on_marks_have_the_contrast_that_wcag_asks_for(colours):
    """At least 4.5, by the Web Content Accessibility Guidelines 2.2, success criterion 1.4.3."""
    on = luminance(colours["on"])
    for name in ("good", "bad", "other"):
        low, high = sorted((on, luminance(colours[name])))
        assert (high + 0.05) / (low + 0.05) >= 4.5, name
        assert f"--kf-{name}:{colours[name]}" in _html.STYLE
