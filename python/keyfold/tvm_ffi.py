"""keyfold's operators as TVM FFI functions: `keyfold.tvm_ffi.export`.

Needs the package apache-tvm-ffi. The way in is `keyfold.NativeKernel`: a `tvm_ffi.Function` is
registered as it is, `keyfold.impl("demo::scale", "CPU", function)`.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from typing import Any

from keyfold import _core
from keyfold._default import dispatcher as _default
from keyfold._errors import RegistrationError

__all__ = ["export"]

_counter = itertools.count()

# TVM FFI knows eight kinds of errors; one that it doesn't know becomes a RuntimeError.
_KINDS = (
    ArithmeticError,
    BufferError,
    LookupError,
    NotImplementedError,
    OSError,
    OverflowError,
    RecursionError,
    ZeroDivisionError,
)


@functools.cache
def _package() -> Any:
    """Return the package, which then knows keyfold's errors as the builtins that they are."""
    try:
        package = importlib.import_module("tvm_ffi")
    except ImportError as error:
        raise ImportError(
            "keyfold.tvm_ffi needs TVM FFI's own package: pip install apache-tvm-ffi",
            name="tvm_ffi",
        ) from error
    for kind in _KINDS:
        if kind.__name__ not in package.core.ERROR_NAME_TO_TYPE:
            package.register_error(kind.__name__, kind)
    return package


def export(op: Any, *, name: str | None = None, override: bool = False) -> Any:
    """Make a TVM FFI function of an operator.

    It is called by position, from Python or C++; trailing arguments with defaults may be left out,
    and keyword-only ones follow in the schema's order. Tensors are passed as tensor objects or as
    `DLTensor*`, seen by kernels as `keyfold.Tensor`, without a copy. Tensors come back as
    `tvm_ffi.Tensor` objects that share their memory, lists as `tvm_ffi.Array`. Errors are raised
    with the name of the builtin exception that they are.

    A `DLTensor*` is its owner's again when the call ends: a result that lies in its memory is a
    copy, and a kernel that keeps such a tensor makes the call fail.

    Args:
        op: the operator or its name, `ns::name` or `ns::name.overload`.
        name: a global name to register the function under, so that C++ finds it by
            `ffi::Function::GetGlobal(name)`. It stays registered until
            `tvm_ffi.registry.remove_global_func(name)`.
        override: whether a global function of that name is replaced.

    Returns:
        The function, a `tvm_ffi.Function`. It keeps the operator's object; once the operator is
        removed, calls raise `OperatorRemoved`'s message as a RuntimeError.

    Raises:
        ImportError: apache-tvm-ffi isn't installed.
        UnknownOperator: there is no such operator.
        RegistrationError: the global name is taken, and `override` isn't set.
    """
    package = _package()
    operator = op if isinstance(op, _core.Operator) else _default.get_op(op)
    if name is not None:
        if not override and package.get_global_func(name, allow_missing=True) is not None:
            raise RegistrationError(
                f"export(): there is a global TVM FFI function {name!r}; override=True replaces it"
            )
        _core._tvm_ffi_export(operator, name, override)
        return package.get_global_func(name)
    # The library hands objects to Python by name only: this one is taken back at once.
    passing = f"keyfold.export.{next(_counter)}"
    _core._tvm_ffi_export(operator, passing, False)
    try:
        return package.get_global_func(passing)
    finally:
        package.registry.remove_global_func(passing)
