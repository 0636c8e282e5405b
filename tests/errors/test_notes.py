"""An exception from a Python kernel keeps its type and gains one note."""

import numpy as np
import pytest

import keyfold as kf


class Mine(Exception):
    """An exception of the user's own, with a constructor that can't be called again blindly."""

    def __init__(self, code, *, detail):
        super().__init__(code)
        self.detail = detail


@pytest.mark.parametrize(
    "error",
    [
        Mine(3, detail="d"),
        KeyError("k"),
        ValueError("v"),
        StopIteration(1),
        KeyboardInterrupt(),
        SystemExit(3),
        AssertionError(),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
        kf.ShapeError("of our own"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_exception_is_the_very_object(d, word, error):
    def fails(x):
        raise error

    d.define("ns::f(Tensor x) -> Tensor")
    d.impl("ns::f", "CPU", fails)
    if hasattr(error, "__notes__"):
        del error.__notes__
    with pytest.raises(type(error)) as raised:
        d.call("ns::f", word("x"))
    assert raised.value is error
    assert error.__notes__ == ["keyfold: raised in ns::f: CPU"]
    assert any(frame.name == "fails" for frame in raised.traceback), "with its traceback"


def layered(d, word, *keys):
    """`ns::f` whose CPU kernel fails under layers at `keys` that pass calls on."""

    def fails(x):
        raise KeyError("deep")

    d.define("ns::f(Tensor x) -> Tensor")
    d.impl("ns::f", "CPU", fails)
    op = d.get_op("ns::f")
    for key in keys:

        @d.impl("ns::f", key, with_keyset=True)
        def layer(keyset, x, key=key):
            return op.redispatch(keyset.remove(key), x)

    return op, word("x", "CPU", *keys)


def test_one_note_with_the_whole_path(d, word):
    op, x = layered(d, word, "Tracer", "Profiler", "Autograd")
    with pytest.raises(KeyError) as raised:
        op(x)
    assert raised.value.__notes__ == [
        "keyfold: raised in ns::f: Tracer > Profiler > Autograd > CPU"
    ]


def test_the_path_of_nested_operators(d, word):
    op, x = layered(d, word, "Tracer")
    d.define("ns::outer(Tensor x) -> Tensor")
    d.impl("ns::outer", "CPU", lambda y: op(x))
    with pytest.raises(KeyError) as raised:
        d.call("ns::outer", word("y"))
    (note,) = raised.value.__notes__
    assert note.startswith("keyfold: raised in ns::")
    for part in ["ns::outer", "ns::f", "CPU", "Tracer"]:
        assert part in note


def test_the_users_own_notes_stay(d, word):
    def fails(x):
        error = KeyError("x")
        error.add_note("mine")
        raise error

    d.define("ns::f(Tensor x) -> Tensor")
    d.impl("ns::f", "CPU", fails)
    with pytest.raises(KeyError) as raised:
        d.call("ns::f", word("x"))
    assert raised.value.__notes__ == ["mine", "keyfold: raised in ns::f: CPU"]


def test_an_exception_raised_again_gains_no_second_note(d, word):
    error = KeyError("again")

    def fails(x):
        raise error

    d.define("ns::f(Tensor x) -> Tensor")
    d.impl("ns::f", "CPU", fails)
    for _ in range(3):
        with pytest.raises(KeyError):
            d.call("ns::f", word("x"))
    assert len(error.__notes__) == 1


def test_a_chained_exception_keeps_its_cause(d, word):
    def fails(x):
        try:
            {}["a"]
        except KeyError as error:
            raise ValueError("b") from error

    d.define("ns::f(Tensor x) -> Tensor")
    d.impl("ns::f", "CPU", fails)
    with pytest.raises(ValueError) as raised:
        d.call("ns::f", word("x"))
    assert isinstance(raised.value.__cause__, KeyError)
    assert len(raised.value.__notes__) == 1
    assert not hasattr(raised.value.__cause__, "__notes__")


def test_a_layer_may_catch_and_answer(d, word):
    op, _ = layered(d, word)
    answer = word("answer")

    @d.impl("ns::f", "Tracer", with_keyset=True)
    def catches(keyset, x):
        try:
            return op.redispatch(keyset.remove("Tracer"), x)
        except KeyError:
            return answer

    assert op(word("x", "CPU", "Tracer")) is answer


def test_a_fallbacks_exception_is_noted(d, word):
    def fails(op, keyset, args, kwargs):
        raise KeyError(op.name)

    d.define("ns::f(Tensor x) -> Tensor")
    d.fallback("Tracer", fails)
    with pytest.raises(KeyError) as raised:
        d.call("ns::f", word("x", "CPU", "Tracer"))
    assert raised.value.__notes__ == ["keyfold: raised in ns::f: Tracer"]


def test_an_array_classs_own_exception_passes_through(d):
    class Awkward:
        pass

    def keys(instance):
        raise Mine(1, detail="keys")

    kf.register_array_type(Awkward, keys)
    d.define("ns::f(Tensor x) -> Tensor")
    with pytest.raises(Mine) as raised:
        d.call("ns::f", Awkward())
    assert raised.value.detail == "keys"


def test_the_engines_own_errors_gain_no_note_outside_kernels(d):
    d.define("ns::f(Tensor x) -> Tensor")
    with pytest.raises(kf.MissingKernel) as raised:
        d.call("ns::f", np.ones(1))
    assert not hasattr(raised.value, "__notes__")
