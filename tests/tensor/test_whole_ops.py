"""`//`, `%`, `divmod`, shifts and bits of tensors, and their in-place forms, against NumPy."""

import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyfold as kf

SIGNED = ["int8", "int16", "int32", "int64"]
WHOLE = [*SIGNED, "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float32", "float64"]
QUOTIENTS = [operator.floordiv, operator.mod]
SHIFTS = [operator.lshift, operator.rshift]
BITS = [operator.and_, operator.or_, operator.xor]
IN_PLACE = {
    operator.floordiv: operator.ifloordiv,
    operator.mod: operator.imod,
    operator.lshift: operator.ilshift,
    operator.rshift: operator.irshift,
    operator.and_: operator.iand,
    operator.or_: operator.ior,
    operator.xor: operator.ixor,
}
SPECIAL = [0.0, -0.0, 1.5, -1.5, 3.0, -3.0, 1e30, np.inf, -np.inf, np.nan]


def samples(dtype, shape=(6, 5), seed=0):
    random = np.random.default_rng(seed)
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if dtype in FLOATS:
        return random.normal(size=shape).astype(dtype)
    info = np.iinfo(dtype)
    made = random.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    made.ravel()[:5] = [0, 1, info.max, info.min, info.max]
    return made


def check(result, expected):
    assert isinstance(result, kf.Tensor)
    assert result.shape == expected.shape
    assert str(result.dtype) == str(expected.dtype)
    np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("op", QUOTIENTS, ids=lambda op: op.__name__)
@pytest.mark.parametrize("dtype", WHOLE)
def test_quotients_of_whole_numbers_are_numpys_zero_divisors_too(op, dtype):
    a, b = samples(dtype), samples(dtype, seed=1)
    b.ravel()[::4] = 0
    if dtype in SIGNED:
        b.ravel()[1::4] = -1
    with np.errstate(all="ignore"):
        expected = op(a, b)
    check(op(kf.asarray(a), kf.asarray(b)), expected)
    check(op(kf.asarray(a), b), expected)
    check(op(a, kf.asarray(b)), expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_quotients_of_floats_are_numpys_special_ones_too(dtype):
    a, b = (side.astype(dtype) for side in np.meshgrid(SPECIAL, SPECIAL))
    with np.errstate(all="ignore"):
        quotient, remainder = np.divmod(a, b)
    check(kf.asarray(a) // kf.asarray(b), quotient)
    check(kf.asarray(a) % kf.asarray(b), remainder)
    ours = (kf.asarray(a) % kf.asarray(b)).numpy()
    known = ~np.isnan(remainder)
    assert np.array_equal(np.signbit(ours)[known], np.signbit(remainder)[known])


@given(a=st.integers(-40, 40), b=st.integers(-9, 9).filter(bool))
@settings(max_examples=60)
def test_divmod_of_numbers_is_pythons(a, b):
    for pair in (
        divmod(kf.asarray(a), b),
        divmod(a, kf.asarray(b)),
        divmod(kf.asarray(a), kf.asarray(b)),
        divmod(kf.asarray(float(a)), float(b)),
    ):
        assert isinstance(pair, tuple)
        assert tuple(part.item() for part in pair) == divmod(a, b)


def test_a_remainder_has_the_sign_of_the_divisor():
    x = kf.asarray([5, -5, 5, -5])
    y = kf.asarray([3, 3, -3, -3])
    assert (x // y).tolist() == [1, -2, -2, 1]
    assert (x % y).tolist() == [2, 1, -1, -2]
    assert (-7 // kf.asarray([2, -2])).tolist() == [-4, 3]
    assert (7.5 % kf.asarray([2.0, -2.0])).tolist() == [1.5, -0.5]


@pytest.mark.parametrize("op", SHIFTS, ids=lambda op: op.__name__)
@pytest.mark.parametrize("dtype", WHOLE)
def test_shifts_are_numpys(op, dtype):
    a = samples(dtype)
    places = np.random.default_rng(2).integers(0, 70, a.shape).astype(dtype)
    expected = op(a, places)
    check(op(kf.asarray(a), kf.asarray(places)), expected)
    check(op(kf.asarray(a), 3), op(a, 3))
    check(op(1, kf.asarray(places)), op(1, places))


@pytest.mark.parametrize("op", BITS, ids=lambda op: op.__name__)
@pytest.mark.parametrize("dtype", ["bool", *WHOLE])
def test_bits_are_numpys(op, dtype):
    a, b = samples(dtype), samples(dtype, (5,), seed=1)
    check(op(kf.asarray(a), kf.asarray(b)), op(a, b))
    check(op(kf.asarray(a), b), op(a, b))
    check(op(b, kf.asarray(a)), op(b, a))
    number = True if dtype == "bool" else 5
    check(op(kf.asarray(a), number), op(a, number))
    check(op(number, kf.asarray(a)), op(number, a))


@pytest.mark.parametrize("dtype", ["bool", *WHOLE])
def test_inverted_bits_are_numpys(dtype):
    a = samples(dtype)
    check(~kf.asarray(a), ~a)


def test_dtypes_are_promoted_as_numpys():
    for first in ["bool", *WHOLE]:
        for second in ["bool", *WHOLE]:
            a, b = samples(first), samples(second, seed=1)
            wide = np.result_type(a, b)
            if wide.kind == "f":
                # uint64 beside a signed dtype: floats have no bits.
                with pytest.raises(kf.DTypeError, match="aten::bitwise_and"):
                    kf.asarray(a) & kf.asarray(b)
                continue
            check(kf.asarray(a) & kf.asarray(b), a & b)


@pytest.mark.parametrize("op", IN_PLACE, ids=lambda op: op.__name__)
def test_in_place_forms_write_into_the_same_memory(op):
    a, b = samples("int32"), samples("int32", (5,), seed=1)
    b = np.abs(b) % 9 + 1
    expected = op(a, b)
    memory = a.copy()
    x = kf.from_numpy(memory)
    view = x[1:]
    before = x
    x = IN_PLACE[op](x, kf.asarray(b))
    assert x is before
    assert np.array_equal(memory, expected)
    assert np.array_equal(view.numpy(), expected[1:])
    x = IN_PLACE[op](x, 3)
    assert np.array_equal(memory, op(expected, 3))


def test_masks_are_combined_in_place():
    mask = kf.asarray([True, True, False])
    mask &= kf.asarray([True, False, True])
    assert mask.tolist() == [True, False, False]
    mask |= kf.asarray([False, True, False])
    mask ^= True
    assert mask.tolist() == [False, False, True]


def test_a_result_of_another_kind_isnt_written_in_place():
    x = kf.asarray([5, 7])
    with pytest.raises(kf.DTypeError, match=r"aten::copy_"):
        x //= 2.0
    mask = kf.asarray([True])
    with pytest.raises(kf.DTypeError, match=r"aten::copy_"):
        mask &= 3
    assert x.tolist() == [5, 7]


def test_floats_have_no_bits():
    for op in (*BITS, *SHIFTS):
        with pytest.raises(kf.DTypeError, match=r"aten::bitwise_.*float64"):
            op(kf.asarray([1.0]), kf.asarray([1]))
    with pytest.raises(kf.DTypeError, match=r"aten::bitwise_not.*float64"):
        ~kf.asarray([1.0])


@pytest.mark.parametrize("op", [*BITS, *SHIFTS], ids=lambda op: op.__name__)
@pytest.mark.parametrize("signed", SIGNED)
def test_uint64_and_signed_numbers_have_no_dtype_for_bits_of_both(op, signed):
    a, b = kf.ones(2, dtype="uint64"), kf.ones(2, dtype=signed)
    for x, y in ((a, b), (b, a)):
        said = rf"defined for {x.dtype} and {y.dtype} together: .*x\.to\(\"{x.dtype}\"\)"
        with pytest.raises(kf.DTypeError, match=said) as caught:
            op(x, y)
        assert "float64" not in str(caught.value)
        check(op(x, y.to(str(x.dtype))), op(x.numpy(), y.numpy().astype(str(x.dtype))))


def test_complex_numbers_have_no_quotient_rounded_down():
    for op in QUOTIENTS:
        with pytest.raises(kf.DTypeError, match="complex numbers have no order"):
            op(kf.asarray([1j]), 2)


@pytest.mark.parametrize("op", [*IN_PLACE, divmod], ids=lambda op: op.__name__)
def test_other_operands_have_their_own_say(op):
    class Own:
        def answer(self, other):
            return "own"

        __rfloordiv__ = __rmod__ = __rdivmod__ = __rlshift__ = __rrshift__ = answer
        __rand__ = __ror__ = __rxor__ = answer

    assert op(kf.asarray([1]), Own()) == "own"
    with pytest.raises(TypeError, match="unsupported operand"):
        op(kf.asarray([1]), "text")


@pytest.mark.parametrize("op", IN_PLACE, ids=lambda op: op.__name__)
def test_in_place_with_something_else_says_what_it_takes(op):
    with pytest.raises(kf.BindingError, match="takes a tensor, an array or a number"):
        IN_PLACE[op](kf.asarray([1]), "text")


def test_gradients_go_through_remainders():
    x = kf.asarray([5.5, -5.5, 7.25]).requires_grad_()
    y = kf.asarray([2.0, 2.0, -3.0]).requires_grad_()
    quotient, remainder = divmod(x, y)
    (quotient * 10 + remainder).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0, 1.0]
    assert y.grad.tolist() == [-2.0, 3.0, 3.0]
    z = x * 1.0
    z %= y
    assert [g.tolist() for g in kf.grad(z.sum(), [x, y])] == [[1.0] * 3, [-2.0, 3.0, 3.0]]
    z = x * 1.0
    z //= y
    assert [g.tolist() for g in kf.grad(z.sum(), [x, y])] == [[0.0] * 3, [0.0] * 3]


def test_batches_go_through_all_of_them():
    a, b = samples("int64") // 2**40, np.abs(samples("int64", (5,), seed=1)) % 7 + 1
    for op in IN_PLACE:
        expected = op(a, b)
        check(kf.vmap(lambda x, op=op: op(x, kf.asarray(b)))(kf.asarray(a)), expected)
    check(kf.vmap(operator.invert)(kf.asarray(a)), ~a)


def test_shapes_and_dtypes_are_inferred_on_meta():
    x = kf.empty((2, 3), dtype="int16", device="meta")
    for op in IN_PLACE:
        made = op(x, kf.empty(3, dtype="int32", device="meta"))
        assert (made.shape, str(made.dtype), str(made.device)) == ((2, 3), "int32", "meta")
    assert (~x).dtype == "int16"


def test_autocast_takes_the_wider_of_two_floats():
    x, y = kf.asarray([5.0], dtype="float16"), kf.asarray([3.0], dtype="float32")
    with kf.autocast("bfloat16"):
        assert (x // y).dtype == "float32"
        assert (x % y).dtype == "float32"


def test_layers_see_them():
    x = kf.asarray([6, 7])
    with kf.profile() as profile:
        divmod(x, 4)
        x <<= 1
        ~(x & 3 | 4 ^ x)
    names = {event["name"] for event in profile.events}
    wanted = "floor_divide.Scalar remainder.Scalar bitwise_left_shift.Scalar bitwise_and.Scalar "
    wanted += "bitwise_or bitwise_xor.Scalar bitwise_not"
    assert {f"aten::{name}" for name in wanted.split()} <= names


@pytest.mark.parametrize("dtype", [*SIGNED, "uint8", *FLOATS])
def test_they_are_torchs_too(dtype):
    torch = pytest.importorskip("torch", reason="torch isn't installed")
    a, b = samples(dtype), samples(dtype, seed=1)
    # torch raises where a whole number is divided by zero.
    b[b == 0] = 3
    if dtype in SIGNED:
        b[b == -1] = -2
    for op in QUOTIENTS:
        expected = op(torch.from_numpy(a), torch.from_numpy(b)).numpy()
        check(op(kf.asarray(a), kf.asarray(b)), expected)
    if dtype in FLOATS:
        return
    places = (np.abs(b.astype("int64")) % 7).astype(dtype)
    for op in (*SHIFTS, *BITS):
        expected = op(torch.from_numpy(a), torch.from_numpy(places)).numpy()
        check(op(kf.asarray(a), kf.asarray(places)), expected)
