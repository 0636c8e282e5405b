"""Messages for bad input to expressions and their operators, which work as before afterwards."""

from fractions import Fraction

import numpy as np
import pytest

import keyfold as kf

X = np.linspace(-2.0, 2.0, 6).reshape(3, 2)
pytestmark = pytest.mark.usefixtures("works_on")

# Text with a mark where the caret has to be, and a part of what is said.
MISTAKES = {
    # Names.
    "1 + ‸epx(x)": "unknown function 'epx'; did you mean 'exp'?",
    "‸float(x)": "did you mean 'float64'?",
    "x + ‸x(2)": "'x' is an input, not a function",
    "t = x; ‸t(2)": "'t' is a value, not a function",
    "‸exp + 1": "'exp' is a function; write exp(x)",
    "x + ‸float32": "'float32' is a dtype",
    "‸None": "'None' is a word of Python",
    "‸lambda x: x": "'lambda' is a word of Python",
    # Calls.
    "1 + ‸exp()": "takes 1 argument, none given",
    "‸where(x > 0, x)": "where(condition, a, b) takes 3 arguments, 2 given",
    "‸min(x)": "takes 2 or more arguments, 1 given",
    # Operands and operators.
    "x + ‸": "a value is missing after '+'",
    "‸* x": "a value is missing before '*'",
    "(‸)": "a value is missing after '('",
    "max(x, ‸, y)": "a value is missing after ','",
    "x if ‸else y": "a value is missing after 'if'",
    "table[‸]": "an index is missing between the brackets",
    "x ‸y": "an operator is missing between 'x' and 'y'",
    "2 ‸x": "a product is written with '*'",
    "x == ‸not y": "'not' binds loosely",
    "x ‸if y": "'if' without 'else'",
    "x ‸else y": "'else' without 'if'",
    # Brackets.
    "‸(x + 1": "'(' isn't closed",
    "x + 1‸)": "')' without an open bracket",
    "(x + 1‸]": "'(' is closed by ')', found ']'",
    "x‸, y": "an expression is one value",
    # Other languages.
    "x ‸&& y": "write 'and'",
    "‸!x": "write 'not'",
    "x + y ‸= z": "to compare write '=='",
    "x ‸? y : z": "'a if condition else b'",
    "x ‸\N{MULTIPLICATION SIGN} y": "write '*'",
    "np‸.exp(x)": "functions are called by their plain names",
    "‸'x'": "text in quotes",
    "x + ‸$": "'$' has no meaning here",
    "x ‸\x07": "has no meaning here",
    "x + ‸\N{GRINNING FACE}": "has no meaning here",
    # Numbers.
    "1 + ‸1.2.3": "a number has one point",
    "‸2x": "a product is written 2*x",
    "‸0b12": "binary digits are expected",
    "‸012": "octal ones begin with 0o",
    "‸2j": "complex numbers can't be written",
    "‸1e400": "beyond float64; write inf",
    "‸9223372036854775808": "doesn't fit int64",
    # Division by what is zero.
    "x / ‸0": "division by zero",
    "x / ‸(1 - 1)": "'(1 - 1)' is 0",
    "t = 1 - 1; x / ‸t": "division by zero: 't' is 0",
    "x // ‸0": "'//' by zero",
    "x % ‸(1 - 1.0)": "'%' by zero",
    "divide(x, ‸0 * 2)": "division by zero",
    # Bits of floats.
    "x ‸^ 2.0": "a power is written with '**'",
    "‸~0.5": "works on the bits of whole numbers",
    # Inputs with and without indices, places.
    "x + x‸[1]": "'x' is read element by element",
    "x[1, 2] + ‸x[1]": "'x' is read at 2 indices",
    "index(‸x)": "has to be a whole number",
    "index(‸64)": "is 64",
    # Names of values.
    "‸t = exp(x); x": "'t' isn't used",
    "t = x; ‸t = x + 1; t": "'t' has a value already",
    "‸t = x": "the last line is the result",
    "‸x + 1\nx + 2": "this value isn't used",
    "‸pi = 3; pi": "'pi' is a constant",
    # Nothing.
    "‸": "the text is empty",
    "# only a comment‸": "the text is empty",
}


@pytest.mark.parametrize("marked", MISTAKES)
def test_a_mistake_is_named_and_pointed_at(marked):
    text = marked.replace("‸", "")
    lines = marked.split("\n")
    number = next(at for at, line in enumerate(lines) if "‸" in line)
    column = lines[number].index("‸")
    with pytest.raises(kf.ExpressionError) as caught:
        kf.Expression(text)
    head, line, caret = str(caught.value).split("\n")
    assert MISTAKES[marked] in head
    place = f"line {number + 1}, column {column + 1}" if number else f"column {column + 1}"
    assert head.startswith(f"expression, {place}: ")
    assert line.rstrip() == lines[number].replace("‸", "").replace("\x07", line[2:3]).rstrip()
    assert caret == " " * column + "^"
    assert isinstance(caught.value, ValueError)
    # The same through an operator, and nothing of it stays.
    with pytest.raises(kf.ExpressionError, match=r"elementwise 'bad::op'"):
        kf.elementwise("bad::op(Tensor x, Tensor y, Tensor z) -> Tensor", text)
    with pytest.raises(kf.UnknownOperator):
        kf.get_op("bad::op")


def test_names_that_are_not_declared_or_are_none():
    with pytest.raises(kf.ExpressionError, match=r"unknown name 'bata'; did you mean 'beta'\?"):
        kf.Expression("x * bata", inputs=["x"], params=["beta"])
    with pytest.raises(kf.ExpressionError, match="declared are x"):
        kf.Expression("x + weights", inputs=["x"])
    for names, message in [
        ({"inputs": ["2x"]}, "'2x' isn't a name"),
        ({"inputs": ["x", "x"]}, "another input or parameter has the same name"),
        ({"inputs": ["x"], "params": ["x"]}, "another input or parameter has the same name"),
        ({"inputs": ["e"]}, "'e' is a constant"),
        ({"params": ["lambda"]}, "'lambda' is a word of Python"),
    ]:
        with pytest.raises(kf.InvalidValue, match=message):
            kf.Expression("1", **names)
    with pytest.raises(TypeError):
        kf.Expression(3)


def test_too_long_a_text_is_refused():
    with pytest.raises(kf.ExpressionError, match="at most 16777216"):
        kf.Expression("x" * (2**24 + 1))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(" * 10_000 + "x" + ")" * 10_000, lambda x: x),
        ("-" * 10_000 + "x", lambda x: x),
        ("x + " * 10_000 + "1", lambda x: 10_000 * x + 1),
        ("min(x, " * 10_000 + "x" + ")" * 10_000, lambda x: x),
        ("x - (" * 10_000 + "1" + ")" * 10_000, lambda x: 1 + 0 * x),
        ("x if x > 0 else " * 10_000 + "1", lambda x: np.where(x > 0, x, 1)),
        ("max(" + "x, " * 10_000 + "x)", lambda x: x),
        ("abs(" * 10_000 + "x - 1" + ")" * 10_000, lambda x: np.abs(x - 1)),
    ],
    ids=["brackets", "signs", "sum", "calls", "right", "choices", "arguments", "functions"],
)
def test_depth_10_000_is_computed(text, value):
    x = np.array([-1.0, 0.5, 2.0])
    expression = kf.Expression(text)
    assert np.allclose(expression(x), value(x), rtol=1e-12)
    again = kf.Expression(str(expression))
    assert again == expression


def test_depth_10_000_is_differentiated():
    x = kf.asarray([0.25, 0.5]).requires_grad_()
    kf.Expression("tanh(" * 10_000 + "x" + ")" * 10_000).derivative("x")
    kf.Expression("x + " * 10_000 + "1")(x).sum().backward()
    assert x.grad.tolist() == [10_000.0, 10_000.0]


def test_shapes_that_do_not_broadcast(raises_saying):
    add = kf.Expression("x + y")
    with raises_saying(kf.ShapeError, "[3, 2]", "[3]", "don't broadcast", "axis -1", "2 and 3"):
        add(X, np.ones(3))
    with raises_saying(kf.ShapeError, "aten::add", "don't broadcast"):
        kf.add(X, np.ones(3))
    with raises_saying(kf.ShapeError, "don't broadcast"):
        kf.where(np.ones(4, bool), X, 0.0)
    with raises_saying(kf.ShapeError, "don't broadcast"):
        add(np.ones((0,)), np.ones((2,)))


def test_wrong_and_missing_arguments(raises_saying):
    scale = kf.Expression("x * s + y * r", params=["s", "r"])
    with raises_saying(kf.BindingError, "one array for each of x, y", "1 were given"):
        scale(X, s=1.0, r=2.0)
    with raises_saying(kf.BindingError, "parameter 'r' isn't given", "pass r="):
        scale(X, X, s=1.0)
    with raises_saying(kf.BindingError, "no parameter 'q'", "s, r"):
        scale(X, X, s=1.0, r=1.0, q=1.0)
    with raises_saying(kf.BindingError, "inputs[1]", "must be Tensor", "'text'"):
        scale(X, "text", s=1.0, r=1.0)
    with raises_saying(kf.BindingError, "parameter 's'", "'much'"):
        scale(X, X, s="much", r=1.0)
    with raises_saying(kf.InvalidValue, "1180591620717411303424", "64 bits"):
        scale(X, X, s=2**70, r=1.0)
    with raises_saying(kf.InvalidValue, "no input 'z'", "x, y"):
        scale.derivative("z")
    with raises_saying(kf.BindingError, "dtype of input 'y' isn't given"):
        scale.result_dtype({"x": "int8"})
    with raises_saying(kf.DTypeError, "floot32"):
        scale.result_dtype("floot32")
    with raises_saying(kf.InvalidValue, "layout", "'diagonal'"):
        scale.cuda("float32", layout="diagonal")


def test_a_parameter_that_is_no_number_is_named(raises_saying):
    with raises_saying(kf.BindingError, "'s'", "'much'"):
        kf.Expression("x * s", params=["s"])(X, s="much")


def test_dtypes_that_a_function_is_not_defined_for(raises_saying):
    table = [
        ("x & y", X, "float64", "bools and whole numbers"),
        ("x << y", X > 0, "bool", "whole numbers"),
        ("-x", X > 0, "bool", "~x"),
        ("x - y", X > 0, "bool", "convert"),
        ("x < y", X + 1j, "complex128", "no order"),
        ("floor(x)", X + 1j, "complex128", "no order"),
        ("erf(x)", X + 1j, "complex128", "real numbers"),
        ("silu(x)", X + 1j, "silu isn't", "complex128", "no order"),
        ("logaddexp(x, y)", X + 1j, "logaddexp isn't", "complex128", "no order"),
        ("where(x, y, 1)", X, "float64", "has to be bool"),
        ("float32(x)", X + 1j, "complex128", "imaginary"),
        ("table[x]", X, "float64", "has to be whole"),
    ]
    for text, x, *parts in table:
        expression = kf.Expression(text, inputs=["x", "y", "table"])
        with raises_saying(kf.DTypeError, *parts):
            expression(x, x, x.ravel())
    for number, dtype in [(300, np.uint8), (-1, np.uint16), (2**31, np.int32)]:
        with raises_saying(kf.InvalidValue, str(number), "out of range", np.dtype(dtype).name):
            kf.Expression("x + s", params=["s"])(np.ones(2, dtype), s=number)
        with raises_saying(kf.InvalidValue, str(number), "out of range"):
            kf.Expression(f"x + ({number})")(np.ones(2, dtype))


def test_negative_powers_of_whole_numbers(raises_saying):
    ints = np.array([[1, 2], [3, -4]])
    for call in [
        lambda: kf.pow(ints, -1),
        lambda: kf.pow(ints, ints),
        lambda: kf.pow(2, ints),
        lambda: kf.pow(ints, ints, out=np.empty((2, 2), np.int64)),
        lambda: kf.pow(2, ints, out=np.empty((2, 2), np.int64)),
        lambda: kf.Expression("x ** y")(ints, ints),
        lambda: kf.Expression("x ** n", params=["n"])(ints, n=-2),
        lambda: kf.Expression("x ** -2")(ints),
        lambda: kf.asarray(ints) ** -1,
    ]:
        with raises_saying(kf.InvalidValue, "negative", "fraction"):
            call()
    assert np.array_equal(kf.pow(ints, 0), np.ones((2, 2)))
    # Far from the start, and in a part that another thread computes.
    many = np.ones(3_000_000, np.int64)
    many[-1] = -1
    with raises_saying(kf.InvalidValue, "negative"):
        kf.pow(many, many)


def test_negative_powers_name_operator_and_argument_with_out_too(raises_saying):
    ints, out = np.array([1, -2]), np.empty(2, np.int64)
    with raises_saying(kf.InvalidValue, "aten::pow", "'x2'", "-2"):
        kf.pow(ints, ints, out=out)


@pytest.mark.parametrize("at", [0, 5, 999])
@pytest.mark.parametrize(("index", "size"), [(7, 7), (-8, 7), (2**40, 7), (0, 0)])
def test_an_index_out_of_range_names_operator_index_and_size(at, index, size, ns, raises_saying):
    places = np.zeros(1000, np.int64)
    places[at] = index
    pick = kf.Expression("table[place]", inputs=["place", "table"])
    said = [f"index {index} ", "dimension 0", "'table'", f"size {size}"]
    with raises_saying(kf.IndexOutOfRange, "keyfold::elementwise", *said):
        pick(places, np.ones(size))
    made = kf.elementwise(f"{ns}::pick(Tensor place, Tensor table) -> Tensor", "table[place]")
    with raises_saying(kf.IndexOutOfRange, f"{ns}::pick", *said):
        made(places, np.ones(size))
    made.remove()


def test_an_index_out_of_range_says_the_inputs_name(raises_saying):
    pick = kf.Expression("table[place]", inputs=["place", "table"])
    with raises_saying(kf.IndexOutOfRange, "'table'"):
        pick(np.array([3]), np.ones(3))
    with raises_saying(kf.ShapeError, "'table'"):
        pick(np.array([3]), np.ones((3, 3)))


def test_a_table_of_another_rank(raises_saying):
    pick = kf.Expression("table[place]", inputs=["place", "table"])
    with raises_saying(kf.ShapeError, "'table'", "has 2"):
        pick(np.array([1]), np.ones((3, 3)))
    with raises_saying(kf.NotSupported, "'table'", "read at computed indices"):
        pick.derivative("table")
    x = kf.asarray(np.ones(3)).requires_grad_()
    with raises_saying(kf.GradientError, "'table'", "read at computed indices"):
        pick(np.array([1]), x).sum().backward()


def outs(dtype="float64"):
    """Arrays that take no result of shape (3, 2), and what is wrong with them."""
    plain = np.zeros((3, 2), dtype)
    frozen = plain.copy()
    frozen.flags.writeable = False
    windows = np.lib.stride_tricks.sliding_window_view(np.zeros(4), 2, writeable=True)
    return [
        (np.zeros((3, 3)), kf.ShapeError, ["'out'", "[3, 3]", "[3, 2]"]),
        (np.zeros((1, 3, 2)), kf.ShapeError, ["'out'", "[1, 3, 2]"]),
        (np.zeros(()), kf.ShapeError, ["'out'", "[]"]),
        (plain.astype(np.int64), kf.DTypeError, ["float64", "int64"]),
        (plain.astype(bool), kf.DTypeError, ["float64", "bool"]),
        (frozen, kf.ReadOnlyError, ["'out'", "read-only"]),
        (windows, kf.InvalidValue, ["'out'", "share memory", "[1, 1]"]),
        (
            np.lib.stride_tricks.as_strided(np.zeros(2), (3, 2), (0, 8)),
            kf.InvalidValue,
            ["'out'", "share memory"],
        ),
    ]


@pytest.mark.parametrize("which", range(len(outs())))
def test_what_cannot_take_a_result(which, ns, raises_saying):
    out, error, parts = outs()[which]
    before = out.copy()
    made = kf.elementwise(f"{ns}::double(Tensor x) -> Tensor", "2 * x")
    for call in [
        lambda: made(X, out=out),
        lambda: kf.Expression("2 * x")(X, out=out),
        lambda: kf.exp(X, out=out),
        lambda: kf.multiply(X, 2.0, out=out),
        lambda: kf.clip(X, 0.0, 1.0, out=out),
    ]:
        with raises_saying(error, *parts):
            call()
    assert np.array_equal(out, before), "nothing was written"
    with raises_saying(kf.BindingError, "'out'"):
        made(X, out=[0.0])
    with raises_saying(kf.BindingError, "'out'"):
        made(X, out=1.0)
    made.remove()


def test_too_many_dimensions(raises_saying):
    deep = np.zeros((1,) * 64)
    assert kf.Expression("x + y")(deep, np.ones(3)).shape == (1,) * 63 + (3,)
    assert kf.add(deep, deep.T).ndim == 64
    with raises_saying(kf.ShapeError, "65 dimensions are too many", "at most 64"):
        kf.empty((1,) * 65)
    with raises_saying(kf.ShapeError, "65 dimensions"):
        kf.vmap(lambda x: x + deep)(np.ones(3))


def test_too_many_inputs(raises_saying):
    text = " + ".join(f"x{i}" for i in range(300))
    with raises_saying(kf.NotSupported, "64 inputs at most, and 300 are given", "in parts"):
        kf.Expression(text)(*[np.ones(2)] * 300)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("op(Tensor[] x) -> Tensor", r"'x' is of type Tensor\[\]"),
        ("op(Tensor? x) -> Tensor", r"'x' is of type Tensor\?"),
        ("op(Tensor x, str s) -> Tensor", "'s' is of type str"),
        ("op(Tensor x, int[] s) -> Tensor", r"'s' is of type int\[\]"),
        ("op(Tensor x, float? s=None) -> Tensor", r"'s' is of type float\?"),
        ("op(Tensor x, ScalarType d) -> Tensor", "'d' is of type ScalarType"),
        ("op(Tensor x) -> (Tensor, Tensor)", "has one result"),
        ("op(Tensor x) -> int", "returns int, not Tensor"),
        ("op(Tensor x) -> ()", "has one result"),
        ("op(int x) -> Tensor", "no Tensor argument"),
        ("op(Tensor x) -> Tensor(a!)", "what it writes to is what it returns"),
        ("op(Tensor(a!) x, Tensor(b!) y) -> Tensor(a!)", "writes to two arguments"),
    ],
)
def test_schemas_that_no_expression_has(schema, message, ns):
    with pytest.raises(kf.RegistrationError, match=rf"elementwise '{ns}::op': .*{message}"):
        kf.elementwise(f"{ns}::{schema}", "x")
    with pytest.raises(kf.UnknownOperator):
        kf.get_op(f"{ns}::op")


def test_operators_that_are_none(ns):
    with pytest.raises(kf.SchemaError, match="column"):
        kf.elementwise(f"{ns}::op(Tensor x -> Tensor", "x")
    with pytest.raises(kf.SchemaError, match="no namespace"):
        kf.elementwise("op(Tensor x) -> Tensor", "x")
    with pytest.raises(kf.UnknownOperator, match="nope"):
        kf.elementwise(f"{ns}::nope", "x")
    with pytest.raises(TypeError, match="not int 3"):
        kf.elementwise(3, "x")
    with pytest.raises(TypeError):
        kf.elementwise(f"{ns}::op(Tensor x) -> Tensor", 3)
    with pytest.raises(kf.UnknownOperator):
        kf.get_op(f"{ns}::op")
    with pytest.raises(kf.ExpressionError, match="unknown name 'z'; declared are x"):
        kf.elementwise(f"{ns}::op(Tensor x) -> Tensor", "x + z")


def test_a_reduction_says_which_axis_is_named_twice(raises_saying):
    with raises_saying(kf.InvalidValue, "aten::sum", "twice", "[0, 0]"):
        kf.sum(X, axis=(0, 0))
    with pytest.raises(kf.InvalidValue) as caught:
        kf.sum(X, axis=(0, 0))
    assert "Some(" not in str(caught.value)
    with raises_saying(kf.IndexOutOfRange, "aten::sum", "axis 2", "2 dimensions"):
        kf.sum(X, axis=2)


def test_a_numpy_scalar_takes_no_result(raises_saying):
    with raises_saying(kf.ReadOnlyError, "argument 'out'", "float64", "np.array"):
        kf.add(np.ones(()), np.ones(()), out=np.float64(0))
    out = np.array(0.0)
    assert kf.add(np.ones(()), np.ones(()), out=out) is out
    assert out == 2.0


def test_a_parameter_has_another_name_than_out(raises_saying):
    with raises_saying(kf.InvalidValue, "'out'"):
        kf.Expression("x + out", params=["out"])


def test_what_is_written_to_is_called_as_in_the_schema(ns, raises_saying):
    add = kf.elementwise(f"{ns}::ipb(Tensor(a!) x, Tensor y) -> Tensor(a!)", "x + y")
    into = kf.elementwise(f"{ns}::into(Tensor y, *, Tensor(a!) target) -> Tensor(a!)", "y + 1")
    frozen, windows = np.zeros((3, 4)), np.lib.stride_tricks.as_strided
    frozen.flags.writeable = False
    twice = windows(np.zeros(4), (3, 4), (0, 8))
    try:
        y = np.zeros((3, 4))
        for call, name in [(lambda x: add(x, y), "'x'"), (lambda x: into(y, target=x), "'target'")]:
            with raises_saying(kf.ShapeError, f"argument {name}", "[3, 1]"):
                call(np.zeros((3, 1)))
            with raises_saying(kf.ReadOnlyError, f"argument {name}"):
                call(frozen)
            with raises_saying(kf.InvalidValue, f"argument {name}", "share memory"):
                call(twice)
            with raises_saying(kf.DTypeError, f"argument {name}", "int64"):
                call(np.zeros((3, 4), np.int64))
    finally:
        add.remove()
        into.remove()


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        ({"text": None}, kf.BindingError, ["'text'", "str", "not None"]),
        ({"text": 3}, kf.BindingError, ["'text'", "str", "not int 3"]),
        ({"text": b"x"}, kf.BindingError, ["'text'", "str", "bytes"]),
        ({"text": "x\ud800"}, kf.InvalidValue, ["'text'", "surrogate"]),
        ({"text": "x", "inputs": "xy"}, kf.BindingError, ["'inputs'", '["x", "y"]', "'xy'"]),
        ({"text": "x", "params": "ab"}, kf.BindingError, ["'params'", '["x", "y"]', "'ab'"]),
        ({"text": "x", "inputs": 3}, kf.BindingError, ["'inputs'", "sequence of names", "int 3"]),
        ({"text": "x", "inputs": ["x", 1]}, kf.BindingError, ["'inputs'", "item 1", "int 1"]),
        ({"text": "x", "params": [None]}, kf.BindingError, ["'params'", "item 0", "None"]),
        ({"text": "x", "inputs": ["\udfff"]}, kf.InvalidValue, ["'inputs'", "item 0", "surrogate"]),
    ],
)
def test_arguments_of_an_expression_are_named(arguments, kind, said, raises_saying):
    arguments = dict(arguments)
    text = arguments.pop("text")
    with raises_saying(kind, "Expression", *said):
        kf.Expression(text, **arguments)


def test_names_come_from_any_iterable():
    for names in (["x", "k"], ("x", "k"), {"x": 1, "k": 2}, iter(["x", "k"])):
        assert kf.Expression("x * k", inputs=names).inputs == ("x", "k")


def test_calls_of_an_expression_say_what_is_wrong(raises_saying):
    expression = kf.Expression("x * k", params=["k"])
    x = np.ones(2)
    with raises_saying(kf.BindingError, "one array for each of x", "2 were given"):
        expression(x, x, k=1)
    with raises_saying(kf.BindingError, "'k' isn't given", "pass k="):
        expression(x)
    with raises_saying(kf.BindingError, "no parameter 'q'", "k"):
        expression(x, k=1, q=2)
    for wrong, said in [("1", "str"), (None, "None"), ([1], "list"), (Fraction(1, 2), "Fraction")]:
        with raises_saying(kf.BindingError, "'k' has to be a number", said):
            expression(x, k=wrong)
    for array in (x, kf.asarray(x), np.array(2.0)):
        with raises_saying(kf.BindingError, "'k' has to be a number", "float64[", "inputs"):
            expression(x, k=array)
    with raises_saying(kf.InvalidValue, "'k' has to be a number", "64 bits"):
        expression(x, k=10**30)
    with raises_saying(kf.BindingError, "takes no arrays", "1 were given"):
        kf.Expression("index")(x)
    with raises_saying(kf.BindingError, "argument 'input'", "not int 1"):
        expression.derivative(1)
    with raises_saying(kf.BindingError, "inputs"):
        expression("text", k=1)
