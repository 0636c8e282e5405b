"""Reductions, softmax and the places of extremes against NumPy: random shapes, strides and dtypes.

A normal run takes 100 examples per function, about 1400; `KEYFOLD_EXAMPLES=10` takes ten times as
many.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyfold as kf
from tests.helpers.random_arrays import (
    ALL,
    COMPLEX,
    FLOATS,
    HALVES,
    LONG,
    REAL,
    SHAPES,
    UNSIGNED,
    WHOLE,
    computed,
    distance,
    elements,
    examples,
    kind,
    lay_out,
    layouts,
    numbers,
    rounded,
)

counted = {"examples": 0, "elements": 0}
# Long enough for every way of adding up: rows, columns, blocks and their rests.
LARGE = st.one_of(
    SHAPES,
    st.tuples(st.integers(1, 700), st.integers(1, 40)),
    st.tuples(st.integers(1, 40), st.integers(1, 700)),
    st.tuples(st.integers(1, 6), st.integers(1, 90), st.integers(1, 6)),
    st.tuples(st.integers(1, 9000)),
)


@pytest.fixture(scope="module", autouse=True)
def count():
    """Says at the end how much was compared."""
    yield
    print("\nreduced beside NumPy: {examples} calls, {elements} elements".format(**counted))


def draw_array(data, dtype, *, span=None, nonempty=False):
    """Elements, as numbers, and an array with them."""
    shape = data.draw(LARGE.filter(lambda shape: 0 not in shape) if nonempty else LARGE)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    with np.errstate(all="ignore"):
        values = elements(rng, dtype, shape, span, limit=9.0)
        if kind(dtype) == "float" and data.draw(st.booleans()):
            # Finite.
            values = np.where(np.isfinite(values), values, values.dtype.type(1))
    array = lay_out(values, data.draw(layouts(shape)), dtype)
    if dtype != "bfloat16" and data.draw(st.booleans()):
        array = kf.asarray(array)
    values = numbers(array)
    counted["examples"] += 1
    counted["elements"] += values.size
    return values, array


def draw_axis(data, rank, *, several=True):
    """None, an axis from either end, or several of them."""
    choices = [st.none()]
    if rank:
        choices.append(st.integers(-rank, rank - 1))
        if several:
            axes = st.lists(st.integers(0, rank - 1), unique=True, max_size=rank)
            choices.append(axes.map(lambda axes: tuple(a - rank * (a % 2) for a in axes)))
    return data.draw(st.one_of(choices))


def settle(got, array, dtype):
    """The result's numbers, once its library and dtype are right."""
    assert type(got) is type(array)
    assert str(got.dtype) == dtype
    return numbers(got)


def hold(same, got, exact, about):
    assert got.shape == np.shape(exact)
    if not np.all(same):
        at = np.unravel_index(np.argmin(same), got.shape)
        raise AssertionError(f"{about}: {got[at]!r}, and not {np.asarray(exact)[at]!r}, at {at}")


@pytest.mark.one_python
@pytest.mark.parametrize("name", ["sum", "mean"])
@examples(100)
@given(data=st.data())
def test_sums_and_means(name, data):
    dtype = data.draw(st.sampled_from(ALL))
    values, array = draw_array(data, dtype)
    axis, keepdims = draw_axis(data, values.ndim), data.draw(st.booleans())
    got = getattr(kf, name)(array, axis=axis, keepdims=keepdims)
    whole = kind(dtype) in ("bool", "whole")
    places = {"axis": axis, "keepdims": keepdims}
    about = f"{name} of {dtype} {values.shape}, {places}"
    if whole and name == "sum":
        result = "uint64" if dtype in UNSIGNED else "int64"
        exact = np.sum(values, dtype=result, **places)
        got = settle(got, array, result)
        return hold(got == exact, got, exact, about)
    result = "float64" if whole else dtype
    got = settle(got, array, result)
    wide = values.astype(np.clongdouble if kind(dtype) == "complex" else LONG)
    with np.errstate(all="ignore"):
        count = values.size // max(1, np.sum(values, **places).size)
        by = LONG(1) if name == "sum" else LONG(count)
        exact = np.sum(wide, **places) / by
        # Rounding errors are in proportion to what was added, not to what is left of it.
        size = np.sum(np.abs(wide), **places) / by
        eps = LONG(np.finfo(computed(result)).eps)
        slack = size * eps * (4 + np.log2(count + 1))
        if kind(dtype) == "complex":
            same = np.abs(got - exact) <= slack
            same |= np.isnan(exact) & np.isnan(got)
            return hold(same, got, exact, about)
        unit = np.where(np.isfinite(size), slack, 1)
        # A half is rounded at the end.
        half = distance(got, exact, result) <= 0.51 if dtype in HALVES else False
        low, high = rounded(exact - unit, result), rounded(exact + unit, result)
        same = half | (got >= low) & (got <= high) | np.isnan(got) & np.isnan(exact)
    return hold(same, got, exact, about)


@examples(100)
@given(data=st.data())
def test_sums_in_a_dtype_that_is_asked_for(data):
    dtype, other = data.draw(st.sampled_from(WHOLE)), data.draw(st.sampled_from(WHOLE))
    values, array = draw_array(data, dtype)
    axis = draw_axis(data, values.ndim)
    got = settle(kf.sum(array, axis=axis, dtype=other), array, other)
    exact = np.sum(values, axis=axis, dtype=other)
    hold(got == exact, got, exact, f"sum of {dtype} in {other}, axis {axis}")


@pytest.mark.one_python
@pytest.mark.parametrize("name", ["max", "min", "all", "any"])
@examples(100)
@given(data=st.data())
def test_extremes_and_quantifiers(name, data):
    logical = name in ("all", "any")
    dtype = data.draw(st.sampled_from(ALL if logical else REAL))
    values, array = draw_array(data, dtype, nonempty=not logical)
    places = {"axis": draw_axis(data, values.ndim), "keepdims": data.draw(st.booleans())}
    got = settle(getattr(kf, name)(array, **places), array, "bool" if logical else dtype)
    with np.errstate(all="ignore"):
        exact = getattr(np, name)(values, **places)
    same = (got == exact) | (got != got) & (exact != exact)
    hold(same, got, exact, f"{name} of {dtype} {values.shape}, {places}")


@pytest.mark.one_python
@pytest.mark.parametrize("name", ["argmax", "argmin"])
@examples(100)
@given(data=st.data())
def test_places_of_extremes(name, data):
    dtype = data.draw(st.sampled_from(REAL))
    values, array = draw_array(data, dtype, nonempty=True)
    axis = draw_axis(data, values.ndim, several=False)
    places = {"axis": axis, "keepdims": data.draw(st.booleans())}
    got = settle(getattr(kf, name)(array, **places), array, "int64")
    exact = getattr(np, name)(values, **places)
    hold(got == exact, got, exact, f"{name} of {dtype} {values.shape}, {places}")


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
@examples(20)
@given(data=st.data())
def test_nothing_has_no_extremes(name, data):
    dtype = data.draw(st.sampled_from(REAL))
    shape = data.draw(st.sampled_from([(0,), (0, 3), (3, 0), (2, 0, 4)]))
    array = kf.empty(shape, dtype=dtype)
    axis = data.draw(st.integers(0, len(shape) - 1))
    if shape[axis] == 0:
        with pytest.raises(kf.InvalidValue, match="nothing to choose from"):
            getattr(kf, name)(array, axis=axis)
    else:
        expected = shape[:axis] + shape[axis + 1 :]
        assert getattr(kf, name)(array, axis=axis).shape == expected


@pytest.mark.one_python
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@examples(100)
@given(data=st.data())
def test_softmaxes(name, data):
    dtype = data.draw(st.sampled_from([*FLOATS, "int32", "uint8", "bool"]))
    values, array = draw_array(data, dtype, span=(-30, 30) if kind(dtype) == "float" else (0, 50))
    if values.ndim == 0:
        return
    if dtype in ("float32", "float64") and data.draw(st.booleans()):
        # Masked elements.
        mask = np.random.default_rng(values.size).random(values.shape) < 0.3
        values = np.where(mask, values.dtype.type(-np.inf), values)
        array = lay_out(values, data.draw(layouts(values.shape, repeat=False)), dtype)
    axis = data.draw(st.integers(-values.ndim, values.ndim - 1))
    result = dtype if kind(dtype) == "float" else "float64"
    got = settle(getattr(kf, name)(array, axis=axis), array, result)
    x = values.astype(computed(result)).astype(LONG)
    if x.size == 0:
        assert got.shape == x.shape
        return
    with np.errstate(all="ignore"):
        top = np.max(x, axis=axis, keepdims=True)
        shifted = x - top
        total = np.sum(np.exp(shifted), axis=axis, keepdims=True)
        exact = np.exp(shifted) / total if name == "softmax" else shifted - np.log(total)
        # The rounding of `x - top` is as large, relative to its exponential, as it is itself.
        unit = LONG(np.finfo(computed(result)).eps)
        spread = np.where(np.isfinite(shifted), np.abs(shifted), 0) + np.log(total) + 4
        least = LONG(np.finfo(computed(result)).smallest_subnormal)
        slack = (exact if name == "softmax" else 1) * spread * unit + least
        low, high = rounded(exact - slack, result), rounded(exact + slack, result)
        same = (got >= low) & (got <= high) | np.isnan(got) & np.isnan(exact)
    hold(same, got, exact, f"{name} of {dtype} {values.shape}, axis {axis}")


def test_the_dtypes_that_have_no_order_are_refused():
    for name in ["max", "min", "argmax", "argmin", "softmax", "log_softmax"]:
        for dtype in COMPLEX:
            with pytest.raises(kf.DTypeError, match=dtype):
                getattr(kf, name)(np.ones(3, dtype))
