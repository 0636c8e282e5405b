# Printed from the operators' rows: `KEYFOLD_WRITE=1 cargo test -p keyfold-ops --test stub`.

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, overload

from numpy.typing import NDArray

from keyfold._core import Tensor, _DTypeLike
from keyfold._ops._axis import Axis

class _Array(Protocol):
    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...

# The result is of the arguments' library, keyfold or NumPy; of another one, and of several, Any.
_A = TypeVar("_A", Tensor, NDArray[Any])

__all__ = [
    "abs",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "add",
    "all",
    "any",
    "argmax",
    "argmin",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "ceil",
    "conj",
    "convolution_activation",
    "cos",
    "divide",
    "dropout",
    "dropout_threshold",
    "elu",
    "equal",
    "erf",
    "exp",
    "expand_dims",
    "expm1",
    "floor",
    "floor_divide",
    "greater",
    "greater_equal",
    "group_norm",
    "gru_cell",
    "hardtanh",
    "has_inf_nan",
    "imag",
    "instance_norm",
    "isfinite",
    "isinf",
    "isnan",
    "layer_norm",
    "leaky_relu",
    "less",
    "less_equal",
    "linear",
    "linear_activation",
    "log",
    "log1p",
    "log_softmax",
    "logical_not",
    "lstm_cell",
    "masked_fill",
    "masked_zero",
    "matmul",
    "matmul_mixed",
    "max",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mish",
    "multiply",
    "negative",
    "not_equal",
    "permute_dims",
    "positive",
    "pow",
    "real",
    "reciprocal",
    "relu",
    "remainder",
    "rms_norm",
    "round",
    "rsqrt",
    "scaled_dot_product_attention",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "softmax",
    "softplus",
    "sqrt",
    "stack",
    "subtract",
    "sum",
    "tanh",
    "trunc",
    "where",
]

@overload
def abs(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def abs(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def adaptive_avg_pool1d(x: _A, /, output_size: int | Sequence[int]) -> _A: ...
@overload
def adaptive_avg_pool1d(x: _Array, /, output_size: int | Sequence[int]) -> Any: ...
@overload
def adaptive_avg_pool2d(
    x: _A, /, output_size: int | Sequence[int], *, out: _Array | None = None
) -> _A: ...
@overload
def adaptive_avg_pool2d(
    x: _Array, /, output_size: int | Sequence[int], *, out: _Array | None = None
) -> Any: ...
@overload
def adaptive_avg_pool3d(
    x: _A, /, output_size: int | Sequence[int], *, out: _Array | None = None
) -> _A: ...
@overload
def adaptive_avg_pool3d(
    x: _Array, /, output_size: int | Sequence[int], *, out: _Array | None = None
) -> Any: ...
@overload
def add(x1: _A, x2: _A | complex, /, *, out: _Array | None = None) -> _A: ...
@overload
def add(x1: complex, x2: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def add(x1: _Array, x2: _Array | complex, /, *, out: _Array | None = None) -> Any: ...
@overload
def add(x1: complex, x2: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def all(
    x: _A,
    /,
    axis: Axis = None,
    *,
    keepdims: bool | None = False,
    out: _Array | None = None,
    dim: Axis = None,
    keepdim: bool | None = None,
) -> _A: ...
@overload
def all(
    x: _Array,
    /,
    axis: Axis = None,
    *,
    keepdims: bool | None = False,
    out: _Array | None = None,
    dim: Axis = None,
    keepdim: bool | None = None,
) -> Any: ...
@overload
def any(
    x: _A,
    /,
    axis: Axis = None,
    *,
    keepdims: bool | None = False,
    out: _Array | None = None,
    dim: Axis = None,
    keepdim: bool | None = None,
) -> _A: ...
@overload
def any(
    x: _Array,
    /,
    axis: Axis = None,
    *,
    keepdims: bool | None = False,
    out: _Array | None = None,
    dim: Axis = None,
    keepdim: bool | None = None,
) -> Any: ...
@overload
def argmax(
    x: _A,
    /,
    axis: int | None = None,
    *,
    keepdims: bool | None = False,
    out: _Array | None = None,
    dim: int | None = None,
    keepdim: bool | None = None,
) -> _A: ...
@overload
def argmax(
    x: _Array,
    /,
    axis: int | None = None,
    *,
    keepdims: bool | None = False,
    out: _Array | None = None,
    dim: int | None = None,
    keepdim: bool | None = None,
) -> Any: ...
@overload
def argmin(
    x: _A,
    /,
    axis: int | None = None,
    *,
    keepdims: bool | None = False,
    out: _Array | None = None,
    dim: int | None = None,
    keepdim: bool | None = None,
) -> _A: ...
@overload
def argmin(
    x: _Array,
    /,
    axis: int | None = None,
    *,
    keepdims: bool | None = False,
    out: _Array | None = None,
    dim: int | None = None,
    keepdim: bool | None = None,
) -> Any: ...
@overload
def avg_pool1d(
    x: _A,
    /,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> _A: ...
@overload
def avg_pool1d(
    x: _Array,
    /,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any: ...
@overload
def avg_pool2d(
    x: _A,
    /,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    out: _Array | None = None,
) -> _A: ...
@overload
def avg_pool2d(
    x: _Array,
    /,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    out: _Array | None = None,
) -> Any: ...
@overload
def avg_pool3d(
    x: _A,
    /,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    out: _Array | None = None,
) -> _A: ...
@overload
def avg_pool3d(
    x: _Array,
    /,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    out: _Array | None = None,
) -> Any: ...
@overload
def batch_norm(
    x: _A,
    /,
    running_mean: _A | None = None,
    running_var: _A | None = None,
    weight: _A | None = None,
    bias: _A | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> _A: ...
@overload
def batch_norm(
    x: _Array,
    /,
    running_mean: _Array | None = None,
    running_var: _Array | None = None,
    weight: _Array | None = None,
    bias: _Array | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any: ...
@overload
def bitwise_and(x1: _A, x2: _A | complex, /, *, out: _Array | None = None) -> _A: ...
@overload
def bitwise_and(x1: complex, x2: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def bitwise_and(x1: _Array, x2: _Array | complex, /, *, out: _Array | None = None) -> Any: ...
@overload
def bitwise_and(x1: complex, x2: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def bitwise_invert(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def bitwise_invert(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def bitwise_left_shift(x1: _A, x2: _A | complex, /, *, out: _Array | None = None) -> _A: ...
@overload
def bitwise_left_shift(x1: complex, x2: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def bitwise_left_shift(
    x1: _Array, x2: _Array | complex, /, *, out: _Array | None = None
) -> Any: ...
@overload
def bitwise_left_shift(x1: complex, x2: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def bitwise_or(x1: _A, x2: _A | complex, /, *, out: _Array | None = None) -> _A: ...
@overload
def bitwise_or(x1: complex, x2: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def bitwise_or(x1: _Array, x2: _Array | complex, /, *, out: _Array | None = None) -> Any: ...
@overload
def bitwise_or(x1: complex, x2: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def bitwise_right_shift(x1: _A, x2: _A | complex, /, *, out: _Array | None = None) -> _A: ...
@overload
def bitwise_right_shift(x1: complex, x2: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def bitwise_right_shift(
    x1: _Array, x2: _Array | complex, /, *, out: _Array | None = None
) -> Any: ...
@overload
def bitwise_right_shift(x1: complex, x2: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def bitwise_xor(x1: _A, x2: _A | complex, /, *, out: _Array | None = None) -> _A: ...
@overload
def bitwise_xor(x1: complex, x2: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def bitwise_xor(x1: _Array, x2: _Array | complex, /, *, out: _Array | None = None) -> Any: ...
@overload
def bitwise_xor(x1: complex, x2: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def ceil(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def ceil(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def conj(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def conj(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def convolution_activation(
    x: _A,
    weight: _A,
    /,
    bias: _A | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    activation: str = "none",
    *,
    out: _Array | None = None,
) -> _A: ...
@overload
def convolution_activation(
    x: _Array,
    weight: _Array,
    /,
    bias: _Array | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    activation: str = "none",
    *,
    out: _Array | None = None,
) -> Any: ...
@overload
def cos(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def cos(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def divide(x1: _A, x2: _A | complex, /, *, out: _Array | None = None) -> _A: ...
@overload
def divide(x1: complex, x2: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def divide(x1: _Array, x2: _Array | complex, /, *, out: _Array | None = None) -> Any: ...
@overload
def divide(x1: complex, x2: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def dropout(
    x: _A, /, p: float = 0.5, *, train: bool = True, training: bool | None = None
) -> _A: ...
@overload
def dropout(
    x: _Array, /, p: float = 0.5, *, train: bool = True, training: bool | None = None
) -> Any: ...
@overload
def dropout_threshold(
    x: _A,
    /,
    threshold: int,
    scale: float,
    seed: int,
    offset: int = 0,
    *,
    out: tuple[_Array, ...] | None = None,
) -> tuple[_A, _A]: ...
@overload
def dropout_threshold(
    x: _Array,
    /,
    threshold: int,
    scale: float,
    seed: int,
    offset: int = 0,
    *,
    out: tuple[_Array, ...] | None = None,
) -> tuple[Any, Any]: ...
@overload
def elu(x: _A, /, alpha: complex = 1, *, out: _Array | None = None) -> _A: ...
@overload
def elu(x: _Array, /, alpha: complex = 1, *, out: _Array | None = None) -> Any: ...
@overload
def equal(x1: _A, x2: _A | complex, /, *, out: _Array | None = None) -> _A: ...
@overload
def equal(x1: complex, x2: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def equal(x1: _Array, x2: _Array | complex, /, *, out: _Array | None = None) -> Any: ...
@overload
def equal(x1: complex, x2: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def erf(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def erf(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def exp(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def exp(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def expand_dims(x: _A, /, axis: int = 0, *, dim: int | None = None) -> _A: ...
@overload
def expand_dims(x: _Array, /, axis: int = 0, *, dim: int | None = None) -> Any: ...
@overload
def expm1(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def expm1(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def floor(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def floor(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def floor_divide(x1: _A, x2: _A | complex, /, *, out: _Array | None = None) -> _A: ...
@overload
def floor_divide(x1: complex, x2: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def floor_divide(x1: _Array, x2: _Array | complex, /, *, out: _Array | None = None) -> Any: ...
@overload
def floor_divide(x1: complex, x2: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def greater(x1: _A, x2: _A | complex, /, *, out: _Array | None = None) -> _A: ...
@overload
def greater(x1: complex, x2: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def greater(x1: _Array, x2: _Array | complex, /, *, out: _Array | None = None) -> Any: ...
@overload
def greater(x1: complex, x2: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def greater_equal(x1: _A, x2: _A | complex, /, *, out: _Array | None = None) -> _A: ...
@overload
def greater_equal(x1: complex, x2: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def greater_equal(x1: _Array, x2: _Array | complex, /, *, out: _Array | None = None) -> Any: ...
@overload
def greater_equal(x1: complex, x2: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def group_norm(
    x: _A,
    /,
    num_groups: int,
    weight: _A | None = None,
    bias: _A | None = None,
    *,
    eps: float = 1e-5,
) -> _A: ...
@overload
def group_norm(
    x: _Array,
    /,
    num_groups: int,
    weight: _Array | None = None,
    bias: _Array | None = None,
    *,
    eps: float = 1e-5,
) -> Any: ...
@overload
def gru_cell(
    input: _A, hx: _A, w_ih: _A, w_hh: _A, /, b_ih: _A | None = None, b_hh: _A | None = None
) -> _A: ...
@overload
def gru_cell(
    input: _Array,
    hx: _Array,
    w_ih: _Array,
    w_hh: _Array,
    /,
    b_ih: _Array | None = None,
    b_hh: _Array | None = None,
) -> Any: ...
@overload
def hardtanh(
    x: _A, /, min_val: complex = -1, max_val: complex = 1, *, out: _Array | None = None
) -> _A: ...
@overload
def hardtanh(
    x: _Array, /, min_val: complex = -1, max_val: complex = 1, *, out: _Array | None = None
) -> Any: ...
@overload
def has_inf_nan(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def has_inf_nan(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def imag(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def imag(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def instance_norm(
    x: _A,
    /,
    running_mean: _A | None = None,
    running_var: _A | None = None,
    weight: _A | None = None,
    bias: _A | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> _A: ...
@overload
def instance_norm(
    x: _Array,
    /,
    running_mean: _Array | None = None,
    running_var: _Array | None = None,
    weight: _Array | None = None,
    bias: _Array | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any: ...
@overload
def isfinite(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def isfinite(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def isinf(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def isinf(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def isnan(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def isnan(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def layer_norm(
    x: _A,
    /,
    normalized_shape: Sequence[int],
    weight: _A | None = None,
    bias: _A | None = None,
    *,
    eps: float = 1e-5,
) -> _A: ...
@overload
def layer_norm(
    x: _Array,
    /,
    normalized_shape: Sequence[int],
    weight: _Array | None = None,
    bias: _Array | None = None,
    *,
    eps: float = 1e-5,
) -> Any: ...
@overload
def leaky_relu(x: _A, /, negative_slope: complex = 0.01, *, out: _Array | None = None) -> _A: ...
@overload
def leaky_relu(
    x: _Array, /, negative_slope: complex = 0.01, *, out: _Array | None = None
) -> Any: ...
@overload
def less(x1: _A, x2: _A | complex, /, *, out: _Array | None = None) -> _A: ...
@overload
def less(x1: complex, x2: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def less(x1: _Array, x2: _Array | complex, /, *, out: _Array | None = None) -> Any: ...
@overload
def less(x1: complex, x2: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def less_equal(x1: _A, x2: _A | complex, /, *, out: _Array | None = None) -> _A: ...
@overload
def less_equal(x1: complex, x2: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def less_equal(x1: _Array, x2: _Array | complex, /, *, out: _Array | None = None) -> Any: ...
@overload
def less_equal(x1: complex, x2: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def linear(x: _A, weight: _A, /, bias: _A | None = None, *, out: _Array | None = None) -> _A: ...
@overload
def linear(
    x: _Array, weight: _Array, /, bias: _Array | None = None, *, out: _Array | None = None
) -> Any: ...
@overload
def linear_activation(
    x: _A,
    weight: _A,
    /,
    bias: _A | None = None,
    activation: str = "none",
    *,
    out: _Array | None = None,
) -> _A: ...
@overload
def linear_activation(
    x: _Array,
    weight: _Array,
    /,
    bias: _Array | None = None,
    activation: str = "none",
    *,
    out: _Array | None = None,
) -> Any: ...
@overload
def log(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def log(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def log1p(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def log1p(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def log_softmax(
    x: _A, /, axis: int = -1, *, out: _Array | None = None, dim: int | None = None
) -> _A: ...
@overload
def log_softmax(
    x: _Array, /, axis: int = -1, *, out: _Array | None = None, dim: int | None = None
) -> Any: ...
@overload
def logical_not(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def logical_not(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def lstm_cell(
    input: _A,
    hx: Sequence[_A],
    w_ih: _A,
    w_hh: _A,
    /,
    b_ih: _A | None = None,
    b_hh: _A | None = None,
) -> tuple[_A, _A]: ...
@overload
def lstm_cell(
    input: _Array,
    hx: Sequence[_Array],
    w_ih: _Array,
    w_hh: _Array,
    /,
    b_ih: _Array | None = None,
    b_hh: _Array | None = None,
) -> tuple[Any, Any]: ...
@overload
def masked_fill(x: _A, mask: _A, /, value: complex, *, out: _Array | None = None) -> _A: ...
@overload
def masked_fill(
    x: _Array, mask: _Array, /, value: complex, *, out: _Array | None = None
) -> Any: ...
@overload
def masked_zero(x: _A, mask: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def masked_zero(x: _Array, mask: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def matmul(x1: _A, x2: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def matmul(x1: _Array, x2: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def matmul_mixed(x1: _A, x2: _A, /, dtype: _DTypeLike, *, out: _Array | None = None) -> _A: ...
@overload
def matmul_mixed(
    x1: _Array, x2: _Array, /, dtype: _DTypeLike, *, out: _Array | None = None
) -> Any: ...
@overload
def max(
    x: _A,
    /,
    axis: Axis = None,
    *,
    keepdims: bool | None = False,
    out: _Array | None = None,
    dim: Axis = None,
    keepdim: bool | None = None,
) -> _A: ...
@overload
def max(
    x: _Array,
    /,
    axis: Axis = None,
    *,
    keepdims: bool | None = False,
    out: _Array | None = None,
    dim: Axis = None,
    keepdim: bool | None = None,
) -> Any: ...
@overload
def max_pool1d(
    x: _A,
    /,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> _A: ...
@overload
def max_pool1d(
    x: _Array,
    /,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> Any: ...
@overload
def max_pool2d(
    x: _A,
    /,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> _A: ...
@overload
def max_pool2d(
    x: _Array,
    /,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> Any: ...
@overload
def max_pool3d(
    x: _A,
    /,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> _A: ...
@overload
def max_pool3d(
    x: _Array,
    /,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> Any: ...
@overload
def maximum(x1: _A, x2: _A | complex, /, *, out: _Array | None = None) -> _A: ...
@overload
def maximum(x1: complex, x2: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def maximum(x1: _Array, x2: _Array | complex, /, *, out: _Array | None = None) -> Any: ...
@overload
def maximum(x1: complex, x2: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def mean(
    x: _A,
    /,
    axis: Axis = None,
    *,
    dtype: _DTypeLike | None = None,
    keepdims: bool | None = False,
    out: _Array | None = None,
    dim: Axis = None,
    keepdim: bool | None = None,
) -> _A: ...
@overload
def mean(
    x: _Array,
    /,
    axis: Axis = None,
    *,
    dtype: _DTypeLike | None = None,
    keepdims: bool | None = False,
    out: _Array | None = None,
    dim: Axis = None,
    keepdim: bool | None = None,
) -> Any: ...
@overload
def min(
    x: _A,
    /,
    axis: Axis = None,
    *,
    keepdims: bool | None = False,
    out: _Array | None = None,
    dim: Axis = None,
    keepdim: bool | None = None,
) -> _A: ...
@overload
def min(
    x: _Array,
    /,
    axis: Axis = None,
    *,
    keepdims: bool | None = False,
    out: _Array | None = None,
    dim: Axis = None,
    keepdim: bool | None = None,
) -> Any: ...
@overload
def minimum(x1: _A, x2: _A | complex, /, *, out: _Array | None = None) -> _A: ...
@overload
def minimum(x1: complex, x2: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def minimum(x1: _Array, x2: _Array | complex, /, *, out: _Array | None = None) -> Any: ...
@overload
def minimum(x1: complex, x2: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def mish(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def mish(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def multiply(x1: _A, x2: _A | complex, /, *, out: _Array | None = None) -> _A: ...
@overload
def multiply(x1: complex, x2: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def multiply(x1: _Array, x2: _Array | complex, /, *, out: _Array | None = None) -> Any: ...
@overload
def multiply(x1: complex, x2: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def negative(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def negative(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def not_equal(x1: _A, x2: _A | complex, /, *, out: _Array | None = None) -> _A: ...
@overload
def not_equal(x1: complex, x2: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def not_equal(x1: _Array, x2: _Array | complex, /, *, out: _Array | None = None) -> Any: ...
@overload
def not_equal(x1: complex, x2: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def permute_dims(x: _A, /, axes: Sequence[int]) -> _A: ...
@overload
def permute_dims(x: _Array, /, axes: Sequence[int]) -> Any: ...
@overload
def positive(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def positive(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def pow(x1: _A, x2: _A | complex, /, *, out: _Array | None = None) -> _A: ...
@overload
def pow(x1: complex, x2: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def pow(x1: _Array, x2: _Array | complex, /, *, out: _Array | None = None) -> Any: ...
@overload
def pow(x1: complex, x2: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def real(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def real(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def reciprocal(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def reciprocal(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def relu(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def relu(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def remainder(x1: _A, x2: _A | complex, /, *, out: _Array | None = None) -> _A: ...
@overload
def remainder(x1: complex, x2: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def remainder(x1: _Array, x2: _Array | complex, /, *, out: _Array | None = None) -> Any: ...
@overload
def remainder(x1: complex, x2: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def rms_norm(
    x: _A, /, normalized_shape: Sequence[int], weight: _A | None = None, *, eps: float | None = None
) -> _A: ...
@overload
def rms_norm(
    x: _Array,
    /,
    normalized_shape: Sequence[int],
    weight: _Array | None = None,
    *,
    eps: float | None = None,
) -> Any: ...
@overload
def round(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def round(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def rsqrt(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def rsqrt(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def scaled_dot_product_attention(
    query: _A,
    key: _A,
    value: _A,
    /,
    attn_mask: _A | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> _A: ...
@overload
def scaled_dot_product_attention(
    query: _Array,
    key: _Array,
    value: _Array,
    /,
    attn_mask: _Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any: ...
@overload
def sigmoid(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def sigmoid(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def sign(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def sign(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def silu(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def silu(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def sin(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def sin(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def softmax(
    x: _A, /, axis: int = -1, *, out: _Array | None = None, dim: int | None = None
) -> _A: ...
@overload
def softmax(
    x: _Array, /, axis: int = -1, *, out: _Array | None = None, dim: int | None = None
) -> Any: ...
@overload
def softplus(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def softplus(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def sqrt(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def sqrt(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def stack(
    arrays: Sequence[_A], /, axis: int = 0, *, out: _Array | None = None, dim: int | None = None
) -> _A: ...
@overload
def stack(
    arrays: Sequence[_Array], /, axis: int = 0, *, out: _Array | None = None, dim: int | None = None
) -> Any: ...
@overload
def subtract(x1: _A, x2: _A | complex, /, *, out: _Array | None = None) -> _A: ...
@overload
def subtract(x1: complex, x2: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def subtract(x1: _Array, x2: _Array | complex, /, *, out: _Array | None = None) -> Any: ...
@overload
def subtract(x1: complex, x2: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def sum(
    x: _A,
    /,
    axis: Axis = None,
    *,
    dtype: _DTypeLike | None = None,
    keepdims: bool | None = False,
    out: _Array | None = None,
    dim: Axis = None,
    keepdim: bool | None = None,
) -> _A: ...
@overload
def sum(
    x: _Array,
    /,
    axis: Axis = None,
    *,
    dtype: _DTypeLike | None = None,
    keepdims: bool | None = False,
    out: _Array | None = None,
    dim: Axis = None,
    keepdim: bool | None = None,
) -> Any: ...
@overload
def tanh(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def tanh(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def trunc(x: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def trunc(x: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def where(condition: _Array, x1: _A, x2: _A | complex, /, *, out: _Array | None = None) -> _A: ...
@overload
def where(condition: _Array, x1: complex, x2: _A, /, *, out: _Array | None = None) -> _A: ...
@overload
def where(condition: _A, x1: complex, x2: complex, /, *, out: _Array | None = None) -> _A: ...
@overload
def where(
    condition: _Array, x1: _Array, x2: _Array | complex, /, *, out: _Array | None = None
) -> Any: ...
@overload
def where(condition: _Array, x1: complex, x2: _Array, /, *, out: _Array | None = None) -> Any: ...
@overload
def where(condition: _Array, x1: complex, x2: complex, /, *, out: _Array | None = None) -> Any: ...

# The base of Tensor in the stub of the extension module, which has no such class.
class _OperatorMethods:
    def abs(self, *, out: _Array | None = None) -> Tensor: ...
    def all(
        self,
        axis: Axis = None,
        *,
        keepdims: bool | None = False,
        out: _Array | None = None,
        dim: Axis = None,
        keepdim: bool | None = None,
    ) -> Tensor: ...
    def any(
        self,
        axis: Axis = None,
        *,
        keepdims: bool | None = False,
        out: _Array | None = None,
        dim: Axis = None,
        keepdim: bool | None = None,
    ) -> Tensor: ...
    def argmax(
        self,
        axis: int | None = None,
        *,
        keepdims: bool | None = False,
        out: _Array | None = None,
        dim: int | None = None,
        keepdim: bool | None = None,
    ) -> Tensor: ...
    def argmin(
        self,
        axis: int | None = None,
        *,
        keepdims: bool | None = False,
        out: _Array | None = None,
        dim: int | None = None,
        keepdim: bool | None = None,
    ) -> Tensor: ...
    def conj(self, *, out: _Array | None = None) -> Tensor: ...
    def cos(self, *, out: _Array | None = None) -> Tensor: ...
    def exp(self, *, out: _Array | None = None) -> Tensor: ...
    def log(self, *, out: _Array | None = None) -> Tensor: ...
    def max(
        self,
        axis: Axis = None,
        *,
        keepdims: bool | None = False,
        out: _Array | None = None,
        dim: Axis = None,
        keepdim: bool | None = None,
    ) -> Tensor: ...
    def mean(
        self,
        axis: Axis = None,
        *,
        dtype: _DTypeLike | None = None,
        keepdims: bool | None = False,
        out: _Array | None = None,
        dim: Axis = None,
        keepdim: bool | None = None,
    ) -> Tensor: ...
    def min(
        self,
        axis: Axis = None,
        *,
        keepdims: bool | None = False,
        out: _Array | None = None,
        dim: Axis = None,
        keepdim: bool | None = None,
    ) -> Tensor: ...
    def relu(self, *, out: _Array | None = None) -> Tensor: ...
    def sigmoid(self, *, out: _Array | None = None) -> Tensor: ...
    def sin(self, *, out: _Array | None = None) -> Tensor: ...
    def softmax(
        self, axis: int = -1, *, out: _Array | None = None, dim: int | None = None
    ) -> Tensor: ...
    def sqrt(self, *, out: _Array | None = None) -> Tensor: ...
    def sum(
        self,
        axis: Axis = None,
        *,
        dtype: _DTypeLike | None = None,
        keepdims: bool | None = False,
        out: _Array | None = None,
        dim: Axis = None,
        keepdim: bool | None = None,
    ) -> Tensor: ...
    def tanh(self, *, out: _Array | None = None) -> Tensor: ...
