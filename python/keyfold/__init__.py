"""keyfold: a multi-dispatch engine for tensor kernels.

Define operators, register a Python or native kernel for each dispatch key, and call them on the
arrays you already have.
"""

from keyfold import _core
from keyfold._core import (
    Device,
    DispatchKeySet,
    Dispatcher,
    DType,
    Handle,
    KernelHandle,
    KeyGuard,
    NativeKernel,
    Operator,
    OperatorPacket,
    TableEntry,
    Tensor,
    exclude_keys,
    fallthrough,
    include_keys,
    redispatch,
    register_array_type,
    register_backend,
    register_key,
)
from keyfold._errors import *  # noqa: F403
from keyfold._errors import __all__ as _error_names
from keyfold._keys import DispatchKey
from keyfold._default import dispatcher as _default_dispatcher
from keyfold._inspect import Choice, DispatchTable, Explanation
from keyfold._registration import (
    Library,
    call_direct,
    define,
    explain,
    fallback,
    get_kernel,
    get_op,
    impl,
)
from keyfold import _dispatcher as _dispatcher

ops = _default_dispatcher.ops
