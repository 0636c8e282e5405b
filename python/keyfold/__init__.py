"""keyfold: a multi-dispatch engine for tensor kernels.

Define operators, register a Python or native kernel for each dispatch key, and call them on the
arrays you already have:

- operators: `define`, `impl`, `fallback`, `Library`, `ops.<namespace>.<name>`, `redispatch`
- an operator of a function in one step: `custom_op`, `infer_schema`
- kernels of installed packages: the entry points `keyfold.kernels`, `load_kernels`
- keys: `DispatchKey`, `DispatchKeySet`, `register_key`, `include_keys`, `exclude_keys`
- recording: `trace`, `Graph`
- looking inside: `explain`, an operator's `.table()`, `.kernels` and `.schema`, a `Schema`
- a kernel's instance by dtype, layout and more: `DispatchTable`
- arrays: `Tensor`, `asarray`, `from_numpy`, `from_dlpack`, and functions by their names in the
  Python array API standard
- linear algebra: `linalg`, by the standard's names
- shorter numbers: `autocast`, `register_autocast`
- deferred calls: `pipeline`, `flush`; recorded functions: `fuse`
- shapes and dtypes without data: `register_fake`, `infer_meta`
- derivatives: `grad`, `value_and_grad`, `Tensor.backward`, `jvp`, `jacfwd`, `jacrev`, `hessian`,
  `no_grad`, `checkpoint`, `register_autograd`, `register_jvp`
- checks of operators: `opcheck`, `gradcheck`, `gradgradcheck`
- batches: `vmap`, `register_vmap`
- optimizers: `optim.Adam`, `optim.SGD`
- random numbers: `rand`, `randn`, `dropout`, `manual_seed`, `get_rng_state`, `set_rng_state`;
  `random.get_state` and `random.set_state` of a device
- devices: `backends`, `register_backend`, `allow_fallback`, `fallbacks`, `Device`
- the proof of a backend: `conformance`
- threads and memory: `get_num_threads`, `set_num_threads`, `memory_stats`, `trim_memory`,
  `set_cache_limit`, `synchronize`
- graphs of cuDNN's operations: `keyfold.cudnn`, which is imported when it is first used
- PyTorch: `keyfold.torch`, which is imported when it is first used
- errors: `Error` and what derives from it, each of them a builtin exception, too
"""

import typing as _typing

# First: it says in one line where keyfold can't run.
from keyfold import _system as _system  # isort: skip
from keyfold import _foreign_names, _public, linalg, optim, random
from keyfold._autograd import (
    checkpoint,
    grad,
    gradcheck,
    gradgradcheck,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    no_grad,
    register_autograd,
    register_jvp,
    value_and_grad,
)
from keyfold._conformance import ConformanceReport, conformance
from keyfold._core import (
    BackendHandle,
    Device,
    Dispatcher,
    DispatchKeySet,
    DType,
    Expression,
    GradNode,
    GraphNode,
    GraphValue,
    Handle,
    HookHandle,
    KernelHandle,
    KeyGuard,
    NativeKernel,
    Operator,
    OperatorFunction,
    OperatorPacket,
    Plugin,
    TableEntry,
    TangentHandle,
    Tensor,
    VmapInfo,
    __version__,
    allow_fallback,
    bfloat16,
    bool,
    complex64,
    complex128,
    exclude_keys,
    fallthrough,
    float16,
    float32,
    float64,
    flush,
    from_dlpack,
    from_numpy,
    get_num_threads,
    get_rng_state,
    include_keys,
    int8,
    int16,
    int32,
    int64,
    is_grad_enabled,
    load_plugin,
    manual_seed,
    memory_stats,
    redispatch,
    register_array_type,
    register_backend,
    register_key,
    set_cache_limit,
    set_num_threads,
    set_rng_state,
    synchronize,
    trim_memory,
    uint8,
    uint16,
    uint32,
    uint64,
)
from keyfold._default import dispatcher as _default_dispatcher
from keyfold._dispatch import _dispatcher as _dispatcher
from keyfold._dispatch._backends import Backend, Fallback, backends, fallbacks
from keyfold._dispatch._custom_op import CustomOp
from keyfold._dispatch._custom_op_function import custom_op
from keyfold._dispatch._keys import (
    DispatchKey,
)
from keyfold._dispatch._registration import (
    Library,
    call_direct,
    define,
    explain,
    fallback,
    get_kernel,
    get_op,
    impl,
)
from keyfold._dispatch_table import DispatchTable
from keyfold._entry_points import KernelPackage, load_kernels
from keyfold._errors import (
    BY_KIND,
    BindingError,
    CudnnError,
    DeviceError,
    DispatchError,
    DTypeError,
    EmptyKeySetError,
    Error,
    ExchangeError,
    ExpressionError,
    GradientError,
    GuardError,
    IndexOutOfRange,
    InvalidValue,
    KernelFailed,
    KernelLoadError,
    KernelPanic,
    KernelReturnError,
    LibraryLoadError,
    MissingKernel,
    NotSupported,
    OpCheckError,
    OperatorRemoved,
    OutOfMemory,
    PipelineError,
    ReadOnlyError,
    RedispatchRecursion,
    RegistrationError,
    SchemaError,
    ShapeError,
    TraceError,
    UnknownKey,
    UnknownOperator,
    UnknownTensor,
)
from keyfold._inspect import (
    Choice,
    Explanation,
    OperatorTable,
)
from keyfold._layers._autocast import (
    autocast,
    autocast_dtype,
    is_autocast_enabled,
    register_autocast,
)
from keyfold._layers._fake import infer_meta, register_fake
from keyfold._layers._fuse import fuse
from keyfold._layers._pipeline import PipelineFailure, PipelinePlan, pipeline
from keyfold._layers._profiler import ProfileTable, profile, profile_range
from keyfold._layers._vmap import register_vmap, vmap
from keyfold._opcheck import OpCheckReport, opcheck
from keyfold._ops import _operators
from keyfold._ops._convolution import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from keyfold._ops._creation import (
    arange,
    asarray,
    empty,
    empty_like,
    full,
    full_like,
    ones,
    ones_like,
    rand,
    randn,
    zeros,
    zeros_like,
)
from keyfold._ops._cumulative import cumulative_prod, cumulative_sum
from keyfold._ops._elementwise import ElementwiseOperator, elementwise
from keyfold._ops._functions import (
    astype,
    broadcast_arrays,
    broadcast_shapes,
    broadcast_to,
    concat,
    embedding,
    flip,
    matrix_transpose,
    reshape,
    slice_read,
    slice_write,
    squeeze,
    take,
)
from keyfold._ops._operators import *  # noqa: F403
from keyfold._ops._parts import array_split, chunk, moveaxis, roll, split, tile, unstack
from keyfold._ops._pointwise import clip, gelu, logical_and, logical_or, logical_xor, square
from keyfold._ops._products import outer, tensordot, vecdot
from keyfold._schema import Schema, SchemaArgument, SchemaReturn
from keyfold._schema._infer_schema import infer_schema
from keyfold._system import get_include
from keyfold._trace import Graph, trace

# fmt: off
__all__ = [
    "BY_KIND", "Backend", "BackendHandle", "BindingError", "Choice", "ConformanceReport",
    "CudnnError", "CustomOp", "DType", "DTypeError", "Device", "DeviceError", "DispatchError",
    "DispatchKey", "DispatchKeySet", "DispatchTable", "Dispatcher", "ElementwiseOperator",
    "EmptyKeySetError", "Error", "ExchangeError", "Explanation", "Expression", "ExpressionError",
    "Fallback", "GradNode", "GradientError", "Graph", "GraphNode", "GraphValue", "GuardError",
    "Handle", "HookHandle", "IndexOutOfRange", "InvalidValue", "KernelFailed", "KernelHandle",
    "KernelLoadError", "KernelPackage", "KernelPanic", "KernelReturnError", "KeyGuard", "Library",
    "LibraryLoadError", "MissingKernel", "NativeKernel", "NotSupported", "OpCheckError",
    "OpCheckReport", "Operator", "OperatorFunction", "OperatorPacket", "OperatorRemoved",
    "OperatorTable", "OutOfMemory", "PipelineError", "PipelineFailure", "PipelinePlan", "Plugin",
    "ProfileTable", "ReadOnlyError", "RedispatchRecursion", "RegistrationError", "Schema",
    "SchemaArgument", "SchemaError", "SchemaReturn", "ShapeError", "TableEntry", "TangentHandle",
    "Tensor", "TraceError", "UnknownKey", "UnknownOperator", "UnknownTensor",
    "VmapInfo", "__version__",
    "allow_fallback", "arange", "array_split", "asarray", "astype", "autocast", "autocast_dtype",
    "backends", "bfloat16", "bool", "broadcast_arrays", "broadcast_shapes", "broadcast_to",
    "call_direct", "checkpoint", "chunk", "clip", "complex64", "complex128", "concat",
    "conformance", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "cumulative_prod", "cumulative_sum", "custom_op", "define", "elementwise",
    "embedding", "empty", "empty_like", "exclude_keys", "explain", "fallback", "fallbacks",
    "fallthrough", "flip", "float16", "float32", "float64", "flush", "from_dlpack", "from_numpy",
    "full", "full_like", "fuse", "gelu", "get_include", "get_kernel", "get_num_threads", "get_op",
    "get_rng_state", "grad", "gradcheck", "gradgradcheck", "hessian", "impl", "include_keys",
    "infer_meta", "infer_schema", "int8", "int16", "int32", "int64", "is_autocast_enabled",
    "is_grad_enabled", "jacfwd", "jacrev", "jvp", "linalg", "load_kernels", "load_plugin",
    "logical_and", "logical_or", "logical_xor", "manual_seed", "matrix_transpose", "memory_stats",
    "moveaxis", "no_grad", "ones", "ones_like", "opcheck", "ops", "optim", "outer", "pipeline",
    "profile", "profile_range", "rand", "randn", "random", "redispatch", "register_array_type",
    "register_autocast", "register_autograd", "register_backend", "register_fake", "register_jvp",
    "register_key", "register_vmap", "reshape", "roll", "set_cache_limit", "set_num_threads",
    "set_rng_state", "slice_read", "slice_write", "split", "square", "squeeze", "synchronize",
    "take", "tensordot", "tile", "trace", "trim_memory", "uint8", "uint16", "uint32", "uint64",
    "unstack", "value_and_grad", "vecdot", "vmap", "zeros", "zeros_like",
]
# fmt: on
__all__ += _operators.__all__

ops = _default_dispatcher.ops

_foreign_names.teach_tensor()
_public.adopt(__name__, globals(), __all__)


def __dir__() -> list[str]:
    """The public names and those of Python, and none of the modules that they come from."""
    imported = {"testing", "torch", "tvm_ffi"} & globals().keys()
    return sorted({*__all__, "cudnn", *imported, *_public.special(globals())})


if _typing.TYPE_CHECKING:
    from keyfold import cudnn as cudnn
    from keyfold import torch as torch
    from keyfold import tvm_ffi as tvm_ffi
else:

    def __getattr__(name: str) -> object:
        # On first use: `import keyfold` works without these packages, and doesn't wait for them.
        if name in ("cudnn", "torch", "tvm_ffi"):
            import importlib

            return importlib.import_module(f"keyfold.{name}")
        raise _foreign_names.attribute_error(name, __all__)
