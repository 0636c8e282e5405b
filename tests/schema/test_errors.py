"""Schema texts that are accepted, and the caret under the mistake in those that aren't."""

import pytest

import keyfold as kf


@pytest.mark.parametrize(
    "schema",
    [
        "f() -> ()",
        "f(Tensor x) -> Tensor",
        "ns::f(Tensor x) -> Tensor",
        "ns::f.over(Tensor self, Tensor(a!) out, *, Scalar alpha=1) -> (Tensor, Tensor)",
        'ns::g(int[2] stride=1, Tensor? bias=None, str mode="sum") -> Tensor',
        "ns::h(Device? device=None, ScalarType? dtype=None, Generator? g=None) -> Tensor",
        "ns::lists(Tensor[] xs, Tensor?[] ys, int[] n=[], bool flag=False) -> Tensor[]",
        "ns::numbers(complex c, int i=-1, float f=2.5, bool b=True) -> (int, float, bool)",
    ],
)
def test_a_schema_prints_as_it_is_written(d, schema):
    handle = d.define(schema)
    assert d.get_op(handle.name).schema == schema


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("f(Tensor x", 10, ")"),
        ("f(Tensr x) -> Tensor", 2, "Tensor"),
        ("f(Tensor x) Tensor", 12, "->"),
        ("f(Tensor x) ->", 14, "type"),
        ("f(Tensor) -> Tensor", 8, "name"),
        ("f(Tensor x, Tensor x) -> Tensor", 19, "x"),
        ("f(int a=1, int b) -> int", 15, "default"),
        ("f(*, ) -> int", 5, ""),
        ('f(int a="x") -> int', 8, "int"),
        ("f(int[x] a) -> int", 6, ""),
        ("f(Tensor x) -> Tensor out extra", 26, "extra"),
        ("1f(Tensor x) -> Tensor", 0, "name"),
        ("a::b::c(Tensor x) -> Tensor", 4, ""),
        ('f(str s="x) -> int', 8, ""),
        ("f(Tensor x, *, *, int k) -> int", 15, "*"),
        ("f(Tensor(a! x) -> Tensor", 12, ")"),
        ("", 0, ""),
        ("f", 1, "("),
    ],
)
def test_a_mistake_has_a_caret_under_its_column(d, text, column, says):
    with pytest.raises(kf.SchemaError) as raised:
        d.define(text)
    message = str(raised.value)
    lines = message.splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.strip() and not line.strip("^~ ")]
    source, caret = lines[at - 1], lines[at]
    offset = source.index(text) if text else len(source)
    assert caret.index("^") - offset == column, message
    assert says in message
    assert isinstance(raised.value, ValueError)
    assert d.operator_names() == []


def test_a_default_that_is_no_value_of_its_type(d, raises_saying):
    with raises_saying(ValueError, "int", "2.5"):
        d.define("f(Tensor x, int n=2.5) -> Tensor")


def test_a_type_that_nearly_exists_is_offered(d, raises_saying):
    with raises_saying(ValueError, "Tensr", "Tensor"):
        d.define("f(Tensr x) -> Tensor")


def test_the_process_wide_dispatcher_wants_a_namespace(raises_saying):
    with raises_saying(ValueError, "plain_name", "namespace"):
        kf.define("plain_name(Tensor x) -> Tensor")


def test_a_schema_is_text(d):
    with pytest.raises(TypeError):
        d.define(3)


def test_the_dispatcher_works_after_a_mistake(d):
    with pytest.raises(kf.SchemaError):
        d.define("f(Tensor x) -> ")
    d.define("f(Tensor x) -> Tensor")
    d.impl("f", "CPU", lambda x: x)
    assert d.operator_names() == ["f"]
