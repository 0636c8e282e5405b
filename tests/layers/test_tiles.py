"""Groups and reductions that hand on rows, or parts of long lanes, are computed tile by tile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import keyfold as kf
from keyfold import _core

DTYPES = ["float16", "bfloat16", "float32", "float64", "int32", "complex64"]


def numbers(*shape: int, dtype: str = "float32", seed: int = 0) -> kf.Tensor:
    """Random numbers in memory of keyfold's own."""
    drawn = np.random.default_rng(seed).normal(size=shape) * 3
    return kf.astype(kf.asarray(drawn, copy=True), getattr(kf, dtype))


def softmax(x: kf.Tensor) -> kf.Tensor:
    powers = kf.exp(x - kf.max(x, axis=-1, keepdims=True))
    return powers / kf.sum(powers, axis=-1, keepdims=True)


def spread(x: kf.Tensor) -> kf.Tensor:
    """Of every dtype: no extremes, which complex numbers lack."""
    centered = x - kf.mean(x, axis=-1, keepdims=True)
    return kf.sum(centered * centered, axis=-1)


def same_bits(a: kf.Tensor, b: kf.Tensor) -> bool:
    wide = [kf.astype(x, "float32") if x.dtype == "bfloat16" else x for x in (a, b)]
    return a.dtype == b.dtype and wide[0].numpy().tobytes() == wide[1].numpy().tobytes()


def deferred(program: Any, *inputs: kf.Tensor) -> tuple[kf.Tensor, Any]:
    """What a program returns in a pipeline, and the plan."""
    with kf.pipeline() as pipe:
        result = program(*inputs)
        plan = pipe.explain()
    return result, plan


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(600, 257), (5, 140, 300), (3, 100_000)])
def test_the_bits_are_those_of_one_by_one(dtype: str, shape: tuple[int, ...]) -> None:
    x = numbers(*shape, dtype=dtype)
    result, plan = deferred(spread, x)
    assert any(group["tiles"] for group in plan.groups), plan
    assert same_bits(result, spread(x))


def test_what_stays_in_the_cache_is_told() -> None:
    x = numbers(1000, 200)
    result, plan = deferred(softmax, x)
    (group,) = plan.groups
    assert (group["operations"], group["stored"]) == ([0, 1, 2, 3, 4], [4])
    assert group["saved_bytes"] == 2 * x.nbytes + 2 * 4000
    assert "tile by tile: %0, %1, %2, %3, %4; stored: %4; 1608000 bytes stay in the cache" in (
        str(plan).replace("\n", " ")
    )
    assert same_bits(result, softmax(x))


@pytest.mark.parametrize("reduce", [kf.sum, kf.mean, kf.max, kf.any])
@pytest.mark.parametrize("shape", [(200_000,), (1000, 131), (2, 70_000)])
def test_a_reduction_of_everything_is_computed_part_by_part(
    shape: tuple[int, ...], reduce: Any
) -> None:
    x, y = numbers(*shape), numbers(shape[-1], seed=1)

    def program(x: kf.Tensor, y: kf.Tensor) -> kf.Tensor:
        return reduce((x - y) ** 2)

    result, plan = deferred(program, x, y)
    (group,) = plan.groups
    assert (group["operations"], group["stored"], group["tiles"]) == ([0, 1, 2], [2], True)
    assert group["saved_bytes"] == 2 * x.nbytes
    expected = program(x, y)
    assert same_bits(result, expected)
    fused = kf.fuse(program)
    assert same_bits(fused(x, y), expected)
    assert same_bits(fused(x, y), expected)


@pytest.mark.parametrize(("rows", "is_cut"), [(5000, False), (6000, True)])
def test_rows_that_stay_in_the_cache_are_computed_step_by_step(rows: int, is_cut: bool) -> None:
    x = numbers(rows, 240)
    before = _core._set_tile_cache(1 << 24)
    try:
        result, plan = deferred(softmax, x)
        fused = kf.fuse(softmax)(x)
    finally:
        _core._set_tile_cache(before)
    assert any(group["tiles"] for group in plan.groups) == is_cut, plan
    assert same_bits(result, softmax(x))
    assert same_bits(fused, result)


@pytest.mark.parametrize("rows", [1, 2, 163, 164, 1000])
def test_the_last_tile_may_have_fewer_rows(rows: int) -> None:
    x = numbers(rows, 200)
    assert same_bits(deferred(softmax, x)[0], softmax(x))


def test_nan_and_infinity_stay_in_their_rows() -> None:
    data = np.random.default_rng(1).normal(size=(500, 200)).astype(np.float32)
    data[7, 3], data[300, 0], data[499] = np.nan, np.inf, -np.inf
    x = kf.asarray(data, copy=True)
    result = deferred(softmax, x)[0]
    assert same_bits(result, softmax(x))
    assert sorted(set(np.argwhere(np.isnan(result.numpy()))[:, 0])) == [7, 300, 499]


def test_a_fused_function_computes_tiles_for_other_sizes_too() -> None:
    fused = kf.fuse(softmax)
    for rows in (1000, 2, 700, 1000):
        x = numbers(rows, 200, seed=rows)
        assert same_bits(fused(x), softmax(x))


def test_threads_compute_tiles_at_once() -> None:
    fused = kf.fuse(softmax)
    inputs = [numbers(600, 100, seed=seed) for seed in range(8)]
    expected = [softmax(x) for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for result, own in zip(pool.map(fused, inputs), expected, strict=True):
                assert same_bits(result, own)


def test_gradients_through_rows_are_those_of_the_calls() -> None:
    x, weight = numbers(400, 200), numbers(400, 200, seed=1)

    def loss(x: kf.Tensor) -> kf.Tensor:
        return kf.sum(softmax(x) * weight)

    expected = kf.grad(loss)(x)
    with kf.pipeline():
        result = kf.grad(loss)(x)
    assert same_bits(result, expected)
