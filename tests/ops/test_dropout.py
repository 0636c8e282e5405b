"""Dropout by the words of a stream: against NumPy, its mask, its state and its derivatives."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyfold as kf
from tests.helpers.tensors import leaf

FLOATS = ["float16", "bfloat16", "float32", "float64"]


def philox(seed, block):
    """The four words of a block: Philox4x32-10."""
    c, key = [block & 0xFFFFFFFF, block >> 32, 0, 0], [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ key[0], b & 0xFFFFFFFF, a >> 32 ^ c[3] ^ key[1], a & 0xFFFFFFFF]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def words(seed, offset, count):
    blocks = [philox(seed, offset + i) for i in range(-(-count // 4))]
    return np.array(blocks, np.uint64).reshape(-1)[:count]


def state():
    return kf.random.get_state("cpu")


@given(
    dtype=st.sampled_from(FLOATS),
    shape=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    layout=st.sampled_from(["contiguous", "transposed", "sliced", "reversed"]),
    threshold=st.one_of(st.sampled_from([0, 1, 2**31, 2**32]), st.integers(0, 2**32)),
    seed=st.integers(0, 2**63 - 1),
    offset=st.integers(0, 2**40),
)
def test_what_is_dropped_follows_from_the_words(dtype, shape, layout, threshold, seed, offset):
    count = int(np.prod(shape))
    values = (np.arange(count) % 50 - 20.0).reshape(shape)
    x = kf.asarray(values).to(dtype)
    if layout == "transposed" and shape:
        x = kf.asarray(np.ascontiguousarray(values.T)).to(dtype).permute(*range(len(shape))[::-1])
    elif layout == "sliced" and shape:
        x = kf.asarray(np.repeat(values, 2, axis=-1)).to(dtype)[..., ::2]
    elif layout == "reversed" and shape:
        x = kf.asarray(np.ascontiguousarray(values[::-1])).to(dtype)[::-1]
    result, mask = kf.dropout_threshold(x, threshold, 1.5, seed, offset)
    kept = (words(seed, offset, count) >= threshold).reshape(shape)
    assert (result.dtype, mask.dtype) == (dtype, "bool")
    assert np.array_equal(mask.numpy(), kept)
    assert np.array_equal(result.to("float64").numpy(), np.where(kept, values * 1.5, 0.0))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("count", [0, 1, 4, 7, 1000])
def test_the_state_advances_and_gives_the_mask_again(dtype, count):
    kf.manual_seed(3)
    kf.rand(5)
    before, x = state(), kf.ones(count, dtype=dtype)
    result, mask = kf.ops.aten.native_dropout(x, 0.25, True)
    assert state() == before._replace(offset=before.offset + -(-count // 4))
    kf.random.set_state(pickle.loads(pickle.dumps(before)))
    again, same = kf.ops.aten.native_dropout(x, 0.25, None)
    assert np.array_equal(mask.numpy(), same.numpy())
    assert result.tolist() == again.tolist()
    kf.random.set_state(before)
    assert kf.dropout(x, 0.25).tolist() == result.tolist()
    explicit, _ = kf.dropout_threshold(x, 2**30, 4 / 3, before.seed, before.offset)
    assert explicit.tolist() == result.tolist()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_derivatives_are_the_mask_times_the_scale(dtype):
    kf.manual_seed(8)
    x = leaf(np.linspace(-1.0, 1.0, 40)).detach().to(dtype).requires_grad_()
    start = state()
    result, mask = kf.ops.aten.native_dropout(x, 0.5, True)
    assert not mask.requires_grad
    weights = kf.asarray(np.arange(40.0)).to(dtype)
    expected = np.where(mask.numpy(), 2.0 * np.arange(40.0), 0.0)
    (first,) = kf.grad((result * weights).sum(), [x])
    assert np.allclose(first.numpy(), expected)

    def f(x):
        kf.random.set_state(start)
        return kf.dropout(x, 0.5)

    _, tangent = kf.jvp(f, (x.detach(),), (weights,))
    assert np.allclose(tangent.numpy(), expected)
    # Through the derivative itself: it is linear in the gradient.
    kf.random.set_state(start)
    y = kf.dropout(x, 0.5)
    (grad,) = kf.grad((y * y).sum(), [x], create_graph=True)
    (second,) = kf.grad(grad.sum(), [x])
    assert np.allclose(second.numpy(), np.where(mask.numpy(), 8.0, 0.0))


def test_a_dropped_infinity_is_0_in_both_directions():
    infinite = kf.asarray(np.array([np.inf, -np.inf, np.nan]))
    for result in (
        kf.dropout_threshold(infinite, 2**32, 0.0, 0)[0],
        kf.ops.aten.native_dropout_backward(infinite, kf.zeros(3, dtype="bool"), 2.0),
    ):
        assert result.tolist() == [0.0, 0.0, 0.0]


def test_a_checkpoint_draws_the_same_again():
    kf.manual_seed(2)
    x = leaf(np.ones(64))
    y = kf.checkpoint(lambda x: kf.dropout(x * 2.0, 0.5), x)
    drawn = state()
    (grad,) = kf.grad(y.sum(), [x])
    assert np.array_equal(grad.numpy() != 0, y.detach().numpy() != 0)
    assert state() == drawn


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda x: kf.dropout_threshold(x, -1, 1.0, 0), ["'threshold' is -1", "2**32"]),
        (lambda x: kf.dropout_threshold(x, 2**32 + 1, 1.0, 0), ["'threshold' is 4294967297"]),
        (lambda x: kf.dropout_threshold(x, 1, float("nan"), 0), ["'scale' is NaN"]),
        (lambda x: kf.dropout_threshold(x, 1, 1.0, 0, -1), ["'offset' is -1"]),
        (lambda x: kf.ops.aten.native_dropout(x, 1.5, True), ["'p'", "from 0 to 1", "1.5"]),
    ],
)
def test_numbers_that_cannot_be(call, parts, raises_saying):
    before = state()
    with raises_saying(kf.InvalidValue, *parts):
        call(kf.ones(3))
    assert state() == before


def test_only_floats_are_dropped(raises_saying):
    with raises_saying(kf.DTypeError, "native_dropout", "'input'", "int64", "float32"):
        kf.ops.aten.native_dropout(kf.ones(3, dtype="int64"), 0.5, True)
    with raises_saying(kf.DTypeError, "native_dropout_backward", "'mask'", "bool"):
        kf.ops.aten.native_dropout_backward(kf.ones(3), kf.ones(3), 2.0)
