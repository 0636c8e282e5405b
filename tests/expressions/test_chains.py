"""Chains of arithmetic, which the CPU computes in one go over contiguous arrays of any length."""

import numpy as np
import pytest

import keyfold as kf

# Each operation on the value so far, `x`, and an operand, `y`: in an expression, and in NumPy.
OPERATIONS = {
    "({x} + {y})": lambda x, y: x + y,
    "({x} - {y})": lambda x, y: x - y,
    "({y} - {x})": lambda x, y: y - x,
    "({x} * {y})": lambda x, y: x * y,
    "({x} / {y})": lambda x, y: x / y,
    "({y} / {x})": lambda x, y: y / x,
    "minimum({x}, {y})": np.minimum,
    "maximum({x}, {y})": np.maximum,
    "abs({x})": lambda x, y: np.abs(x),
    "(-{x})": lambda x, y: -x,
    "sqrt({x})": lambda x, y: np.sqrt(x),
}
# Around the elements of a block and of a tile, of several blocks, and of several threads.
LENGTHS = [1, 31, 511, 1023, 1024, 1025, 1087, 2048, 5003, 70_001, 400_009]


def array(random, count, dtype, first):
    """Numbers that are rarely equal, some of them special, from an element of memory on."""
    values = random.uniform(-4, 4, count + first).astype(dtype)
    special = [np.nan, np.inf, -np.inf, np.finfo(dtype).tiny / 8, np.finfo(dtype).max, 0.0, -0.0]
    places = random.integers(0, count + first, max(1, count // 50))
    values[places] = random.choice(np.array(special, dtype), places.size)
    return values[first:]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("count", LENGTHS)
def test_a_chain_has_the_bits_of_its_operations(count, dtype):
    random = np.random.default_rng(count)
    for length in (3, 8, 17, 40):
        arrays = {name: array(random, count, dtype, int(random.integers(4))) for name in "xab"}
        operands = arrays | {
            repr(number): np.dtype(dtype).type(number) for number in (0.25, -0.75, 1.5, 3.0)
        }
        text, expected = "x", arrays["x"]
        own = {name: kf.asarray(value) for name, value in arrays.items()}
        one_by_one = own["x"]
        with np.errstate(all="ignore"):
            for _ in range(length):
                form = list(OPERATIONS)[random.integers(len(OPERATIONS))]
                name = list(operands)[random.integers(1, len(operands))]
                text = form.format(x=text, y=name)
                expected = OPERATIONS[form](expected, operands[name])
                step = form.format(x="_so_far", y=name)
                one_by_one = eval(step, vars(kf) | own | {"_so_far": one_by_one})
        chain = kf.Expression(text, inputs=["x", "a", "b"])
        given = [arrays[name].copy() for name in "xab"]
        result = np.asarray(chain(*arrays.values()))
        assert result.dtype == dtype
        assert np.array_equal(result, expected, equal_nan=True), text
        # Of zeros of both signs NumPy may return another one as the minimum than eager calls.
        numbers = ~np.isnan(result)
        assert same(result[numbers], one_by_one.numpy()[numbers]), text
        assert all(map(same, given, arrays.values()))


def same(a, b):
    """Whether all bytes are equal."""
    return a.tobytes() == b.tobytes()
