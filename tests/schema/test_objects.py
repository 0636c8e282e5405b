"""`kf.Schema`: an operator's schema as data."""

import copy
import pickle

import pytest

import keyfold as kf

TEXT = (
    "demo::f.out(Tensor(a) x, Tensor?[] others, int[2] stride=1, ScalarType? dtype=float32, *, "
    'str mode="sum", Tensor(b! -> c)[] out) -> (Tensor(a) first, int)'
)


def test_a_schema_is_its_text():
    schema = kf.Schema("  demo::f ( Tensor! x,int[2] y = 3 )->()")
    assert schema == "demo::f(Tensor(a0!) x, int[2] y=3) -> ()"
    assert isinstance(schema, str)
    assert repr(schema) == repr(str(schema))
    assert kf.Schema(schema) == schema


def test_arguments_say_everything():
    schema = kf.Schema(TEXT)
    assert (schema.name, schema.overload) == ("demo::f", "out")
    assert kf.Schema("demo::f() -> ()").overload == "default"
    table = [
        (a.name, a.type, a.required, a.default, a.kwarg_only, set(a.alias_sets), a.writes)
        for a in schema.arguments
    ]
    assert table == [
        ("x", "Tensor", True, None, False, {"a"}, False),
        ("others", "Tensor?[]", True, None, False, set(), False),
        ("stride", "int[2]", False, (1, 1), False, set(), False),
        ("dtype", "ScalarType?", False, kf.float32, False, set(), False),
        ("mode", "str", False, "sum", True, set(), False),
        ("out", "Tensor[]", True, None, True, {"b"}, True),
    ]
    assert type(schema.arguments[3].default) is kf.DType
    assert schema.arguments[-1].alias_sets_after == {"c"}
    assert hash(schema.arguments) == hash(kf.Schema(TEXT).arguments)
    assert [a.is_tensor for a in schema.arguments] == [True, True, False, False, False, True]


def test_returns_say_everything():
    first, second = kf.Schema(TEXT).returns
    assert (first.name, first.type, first.alias_sets, first.writes) == (
        "first",
        "Tensor",
        {"a"},
        False,
    )
    assert (second.name, second.type, second.alias_sets) == (None, "int", frozenset())
    assert first.is_tensor
    assert not second.is_tensor
    assert kf.Schema("demo::f() -> ()").returns == ()


def test_operators_have_one():
    schema = kf.ops.aten.sum.dim.schema
    assert isinstance(schema, kf.Schema)
    assert schema.name == "aten::sum"
    dim = schema.arguments[1]
    assert (dim.name, dim.type, dim.required) == ("dim", "int[1]?", True)
    assert kf.ops.aten.copy_.schema.arguments[0].writes
    assert kf.ops.aten.reshape.schema.returns[0].alias_sets == {"a"}
    # Of a name with several overloads it is the default one's.
    assert kf.ops.aten.sum.schema == kf.ops.aten.sum.default.schema


def test_every_operator_of_aten_has_one_that_parses_to_itself():
    count = 0
    for name in kf.ops.aten:
        packet = getattr(kf.ops.aten, name)
        for overload in packet.overloads():
            schema = getattr(packet, overload).schema
            assert kf.Schema(str(schema)) == schema
            assert all(argument.name for argument in schema.arguments)
            count += 1
    assert count > 100


def test_arguments_are_values():
    one, other = kf.Schema(TEXT), kf.Schema(TEXT)
    assert one.arguments == other.arguments
    assert len({*one.returns, *other.returns}) == 2
    assert pickle.loads(pickle.dumps(one)).arguments == one.arguments
    assert copy.deepcopy(one).returns == one.returns
    with pytest.raises(AttributeError):
        one.arguments[0].name = "y"


def test_a_wrong_text_is_refused():
    with pytest.raises(kf.SchemaError, match="expected"):
        kf.Schema("demo::f(Tensor x")
