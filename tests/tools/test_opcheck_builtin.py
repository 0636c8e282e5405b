"""opcheck of every built-in operator, in every dtype that the gradients are compared in."""

import numpy as np
import pytest

import keyfold as kf
from tests.helpers.opchecks import x

# Apart from each other and from where functions have kinks.
A, B = x(), x()[::-1] * 1.3 - 0.7
ROW = np.array([1, 0])

CASES = {
    "abs": (B,),
    "add": (A, B),
    "add.Scalar": (A, 2.0),
    "alias": (A,),
    "all": (A > 1.0, [0]),
    "amax": (B, [1]),
    "amin": (B, [0], True),
    "any": (A > 1.0,),
    "arange": (3,),
    "argmax": (B, 1),
    "argmin": (B,),
    "bitwise_and": (ROW, ROW),
    "bitwise_and.Scalar": (ROW, 1),
    "bitwise_left_shift": (ROW, ROW),
    "bitwise_left_shift.Scalar": (ROW, 1),
    "bitwise_not": (ROW,),
    "bitwise_or": (ROW, ROW),
    "bitwise_or.Scalar": (ROW, 1),
    "bitwise_right_shift": (ROW, ROW),
    "bitwise_right_shift.Scalar": (ROW, 1),
    "bitwise_xor": (ROW, ROW),
    "bitwise_xor.Scalar": (ROW, 1),
    "cat": ([A, B], 1),
    "ceil": (B,),
    "clone": (A.T,),
    "contiguous": (x()[:, ::2],),
    "copy_": (A, B),
    "cos": (A,),
    "detach": (A,),
    "div": (A, B),
    "div.Scalar": (A, 2.0),
    "dropout": (A, 0.5, True),
    "empty": ([2, 3],),
    "eq": (A, B),
    "eq.Scalar": (A, 1.0),
    "erf": (B,),
    "exp": (A,),
    "expand": (x(1, 3), [2, 3]),
    "expm1": (A,),
    "fill_.Scalar": (A, 2.0),
    "flip": (A, [1]),
    "floor": (B,),
    "floor_divide": (A, B * 1.07 + 0.01),
    "floor_divide.Scalar": (A, 0.7),
    "full": ([2], 1.5),
    "gather": (A, 1, np.array([[0, 2], [1, 1]])),
    "ge": (A, B),
    "ge.Scalar": (A, 1.0),
    "gelu": (B,),
    "gelu_tanh": (B,),
    "gt": (A, B),
    "gt.Scalar": (A, 1.0),
    "cumprod": (A, 1),
    "cumsum": (A, 0),
    "index.Tensor": (A, [ROW, None]),
    "index_add": (A, 0, ROW, B),
    "index_put": (A, [ROW], B),
    "index_put_": (A, [np.array([1])], x(1, 3)),
    "index_select": (A, 1, np.array([2, 0])),
    "isfinite": (B,),
    "isinf": (B,),
    "isnan": (B,),
    "le": (A, B),
    "le.Scalar": (A, 1.0),
    "log": (A,),
    "log1p": (A,),
    "log_softmax": (A, 1),
    "logical_not": (A > 1.0,),
    "lt": (A, B),
    "lt.Scalar": (A, 1.0),
    "masked_select": (A, A > 0.6),
    "matmul": (A, x(3, 2)),
    "max": (B,),
    "maximum": (A, B),
    "maximum.Scalar": (A, 0.6),
    "mean": (A,),
    "mean.dim": (A, [0]),
    "min": (B,),
    "minimum": (A, B),
    "minimum.Scalar": (A, 0.6),
    "mul": (A, B[0]),
    "mul.Scalar": (A, 2.0),
    "ne": (A, B),
    "ne.Scalar": (A, 1.0),
    "neg": (A,),
    "ones": ([2],),
    "permute": (A, [1, 0]),
    "pow": (A, B),
    "pow.Scalar": (A, 3.0),
    "rand": ([2],),
    "randn": ([2],),
    "rbitwise_left_shift.Scalar": (ROW, 1),
    "rbitwise_right_shift.Scalar": (ROW, 4),
    "rdiv.Scalar": (A, 2.0),
    "reciprocal": (A,),
    "relu": (B,),
    "remainder": (A, B * 1.07 + 0.01),
    "remainder.Scalar": (A, 0.7),
    "reshape": (A.T, [6]),
    "round": (B,),
    "rfloor_divide.Scalar": (A, 0.77),
    "rpow.Scalar": (A, 2.0),
    "rremainder.Scalar": (A, 0.77),
    "rsqrt": (A,),
    "rsub.Scalar": (A, 2.0),
    "scatter_add": (A, 1, np.array([[0, 2], [1, 1]]), x(2, 2)),
    "select.int": (A, 1, 2),
    "select_scatter": (A, x(3), 0, 1),
    "sigmoid": (B,),
    "sign": (B,),
    "conj": (A + 1j * B,),
    "imag": (A + 1j * B,),
    "real": (A + 1j * B,),
    "silu": (B,),
    "sin": (B,),
    "slice.Tensor": (A, 1, 0, 3, 2),
    "slice_scatter": (A, x(1, 3), 0, 1, 2),
    "softmax": (A, 0),
    "softplus": (B,),
    "sqrt": (A,),
    "squeeze": (x(1, 3, 1),),
    "squeeze.dim": (x(1, 3), 0),
    "stack": ([A, B], 1),
    "sub": (A, B),
    "sub.Scalar": (A, 2.0),
    "sum": (A,),
    "sum.dim": (A, [0]),
    "tanh": (B,),
    "to": (A, kf.float32),
    "to.device": (A, "cpu"),
    "transpose": (A, 0, 1),
    "trunc": (B,),
    "unsqueeze": (A, 1),
    "where": (A > 0.6, A, B),
    "where.Scalar": (A > 0.6, 1.0, 2.0),
    "where.ScalarOther": (A > 0.6, A, 2.0),
    "where.ScalarSelf": (A > 0.6, 2.0, B),
    "zeros": ([2, 3],),
}


def test_the_cases_are_all_built_in_operators():
    names = kf._default_dispatcher.operator_names()
    # Overloads that write into `out` are compared with NumPy in tests/ops/test_against_numpy.py.
    expected = {n for n in names if n.startswith("aten::") and not n.endswith((".out", "_out"))}
    assert {f"aten::{name}" for name in CASES} == expected


@pytest.mark.parametrize("name", CASES)
def test_built_in_operators_are_honest(name):
    report = kf.opcheck(kf.get_op(f"aten::{name}"), CASES[name])
    assert report["schema"] == "passed"
    # As tensors, and where there are shorter floats in them.
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        args = [convert(arg, dtype) for arg in CASES[name]]
        kf.opcheck(kf.get_op(f"aten::{name}"), args, rtol=1e-2, atol=1e-2)


def convert(arg, dtype):
    if isinstance(arg, list):
        return [convert(item, dtype) for item in arg]
    if not isinstance(arg, np.ndarray):
        return arg
    tensor = kf.asarray(arg)
    return tensor.to(dtype) if arg.dtype == np.float64 else tensor
