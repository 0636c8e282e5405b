"""Scaled-dot-product attention against NumPy in float64: results, gradients, bad input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyfold as kf
from tests.helpers.random_arrays import lay_out, layouts, numbers, rounded

FLOATS = ["float16", "bfloat16", "float32", "float64"]
UNITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


def weights(q, k, mask=None, is_causal=False, scale=None):
    """Return the probabilities; zeros for a query for which no key counts."""
    scale = 1 / np.sqrt(q.shape[-1]) if scale is None else scale
    scores = q @ np.swapaxes(k, -1, -2) * scale
    if is_causal:
        counts = np.tril(np.ones(scores.shape[-2:], bool))
        scores = np.where(counts, scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    with np.errstate(invalid="ignore"):
        most = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
        powers = np.exp(scores - np.where(np.isneginf(most), 0, most))
        sums = powers.sum(axis=-1, keepdims=True)
        return np.where(
            sums > 0, powers / np.where(sums > 0, sums, 1), np.where(sums == 0, 0, sums)
        )


def naive(q, k, v, **options):
    return weights(q, k, **options) @ v


def naive_gradients(grad, q, k, v, scale=None, **options):
    p = weights(q, k, scale=scale, **options)
    slopes = grad @ np.swapaxes(v, -1, -2)
    of_scores = p * (slopes - (p * slopes).sum(axis=-1, keepdims=True))
    of_scores *= 1 / np.sqrt(q.shape[-1]) if scale is None else scale
    swapped = np.swapaxes(of_scores, -1, -2)
    return of_scores @ k, swapped @ q, np.swapaxes(p, -1, -2) @ grad


def close(got, wanted, dtype, scale=16.0):
    got = numbers(got)
    assert got.shape == wanted.shape
    size = max(1.0, np.max(np.abs(wanted), initial=0.0))
    worst = np.max(np.abs(got - wanted), initial=0.0)
    assert worst <= scale * UNITS[dtype] * size, (worst, UNITS[dtype])


@st.composite
def calls(draw):
    leading = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    long = st.one_of(st.integers(1, 9), st.sampled_from([63, 64, 65, 130, 200]))
    queries, keys = draw(long), draw(st.one_of(st.just(0), long))
    depth, values = draw(st.sampled_from([1, 3, 16, 24, 64])), draw(st.sampled_from([1, 5, 16, 40]))
    dtype = draw(st.sampled_from(FLOATS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shapes = [(*leading, queries, depth), (*leading, keys, depth), (*leading, keys, values)]
    operands = []
    for shape in shapes:
        exact = rounded(rng.uniform(-2, 2, shape), dtype)
        operands.append(lay_out(exact, draw(layouts(shape)), dtype))
    mask, is_causal = None, False
    kind = draw(st.sampled_from(["none", "causal", "bools", "numbers"]))
    if kind == "causal":
        is_causal = True
    elif kind != "none":
        shape = draw(st.sampled_from([(queries, keys), (keys,), (queries, 1), (1, 1)]))
        exact = (
            rng.random(shape) < 0.7
            if kind == "bools"
            else rounded(rng.uniform(-2, 2, shape), dtype)
        )
        mask = lay_out(exact, draw(layouts(shape)), "bool" if kind == "bools" else dtype)
    return dtype, operands, mask, is_causal, draw(st.sampled_from([None, 0.5, -1.25]))


@given(calls())
@settings(max_examples=60)
def test_results_are_those_of_all_scores(call):
    dtype, operands, mask, is_causal, scale = call
    got = kf.scaled_dot_product_attention(
        *operands, attn_mask=mask, is_causal=is_causal, scale=scale
    )
    exact = None if mask is None else numbers(mask)
    if mask is not None and str(mask.dtype) == "bool":
        exact = np.asarray(mask)
    wanted = naive(*map(numbers, operands), mask=exact, is_causal=is_causal, scale=scale)
    # Scores of up to 260, and differences of them, are rounded in float32.
    close(got, wanted, dtype, scale=4.0 if dtype in ("float16", "bfloat16") else 600.0)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["plain", "causal", "mask"]))
@settings(max_examples=20)
def test_gradients_are_those_of_the_formula(seed, kind):
    rng = np.random.default_rng(seed)
    queries, keys, depth, values = (
        rng.integers(1, 150, 2).tolist() + rng.integers(1, 40, 2).tolist()
    )
    shapes = [(2, queries, depth), (2, keys, depth), (2, keys, values)]
    exact = [rng.uniform(-1, 1, shape) for shape in shapes]
    grad = rng.uniform(-1, 1, (2, queries, values))
    options = {"is_causal": kind == "causal"}
    mask = rng.random((queries, keys)) < 0.6 if kind == "mask" else None
    wanted = naive_gradients(grad, *exact, mask=mask, **options)
    for dtype, scale in [("float64", 1000.0), ("float32", 1000.0)]:
        operands = [kf.asarray(x.astype(dtype)) for x in exact]
        for operand in operands:
            operand.requires_grad_()
        given_mask = None if mask is None else kf.asarray(mask)
        out = kf.scaled_dot_product_attention(*operands, attn_mask=given_mask, **options)
        grads = kf.grad(out, operands, kf.asarray(grad.astype(dtype)))
        for got, one in zip(grads, wanted, strict=True):
            close(got, one, dtype, scale)


def test_heads_of_keys_serve_groups_of_query_heads():
    rng = np.random.default_rng(5)
    q, k, v = (rng.normal(size=s) for s in [(2, 6, 5, 8), (2, 2, 7, 8), (2, 2, 7, 3)])
    got = kf.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    wanted = naive(q, np.repeat(k, 3, axis=1), np.repeat(v, 3, axis=1))
    close(got, wanted, "float64", 50.0)
    mask = rng.random((6, 5, 7)) < 0.5
    got = kf.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    wanted = naive(q, np.repeat(k, 3, axis=1), np.repeat(v, 3, axis=1), mask=mask)
    close(got, wanted, "float64", 50.0)


def test_a_query_without_keys_has_the_result_and_the_gradient_0():
    rng = np.random.default_rng(6)
    q, k, v = (kf.asarray(rng.normal(size=s)) for s in [(3, 4), (5, 4), (5, 2)])
    for x in (q, k, v):
        x.requires_grad_()
    mask = np.ones((3, 5), bool)
    mask[1] = False
    out = kf.scaled_dot_product_attention(q, k, v, kf.asarray(mask))
    assert np.asarray(out.detach())[1].tolist() == [0.0, 0.0]
    of_query, of_key, of_value = kf.grad(out, [q, k, v], kf.ones((3, 2), dtype=kf.float64))
    assert np.asarray(of_query)[1].tolist() == [0.0] * 4
    assert np.isfinite(np.asarray(of_key)).all()
    assert np.isfinite(np.asarray(of_value)).all()
    # An added mask of -inf has the same meaning.
    added = np.where(mask, 0.0, -np.inf)
    same = kf.scaled_dot_product_attention(q, k, v, kf.asarray(added))
    np.testing.assert_array_equal(np.asarray(same.detach()), np.asarray(out.detach()))


def test_nan_and_infinity_propagate():
    q, k, v = (np.ones(s) for s in [(3, 2), (4, 2), (4, 2)])
    q[0, 0], v[2, 1] = np.nan, np.inf
    got = np.asarray(kf.scaled_dot_product_attention(q, k, v))
    assert np.isnan(got[0]).all()
    assert got[1:, 0].tolist() == [1.0, 1.0]
    assert np.isposinf(got[1:, 1]).all()


def test_halves_accumulate_in_float32():
    # The sum of 4096 products of 1 isn't in float16, and 60000 * 2 / 2 overflows there.
    ones = np.ones((1, 4096), np.float16)
    k = np.ones((3, 4096), np.float16)
    v = np.full((3, 1), 60000, np.float16)
    assert np.asarray(kf.scaled_dot_product_attention(ones, k, v)).tolist() == [[60000.0]]


def test_tangents_are_those_of_differences():
    rng = np.random.default_rng(7)
    shapes = [(2, 3, 4), (2, 5, 4), (2, 5, 3)]
    primals, tangents = ([rng.normal(size=s) for s in shapes] for _ in range(2))

    def function(q, k, v):
        return kf.scaled_dot_product_attention(q, k, v, is_causal=True)

    out, tangent = kf.jvp(
        function, tuple(map(kf.asarray, primals)), tuple(map(kf.asarray, tangents))
    )
    step = 1e-6
    ahead, behind = (
        naive(*(p + s * t for p, t in zip(primals, tangents, strict=True)), is_causal=True)
        for s in (step, -step)
    )
    close(out, naive(*primals, is_causal=True), "float64", 50.0)
    np.testing.assert_allclose(np.asarray(tangent), (ahead - behind) / (2 * step), atol=1e-8)


def array(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


BAD = {
    "one dimension": ((array(4), array(3, 4), array(3, 4)), {}, kf.ShapeError, "'query'"),
    "key size": ((array(2, 4), array(3, 5), array(3, 4)), {}, kf.ShapeError, "size 5"),
    "values": ((array(2, 4), array(3, 4), array(2, 4)), {}, kf.ShapeError, "'value'"),
    "batch": ((array(2, 2, 4), array(3, 3, 4), array(3, 3, 4)), {}, kf.ShapeError, "'key'"),
    "group": (
        (array(4, 2, 4), array(2, 3, 4), array(2, 3, 4)),
        {},
        kf.ShapeError,
        "enable_gqa=True",
    ),
    "heads": (
        (array(5, 2, 4), array(2, 3, 4), array(2, 3, 4)),
        {"enable_gqa": True},
        kf.ShapeError,
        "don't divide",
    ),
    "no heads": (
        (array(2, 4), array(3, 4), array(3, 4)),
        {"enable_gqa": True},
        kf.ShapeError,
        "heads",
    ),
    "integers": (
        tuple(array(2, 2, dtype=np.int32) for _ in range(3)),
        {},
        kf.DTypeError,
        "int32",
    ),
    "mixed": (
        (array(2, 2), array(2, 2, dtype=np.float64), array(2, 2)),
        {},
        kf.DTypeError,
        "float64",
    ),
    "mask shape": (
        (array(2, 4), array(3, 4), array(3, 4)),
        {"attn_mask": np.ones((2, 2), bool)},
        kf.ShapeError,
        "'attn_mask'",
    ),
    "mask dtype": (
        (array(2, 4), array(3, 4), array(3, 4)),
        {"attn_mask": np.ones((2, 3), np.int64)},
        kf.DTypeError,
        "must be bool",
    ),
    "mask and causal": (
        (array(2, 4), array(3, 4), array(3, 4)),
        {"attn_mask": np.ones((2, 3), bool), "is_causal": True},
        kf.InvalidValue,
        "is_causal",
    ),
    "dropout": (
        (array(2, 4), array(3, 4), array(3, 4)),
        {"dropout_p": 0.1},
        kf.NotSupported,
        "'dropout_p'",
    ),
    "probability": (
        (array(2, 4), array(3, 4), array(3, 4)),
        {"dropout_p": 1.5},
        kf.InvalidValue,
        "from 0 to 1",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_with_what_would_be_right(case):
    operands, options, error, words = BAD[case]
    with pytest.raises(error, match=words) as caught:
        kf.scaled_dot_product_attention(*operands, **options)
    assert "aten::scaled_dot_product_attention" in str(caught.value)


def test_results_and_gradients_are_pytorchs():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(8)
    exact = [rng.normal(size=s).astype(np.float32) for s in [(2, 4, 70, 16)] * 3]
    grad = rng.normal(size=(2, 4, 70, 16)).astype(np.float32)
    mask = rng.random((70, 70)) < 0.7
    theirs = [torch.from_numpy(x).requires_grad_() for x in exact]
    ours = [kf.asarray(x) for x in exact]
    for x in ours:
        x.requires_grad_()
    function = torch.nn.functional.scaled_dot_product_attention
    for options, of_theirs in [
        ({}, {}),
        ({"is_causal": True}, {"is_causal": True}),
        ({"attn_mask": kf.asarray(mask)}, {"attn_mask": torch.from_numpy(mask)}),
    ]:
        wanted = function(*theirs, **of_theirs)
        got = kf.scaled_dot_product_attention(*ours, **options)
        np.testing.assert_allclose(np.asarray(got.detach()), wanted.detach().numpy(), atol=2e-6)
        grads = torch.autograd.grad(wanted, theirs, torch.from_numpy(grad))
        for one, other in zip(kf.grad(got, ours, kf.asarray(grad)), grads, strict=True):
            np.testing.assert_allclose(np.asarray(one), other.numpy(), atol=1e-5)


@pytest.mark.parametrize(("size", "values"), [(0, 2), (2, 0), (0, 0)])
def test_queries_and_values_without_elements(size, values):
    """Without a query's elements all scores are 0, so the result is the mean of the values."""
    rng = np.random.default_rng(9)
    q, k = kf.zeros((2, 3, size)), kf.zeros((2, 5, size))
    v = kf.asarray(rng.normal(size=(2, 5, values)))
    for x in (q, k, v):
        x.requires_grad_()
    out = kf.scaled_dot_product_attention(q, k, v)
    wanted = np.broadcast_to(np.asarray(v.detach()).mean(1, keepdims=True), (2, 3, values))
    np.testing.assert_allclose(np.asarray(out.detach()), wanted)
    of_q, of_k, of_v = kf.grad(kf.sum(out), [q, k, v])
    assert (of_q.shape, of_k.shape) == (q.shape, k.shape)
    assert not np.asarray(of_q).any()
    np.testing.assert_allclose(np.asarray(of_v), 0.6)
