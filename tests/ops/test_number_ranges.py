"""Whole numbers that a dtype can't hold: an error wherever one would be made of them."""

import numpy as np
import pytest

import keyfold as kf

WHOLE = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]


def limits(dtype):
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


class TestAsarray:
    @pytest.mark.parametrize("dtype", WHOLE)
    def test_the_ends_are_held_and_what_is_beyond_them_is_refused(self, dtype, raises_saying):
        low, high = limits(dtype)
        for value in (low, high):
            assert kf.asarray(value, dtype=dtype).item() == value
            assert kf.asarray([[value]], dtype=dtype).tolist() == [[value]]
        for value in (low - 1, high + 1):
            for given in (value, [0, value], [[0], [value]], (value,)):
                with raises_saying(
                    kf.InvalidValue, "asarray()", str(value), dtype, f"{low} to {high}"
                ):
                    kf.asarray(given, dtype=dtype)

    def test_floats_are_cut_off_and_checked(self, raises_saying):
        assert kf.asarray([1.9, -0.5], dtype="uint8").tolist() == [1, 0]
        for value in (300.0, -1.5, float("nan"), float("inf"), 1e30):
            with raises_saying(kf.InvalidValue, "uint8", "0 to 255"):
                kf.asarray([1.0, value], dtype="uint8")

    def test_beyond_64_bits(self, raises_saying):
        for given in (2**64, [1, 2**64], -(2**63) - 1):
            with raises_saying(kf.InvalidValue, "asarray()", "64 bits"):
                kf.asarray(given)
            with raises_saying(kf.InvalidValue, "int64"):
                kf.asarray(given, dtype="int64")
        assert kf.asarray([1, 2**64], dtype="float64").tolist() == [1.0, 2.0**64]
        with raises_saying(kf.InvalidValue, "asarray()"):
            kf.asarray(10**400, dtype="float64")

    def test_arrays_are_converted_as_ever(self):
        assert kf.asarray(np.array([300]), dtype="uint8").tolist() == [44]
        assert kf.asarray(np.int64(3), dtype="uint8").tolist() == 3
        assert kf.asarray([], dtype="uint8").tolist() == []
        assert kf.asarray(True, dtype="uint8").item() == 1
        assert kf.asarray(2, dtype="bool").item() is True


def test_every_other_way_refuses(raises_saying):
    u = kf.asarray([1, 2, 3], dtype="uint8")
    tries = [
        lambda: kf.full(2, 300, dtype="uint8"),
        lambda: kf.full_like(u, 300),
        lambda: u + 300,
        lambda: 300 - u,
        lambda: u * -1,
        lambda: u**300,
        lambda: 300**u,
        lambda: kf.where(u > 1, u, 300),
        lambda: kf.where(u > 1, 300, u),
        lambda: kf.clip(u, 0, 300),
        lambda: kf.maximum(u, 300),
        lambda: kf.ops.aten.bitwise_and(u, 300),
        lambda: kf.ops.aten.remainder(u, 300),
        lambda: kf.ops.aten.floor_divide(u, -1),
        lambda: kf.ops.aten.fill_(u, 300),
        lambda: u.__setitem__(0, 300),
        lambda: u.__setitem__([0, 1], 300),
        lambda: u.__setitem__(u > 1, -1),
        lambda: u.__iadd__(300),
    ]
    for attempt in tries:
        with raises_saying(kf.InvalidValue, "out of range for dtype uint8", "0 to 255"):
            attempt()
    assert u.tolist() == [1, 2, 3]
    # Comparisons are exact: nothing is made of the number.
    assert (u < 300).all()
    assert (u > -1).all()
    assert not (u == 256 + 1).any()


class TestArange:
    @pytest.mark.parametrize("dtype", [*WHOLE, "float16", "float32", "float64"])
    @pytest.mark.parametrize(
        "numbers", [(5,), (2, 9, 3), (9, 2, -3), (0,), (3, 3), (5, 0), (1, 100, 50)]
    )
    def test_every_dtype_counts_as_numpy(self, numbers, dtype):
        made = kf.arange(*numbers, dtype=dtype)
        expected = np.arange(*numbers, dtype=dtype)
        assert made.dtype == dtype
        assert np.array_equal(made.numpy(), expected)
        assert kf.arange(*numbers, dtype=dtype, device="meta").shape == expected.shape

    def test_bfloat16(self):
        assert kf.arange(3, dtype="bfloat16").to("float32").tolist() == [0.0, 1.0, 2.0]

    @pytest.mark.parametrize("dtype", WHOLE)
    def test_the_ends_of_a_dtype(self, dtype):
        low, high = limits(dtype)
        if high < 2**63:
            assert kf.arange(high - 2, high + 1, dtype=dtype).tolist() == [high - 2, high - 1, high]
        assert kf.arange(low, low + 2, dtype=dtype).tolist() == [low, low + 1]
        if low > -(2**63):
            assert kf.arange(low + 1, low - 1, -1, dtype=dtype).tolist() == [low + 1, low]

    @pytest.mark.parametrize(
        ("numbers", "dtype", "value"),
        [
            ((2**63, 2**63 + 3), None, 2**63),
            ((2**63 - 1, 2**63 + 1), None, 2**63),
            ((2**63, 2**63 + 3), "int64", 2**63),
            ((257,), "uint8", 256),
            ((-1, 3), "uint8", -1),
            ((2, -2, -1), "uint16", -1),
            ((-1, 3), "uint64", -1),
            ((0, 400, 200), "int8", 200),
        ],
    )
    def test_numbers_that_dont_fit_are_refused(self, numbers, dtype, value, raises_saying):
        wanted = dtype or "int64"
        with raises_saying(kf.InvalidValue, "aten::arange", str(value), f"dtype {wanted}"):
            kf.arange(*numbers, dtype=dtype)

    def test_beyond_int64(self):
        big = 2**63
        assert kf.arange(big, big + 3, dtype="uint64").tolist() == [big, big + 1, big + 2]
        assert kf.arange(big + 2, big - 2, -2, dtype="uint64").tolist() == [big + 2, big]
        assert kf.arange(0, 2**64 - 1, 2**62, dtype="uint64").tolist() == [
            i * 2**62 for i in range(4)
        ]
        assert kf.arange(big, big + 3, dtype="float64").tolist() == [float(big)] * 3
        assert kf.arange(-(2**63), 2**63 - 1, 2**62).tolist() == [
            -(2**63) + i * 2**62 for i in range(4)
        ]
        # Nothing to count: nothing to hold.
        assert kf.arange(5, 0, dtype="uint8").size == 0

    def test_too_many_numbers(self, raises_saying):
        for numbers in ((1e30,), (-(2**63), 2**63 - 1), (0, 2**64 - 1)):
            with raises_saying(kf.ShapeError, "aten::arange", "too large"):
                kf.arange(*numbers, dtype="uint64" if numbers[-1] == 2**64 - 1 else None)
        with raises_saying(kf.InvalidValue, "aten::arange", "comes to 2", "dtype bool"):
            kf.arange(3, dtype="bool")
        with raises_saying(kf.InvalidValue, "arange()", "64 bits"):
            kf.arange(2**70)


def test_sizes_that_cant_be(raises_saying):
    for make in (kf.zeros, kf.ones, kf.empty):
        with raises_saying(kf.InvalidValue, "keyfold.", str(2**63), "int64"):
            make(2**63)
        with raises_saying(kf.ShapeError, "negative"):
            make(-1)
        with raises_saying(kf.ShapeError, "too large"):
            make((2**62, 2**62))
