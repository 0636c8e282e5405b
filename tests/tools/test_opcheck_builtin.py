"""opcheck of every built-in operator, in every dtype that the gradients are compared in."""

import numpy as np
import pytest

import keyfold as kf
from tests.helpers.opchecks import x

# Apart from each other and from where functions have kinks.
A, B = x(), x()[::-1] * 1.3 - 0.7
ROW = np.array([1, 0])
# Of an array with channels, and what stands beside them.
CHANNELS = x(2, 2, 3) - 1.0
W, V = x(2), x(2) + 0.5
ALL = [True, True, True]

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
    "_fused_rms_norm": (A, [3], x(3), 0.1),
    "_fused_rms_norm_backward": (A, B, [3], x(2, 1), x(3), [True, True]),
    "_log_softmax_backward_data": (A, B, 1, kf.float64),
    "_native_batch_norm_legit.no_stats": (CHANNELS, W, V, True, 0.1, 0.1),
    "_native_batch_norm_legit_functional": (CHANNELS, W, V, W, V, True, 0.1, 0.1),
    "_native_batch_norm_legit_no_training": (CHANNELS, W, V, W, V, 0.1, 0.1),
    "_softmax_backward_data": (A, B, 1, kf.float64),
    "batch_norm": (CHANNELS, W, V, None, None, True, 0.1, 0.1),
    "clamp": (B, 0.3, 0.9),
    "elu": (B,),
    "gelu_backward": (A, B),
    "gelu_sigmoid": (B,),
    "gelu_sigmoid_backward": (A, B),
    "gelu_tanh_backward": (A, B),
    "group_norm": (CHANNELS, 1, W, V, 0.1),
    "hardtanh": (B * 1.1,),
    "instance_norm": (CHANNELS, W, V, None, None, True, 0.1, 0.1),
    "layer_norm": (A, [3], x(3), x(3), 0.1),
    "leaky_relu": (B,),
    "masked_fill.Scalar": (A, A > 0.6, 2.0),
    "masked_fill.Tensor": (A, A > 0.6, B),
    "mish": (B,),
    "native_batch_norm": (CHANNELS, W, V, None, None, True, 0.1, 0.1),
    "native_batch_norm_backward": (CHANNELS, CHANNELS * 0.7, W, None, None, W, V, True, 0.1, ALL),
    "native_group_norm": (CHANNELS, W, V, 2, 2, 3, 1, 0.1),
    "native_group_norm_backward": (
        CHANNELS,
        CHANNELS * 0.7,
        x(2, 1),
        x(2, 1),
        W,
        2,
        2,
        3,
        1,
        ALL,
    ),
    "native_layer_norm": (A, [3], x(3), x(3), 0.1),
    "native_layer_norm_backward": (A, B, [3], x(2, 1), x(2, 1), x(3), None, ALL),
    "rms_norm": (A, [3], x(3), 0.1),
    "sigmoid_backward": (A, B),
    "tanh_backward": (A, B),
    "threshold_backward": (A, B, 0.65),
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
    "native_dropout": (A, 0.5, True),
    "native_dropout_backward": (A, B > 0.0, 2.0),
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

# Images of one channel, kernels, and what is taken of them.
IMAGE, VOLUME = x(1, 1, 3, 4), x(1, 1, 2, 3, 3)
KERNEL = x(1, 1, 2, 2) - 0.4
GATES = x(2, 6) - 0.7
CELL = x(2, 8) - 0.7
STATE = x(2, 2)
# Square, and positive definite.
SQUARE = x(2, 2) + np.eye(2)
GRAM = SQUARE @ SQUARE.T

CASES |= {
    "_adaptive_avg_pool2d_backward": (x(1, 1, 2, 2), IMAGE),
    "_adaptive_avg_pool3d_backward": (x(1, 1, 1, 2, 2), VOLUME),
    "_thnn_fused_gru_cell": (GATES, GATES * 0.5, STATE),
    "_thnn_fused_gru_cell_backward": (STATE, x(2, 10), True),
    "_thnn_fused_lstm_cell": (CELL, CELL * 0.5, STATE),
    "_thnn_fused_lstm_cell_backward_impl": (STATE, None, STATE, STATE, x(2, 8), True),
    "adaptive_avg_pool1d": (x(1, 2, 4), 2),
    "adaptive_avg_pool2d": (IMAGE, 2),
    "adaptive_avg_pool3d": (VOLUME, 2),
    "addmm": (A, x(2, 2), A),
    "avg_pool1d": (x(1, 2, 4), 2),
    "avg_pool2d": (IMAGE, 2),
    "avg_pool2d_backward": (x(1, 1, 1, 2), IMAGE, 2, 2, 0, False, True, None),
    "avg_pool3d": (VOLUME, 2),
    "avg_pool3d_backward": (x(1, 1, 1, 1, 1), VOLUME, 2, 2, 0, False, True, None),
    "baddbmm": (A, x(2, 2, 2), x(2, 2, 3)),
    "bmm": (x(2, 2, 2), x(2, 2, 3)),
    "chunk": (A, 2),
    "conv1d": (x(1, 1, 4), x(1, 1, 2)),
    "conv1d.padding": (x(1, 1, 4), x(1, 1, 2), None, 1, "same"),
    "conv2d": (IMAGE, KERNEL, x(1)),
    "conv2d.padding": (IMAGE, KERNEL, None, 1, "same"),
    "conv3d": (VOLUME, x(1, 1, 2, 2, 2)),
    "conv3d.padding": (VOLUME, x(1, 1, 2, 2, 2), None, 1, "valid"),
    "conv_transpose1d": (x(1, 1, 4), x(1, 1, 2)),
    "conv_transpose2d.input": (IMAGE, KERNEL),
    "conv_transpose3d.input": (VOLUME, x(1, 1, 2, 2, 2)),
    "convolution": (IMAGE, KERNEL, x(1), [1], [1], [1], False, [0], 1),
    "convolution_backward": (
        *(x(1, 1, 2, 3), IMAGE, KERNEL, [1], [1], [0], [1], False, [0], 1, ALL),
    ),
    "dot": (x(3), x(3)),
    "embedding": (A, ROW),
    "embedding_dense_backward": (A, ROW, 3, -1, False),
    "gru_cell": (x(2, 3), STATE, x(6, 3), x(6, 2)),
    "linear": (A, x(2, 3), x(2)),
    "lstm_cell": (x(2, 3), [STATE, STATE * 0.5], x(8, 3), x(8, 2)),
    "max_pool1d": (x(1, 2, 4), 2),
    "max_pool1d_with_indices": (x(1, 2, 4), 2),
    "max_pool2d": (IMAGE, 2),
    "max_pool2d_with_indices": (IMAGE, 2),
    "max_pool2d_with_indices_backward": (
        *(x(1, 1, 1, 2), IMAGE, 2, 2, 0, 1, False, np.array([[[[5, 7]]]])),
    ),
    "max_pool3d": (VOLUME, 2),
    "max_pool3d_with_indices": (VOLUME, 2),
    "max_pool3d_with_indices_backward": (
        *(x(1, 1, 1, 1, 1), VOLUME, 2, 2, 0, 1, False, np.array([[[[[13]]]]])),
    ),
    "mm": (x(2, 2), A),
    "mv": (A, x(3)),
    "scaled_dot_product_attention": (x(2, 3), x(4, 3), x(4, 2)),
    "split.Tensor": (A, 2, 1),
    "split_with_sizes": (A, [1, 2], 1),
    "tensor_split.indices": (A, [1], 1),
    "tensor_split.sections": (A, 2, 1),
    "unbind.int": (A,),
}

# Operators that refuse halves.
DECOMPOSITIONS = {
    "linalg_cholesky": (GRAM,),
    "linalg_cholesky_ex": (GRAM,),
    "linalg_det": (SQUARE,),
    "linalg_eigh": (GRAM,),
    "linalg_eigvalsh": (GRAM,),
    "linalg_inv": (SQUARE,),
    "linalg_qr": (SQUARE,),
    "linalg_slogdet": (SQUARE,),
    "linalg_solve": (SQUARE, STATE),
    "linalg_solve_ex": (SQUARE, STATE),
    "linalg_solve_triangular": (SQUARE, STATE),
    "linalg_svd": (SQUARE,),
    "linalg_svdvals": (SQUARE,),
}


def test_the_cases_are_all_built_in_operators():
    names = kf._default_dispatcher.operator_names()
    # Overloads that write into `out` are compared in tests/ops/test_against_numpy.py, and
    # with the fresh results in crates/ops/tests/out.rs.
    outs = (".out", "_out", "linalg_svd.U", "linalg_cholesky_ex.L", "linalg_eigh.eigvals")
    expected = {n for n in names if n.startswith("aten::") and not n.endswith(outs)}
    assert {f"aten::{name}" for name in CASES | DECOMPOSITIONS} == expected


@pytest.mark.one_python
@pytest.mark.parametrize("name", CASES)
def test_built_in_operators_are_honest(name):
    report = kf.opcheck(kf.get_op(f"aten::{name}"), CASES[name])
    assert report["schema"] == "passed"
    # As tensors, and where there are shorter floats in them.
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        args = [convert(arg, dtype) for arg in CASES[name]]
        kf.opcheck(kf.get_op(f"aten::{name}"), args, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", DECOMPOSITIONS)
def test_decompositions_are_honest(name):
    options = {"upper": True} if name == "linalg_solve_triangular" else {}
    # One triangle is read, so a difference of one element isn't that of a symmetric matrix.
    reads_triangle = name.startswith(("linalg_cholesky", "linalg_eig"))
    tests = ["schema", "layouts", "meta", "vmap", "autocast", "trace"]
    tests += [] if reads_triangle else ["autograd"]
    report = kf.opcheck(kf.get_op(f"aten::{name}"), DECOMPOSITIONS[name], options, tests=tests)
    assert report["schema"] == "passed"


def convert(arg, dtype):
    if isinstance(arg, list):
        return [convert(item, dtype) for item in arg]
    if not isinstance(arg, np.ndarray):
        return arg
    tensor = kf.asarray(arg)
    return tensor.to(dtype) if arg.dtype == np.float64 else tensor
