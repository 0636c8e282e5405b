"""For tests of operators: arrays of random shapes, strides and dtypes, and a measure of results."""

from __future__ import annotations

import os

import numpy as np
from hypothesis import Phase, settings
from hypothesis import strategies as st

import keyfold as kf

UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]
WHOLE = [*UNSIGNED, "int8", "int16", "int32", "int64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
REAL = ["bool", *WHOLE, *FLOATS]
ALL = [*REAL, *COMPLEX]
HALVES = ("float16", "bfloat16")
LONG = np.longdouble
# Bits of the mantissa, and the exponents of the least normal number and of the first infinite one.
BITS = {
    "float16": (10, -14, 16),
    "bfloat16": (7, -126, 128),
    "float32": (23, -126, 128),
    "float64": (52, -1022, 1024),
}
# Multiplies every count of examples.
MORE = float(os.environ.get("KEYFOLD_EXAMPLES", "1"))


def examples(count):
    """Settings for so many examples, times `KEYFOLD_EXAMPLES`."""
    phases = [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink]
    return settings(max_examples=max(1, int(count * MORE)), phases=phases)


def kind(dtype):
    """Which of bool, whole, float and complex a dtype is."""
    if dtype == "bool":
        return "bool"
    return "whole" if dtype in WHOLE else "float" if dtype in FLOATS else "complex"


def computed(dtype):
    """The NumPy dtype whose numbers operators compute with: halves are widened."""
    return np.dtype("float32" if dtype in HALVES else dtype)


def promoted(*dtypes):
    """The dtype of what arrays of these dtypes give together: NumPy's table, and bfloat16."""
    first, *others = dtypes
    for other in others:
        pair = {first, other}
        if "bfloat16" not in pair:
            first = str(np.promote_types(first, other))
        elif pair - {"bfloat16", "bool", "int8", "uint8"}:
            first = str(np.promote_types("float32", (pair - {"bfloat16"}).pop()))
        else:
            first = "bfloat16"
    return first


def weak(dtype, number):
    """The dtype of an array of `dtype` together with a plain number."""
    if dtype == "bfloat16":
        return "complex64" if isinstance(number, complex) else dtype
    return str(np.result_type(np.dtype(dtype), number))


def rounded(values, dtype):
    """Values as elements of a dtype; halves come back as float32."""
    values = np.asarray(values)
    if dtype == "float16":
        return values.astype(np.float16).astype(np.float32)
    if dtype != "bfloat16":
        return values.astype(dtype)
    single = values.astype(np.float32)
    # Where float32 was inexact, its last bit is set: no tie is left for the second rounding.
    with np.errstate(invalid="ignore"):
        back = single.astype(LONG) - values.astype(LONG)
    raw = single.view(np.uint32)
    inexact = np.isfinite(back) & (back != 0)
    raw = np.where(inexact, (raw - (back * np.sign(single) > 0)) | 1, raw).astype(np.uint32)
    even = ((raw >> 16) & 1) + np.uint32(0x7FFF)
    cut = ((raw + even) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isfinite(single), cut, single)


def elements(rng, dtype, shape, span=None, limit=None):
    """Random elements in `computed(dtype)`: of every size, and what is special.

    `span`, two numbers, keeps them between those; `limit` the logarithm of floats below it.
    """
    group = kind(dtype)
    if group == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if group == "whole":
        info = np.iinfo(dtype)
        low, high = span or (info.min, info.max)
        low, high = max(int(low), info.min), min(int(high), info.max)
        wide = rng.integers(low, high, shape, dtype=dtype, endpoint=True)
        small = rng.integers(max(low, -9), min(high, 9), shape, endpoint=True).astype(dtype)
        return np.where(rng.random(shape) < 0.5, wide, small)
    if group == "complex":
        # Nothing special: each library has its own rules for infinite complex numbers.
        result = np.empty(shape, dtype)
        result.real = rng.uniform(*(span or (-4, 4)), shape)
        result.imag = rng.uniform(*(span or (-4, 4)), shape)
        return result
    if span is not None:
        return rounded(rng.uniform(*span, shape), dtype)
    limit = limit or {"float16": 11.0, "float64": 700.0}.get(dtype, 85.0)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, 2.5, -2.5]
    choice = rng.random(shape)
    result = np.where(choice < 0.6, rng.integers(-8, 8, shape) / 4, rng.normal(0, 3, shape))
    sized = np.exp(rng.uniform(-limit, limit, shape)) * rng.choice([-1.0, 1.0], shape)
    result = np.where(choice < 0.3, sized, result)
    return rounded(np.where(choice < 0.15, rng.choice(special, shape), result), dtype)


SHAPES = st.one_of(
    st.lists(st.integers(0, 4), max_size=5).map(tuple),
    st.lists(st.integers(1, 4), max_size=5).map(tuple),
    st.lists(st.integers(1, 24), max_size=2).map(tuple),
    st.tuples(st.integers(60, 300)),
)


@st.composite
def broadcasting(draw, count):
    """Shapes that broadcast together, and the shape that they give."""
    full = draw(SHAPES)
    shapes = []
    for _ in range(count):
        shape = full
        if draw(st.booleans()):
            shape = full[draw(st.integers(0, len(full))) :]
            shape = tuple(1 if draw(st.integers(0, 3)) == 0 else size for size in shape)
        shapes.append(shape)
    return shapes, np.broadcast_shapes(*shapes)


@st.composite
def layouts(draw, shape, *, repeat=True):
    """How an array of that shape lies in memory: a step per dimension (0 repeats one element), the
    elements that are left out before, and the order of the dimensions."""
    rank = len(shape)
    if draw(st.booleans()):
        return (1,) * rank, (0,) * rank, tuple(range(rank))
    step = st.sampled_from([1, 1, -1, 2, -2, 3] + [0] * repeat)
    steps = tuple(draw(step) if size else 1 for size in shape)
    before = tuple(draw(st.integers(0, 2)) for _ in shape)
    return steps, before, tuple(draw(st.permutations(range(rank))))


def lay_out(values, layout, dtype):
    """An array with these elements and strides: NumPy's, or a tensor where `dtype` is bfloat16."""
    steps, before, order = layout
    shape = values.shape
    sizes, picks = [], []
    for size, step, skip in zip(shape, steps, before, strict=True):
        sizes.append(skip + 1 + (size - 1) * abs(step) if size else 0)
        first, last = skip, skip + (size - 1) * abs(step)
        if step < 0:
            picks.append(slice(last, first - 1 if first else None, step))
        else:
            picks.append(slice(first, last + 1, step or 1))
    base = np.zeros([sizes[d] for d in order], values.dtype)
    back = tuple(order.index(d) for d in range(len(order)))
    kept = values[tuple(slice(0, 1) if step == 0 else slice(None) for step in steps)]
    if values.size:
        base[(*(picks[d] for d in order), ...)].transpose(back)[...] = kept
    base = base.astype(dtype) if dtype == "float16" else base
    base = kf.asarray(base).to(dtype) if dtype == "bfloat16" else base
    if values.size == 0:
        return base.reshape(shape)
    part = base[(*(picks[d] for d in order), ...)]
    part = kf.permute_dims(part, back) if dtype == "bfloat16" else part.transpose(back)
    if 0 not in steps:
        return part
    return kf.broadcast_to(part, shape) if dtype == "bfloat16" else np.broadcast_to(part, shape)


def numbers(result):
    """A result's elements in NumPy's `computed(dtype)`, a copy."""
    wide = kf.asarray(result)
    return np.array((wide.to("float32") if str(wide.dtype) in HALVES else wide).numpy())


def distance(got, exact, dtype, scale=None):
    """Distances from the exact values, in units of the last place that they, or `scale`, have.

    Infinity counts as the number after the greatest; NaN for a number, or the reverse, is
    infinitely far.
    """
    mantissa, least, most = BITS[dtype]
    top = np.ldexp(LONG(1), most)
    with np.errstate(all="ignore"):
        wide, near = np.clip(got.astype(LONG), -top, top), np.clip(exact.astype(LONG), -top, top)
        size = near if scale is None else np.maximum(np.abs(near), np.abs(scale.astype(LONG)))
        exponent = np.frexp(np.where(np.isfinite(size), size, 1))[1] - 1
        unit = np.ldexp(LONG(1), np.clip(exponent, least, most - 1) - mantissa)
        error = np.abs(wide - near) / unit
    nan = np.isnan(got) != np.isnan(exact)
    return np.where(nan, LONG(np.inf), np.where(np.isnan(got), LONG(0), error))
