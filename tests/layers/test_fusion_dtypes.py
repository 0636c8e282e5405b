"""Pointwise programs of all dtypes have the same bits eagerly, in a pipeline and recorded."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyfold as kf

DTYPES = [
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip
SHAPES = [(3, 5), (3, 1), (5,), (), (1, 5), (0, 5)]
UNARY = [
    "abs", "ceil", "round", "sign", "negative", "sqrt", "exp", "log1p", "tanh", "sigmoid", "relu",
    "gelu", "erf", "square", "reciprocal", "isnan", "isfinite", "logical_not", "bitwise_invert",
    "real", "conj",
]  # fmt: skip
BINARY = [
    "add", "subtract", "multiply", "divide", "floor_divide", "remainder", "maximum", "minimum",
    "less", "greater_equal", "equal", "logical_and", "logical_xor", "bitwise_and", "bitwise_or",
    "bitwise_left_shift", "bitwise_right_shift",
]  # fmt: skip
NUMBERS = [
    0, 1, -1, 3, -129, 255, 256, 70000, 2**31, -(2**40), 2**63 - 1, 2**63, 0.5, -0.0, 1e300,
    float("inf"), float("nan"), True, 1 + 2j,
]  # fmt: skip

step = st.tuples(
    st.one_of(
        st.tuples(st.just("unary"), st.sampled_from(UNARY)),
        st.tuples(st.just("binary"), st.sampled_from(BINARY)),
        st.tuples(st.just("number"), st.sampled_from(BINARY)),
        st.tuples(st.just("reversed"), st.sampled_from(BINARY)),
        st.tuples(st.sampled_from(["convert", "where", "clip", "view", "write", "forget"])),
    ),
    st.integers(0, 50),
    st.integers(0, 50),
    st.sampled_from(NUMBERS),
    st.sampled_from(DTYPES),
)


def apply(tensors, name, a, b, number, dtype):
    x, y = tensors[a % len(tensors)], tensors[b % len(tensors)]
    match name:
        case "unary", operator:
            made = getattr(kf, operator)(x)
        case "binary", operator:
            made = getattr(kf, operator)(x, y)
        case "number", operator:
            made = getattr(kf, operator)(x, number)
        case "reversed", operator:
            made = getattr(kf, operator)(number, x)
        case ("convert",):
            made = kf.astype(x, dtype)
        case ("where",):
            made = kf.where(kf.astype(x, "bool"), y, number)
        case ("clip",):
            made = kf.clip(x, number, None)
        case ("view",):
            made = x[..., ::-1] if x.ndim else x[None]
        case ("write",):
            x[...] = number
            return
        case _:
            if len(tensors) > 3:
                tensors.pop(a % len(tensors))
            return
    tensors.append(made)


def arrays(forms, seed):
    rng = np.random.default_rng(seed)
    made = []
    for dtype, shape in forms:
        numbers = rng.standard_normal(shape) * 10.0
        if not dtype.startswith(("int", "float", "bf", "complex")):
            numbers = np.abs(numbers)
        made.append(kf.astype(kf.asarray(np.asarray(numbers), copy=True), dtype))
    return made


def bits(x):
    values = kf.astype(x, "float32") if x.dtype == kf.bfloat16 else x
    return str(x.dtype), x.shape, np.asarray(values).tobytes()


@pytest.mark.one_python
@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), st.sampled_from(SHAPES)), min_size=3, max_size=4),
    st.lists(step, min_size=1, max_size=30),
)
def test_pointwise_programs_have_the_same_bits(forms, steps):
    def program(*tensors):
        tensors = list(tensors)
        for one in steps:
            try:
                apply(tensors, *one)
            except (kf.Error, TypeError):
                continue
        return tensors

    fused = kf.fuse(program)
    for seed in (1, 2):
        inputs, same_inputs, others = (arrays(forms, seed) for _ in range(3))
        expected = [bits(x) for x in [*program(*inputs), *inputs]]
        with kf.pipeline():
            deferred = program(*same_inputs)
        assert [bits(x) for x in [*deferred, *same_inputs]] == expected
        assert [bits(x) for x in [*fused(*others), *others]] == expected
