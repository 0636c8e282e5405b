"""Values that are easily wrong: odd places in memory, the ends of the range, two roundings."""

import numpy as np
import pytest

import keyfold as kf


def test_a_choice_of_complex_numbers_that_lie_anywhere():
    """complex64 is aligned like its parts: to 4 bytes, which is half its size."""
    memory = bytearray(8 * 5000 + 4)
    x = np.frombuffer(memory, np.complex64, offset=4)
    x[:] = np.arange(5000) + 1j
    assert x.ctypes.data % 8 == 4 or np.frombuffer(memory, np.uint8).ctypes.data % 8 == 4
    y = np.where(np.arange(5000) % 3 == 0, x, -x).astype(np.complex64)
    got = np.asarray(kf.Expression("where(x == y, x, 2 * y)")(x, y))
    assert np.array_equal(got, np.where(x == y, x, 2 * y))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lengths_up_to_the_greatest_number(dtype):
    most = np.finfo(dtype).max
    x = np.array([most, most, 1, np.nextafter(most, 0, dtype=dtype), most / 2, -most], dtype)
    y = np.array([1, 0, most, 1, most / 2, 1], dtype)
    got = np.asarray(kf.Expression("hypot(x, y)")(x, y))
    assert np.allclose(got, np.hypot(x, y), rtol=2 * np.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize(
    ("dtype", "given", "nearest"),
    [
        ("bfloat16", 317.0000001, 318),
        ("bfloat16", 317.0, 316),
        ("bfloat16", 316.9999999, 316),
        ("float16", 2049.0000001, 2050),
        ("float16", 2049.0, 2048),
        ("float16", -2049.0000001, -2050),
    ],
)
def test_numbers_become_halves_in_one_rounding(dtype, given, nearest):
    assert kf.full((1,), given, dtype=dtype).item() == nearest
    tensor = kf.zeros((1,), dtype=dtype)
    tensor[0] = given
    assert tensor.item() == nearest
    assert kf.asarray(np.array([given]), dtype=getattr(kf, dtype)).item() == nearest
