"""`arrays="numpy"`: a kernel that gets NumPy arrays, whatever arrays a call brings.

So a function that knows NumPy alone is a kernel as it is, one compiled by `numba.njit` say.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from keyfold import _core
from keyfold._errors import BindingError, DTypeError

__all__ = ["on_numpy"]

_NUMBERS = (bool, int, float, complex)


def on_numpy(
    dispatcher: _core.Dispatcher, op: Any, function: Any, with_keyset: bool
) -> Callable[..., Any]:
    """Return a kernel that calls a function with NumPy arrays over the memory of its arguments.

    Args:
        dispatcher: where the operator is.
        op: the operator, or its name.
        function: the function. Lists come as tuples and dtypes as NumPy's, as compilers like them;
            where the schema returns a Tensor it may return a number.
        with_keyset: whether the key set comes first, which it gets as it is.

    Raises:
        BindingError: the function is a native kernel, which gets no objects at all.
    """
    is_native = isinstance(function, _core.NativeKernel) or function is _core.fallthrough
    if is_native or not callable(function):
        raise BindingError(
            f'impl(..., arrays="numpy") takes a Python function, or one of numba.njit, not '
            f"{type(function).__name__}"
        )
    first = 1 if with_keyset else 0

    # The attributes of a compiled function aren't copied.
    @functools.wraps(function, updated=())
    def kernel(*args: Any, **kwargs: Any) -> Any:
        try:
            converted = [_to_numpy(value) for value in args[first:]]
            named = {name: _to_numpy(value) for name, value in kwargs.items()}
        except DTypeError as error:
            raise refused(args[first:], kwargs, error) from None
        result = function(*args[:first], *converted, **named)
        if not isinstance(result, (tuple, *_NUMBERS)):
            return result
        returns = tensors_returned()
        if isinstance(result, tuple) and len(returns) == len(result):
            return tuple(map(_to_array, result, returns))
        return _to_array(result, returns[0]) if len(returns) == 1 else result

    def refused(args: Any, kwargs: dict[str, Any], error: DTypeError) -> DTypeError:
        """The error for a tensor of a dtype that NumPy lacks, which names the argument."""
        schema = dispatcher.get_op(op).schema
        names = [argument.name for argument in schema.arguments]
        for name, value in (dict(zip(names, args, strict=False)) | kwargs).items():
            for item in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(item, _core.Tensor) and item.dtype == "bfloat16":
                    return DTypeError(
                        f"{schema.name}() argument '{name}' is a tensor of bfloat16, which NumPy "
                        'lacks, and its kernel has arrays="numpy": convert the tensor, with '
                        'x.astype("float32"), or register a kernel that takes tensors'
                    )
        return error

    @functools.cache
    def tensors_returned() -> tuple[bool, ...]:
        """For each result, whether it is a Tensor. The operator may be defined after the kernel."""
        return tuple(declared.type == "Tensor" for declared in dispatcher.get_op(op).schema.returns)

    return kernel


def _to_numpy(value: Any) -> Any:
    """A kernel's argument as NumPy has it: nothing is copied."""
    kind = type(value)
    if kind is np.ndarray or kind in _NUMBERS or value is None or kind is str:
        return value
    if kind is _core.Tensor:
        return value.numpy()
    if kind is list or kind is tuple:
        return tuple(map(_to_numpy, value))
    if kind is _core.DType:
        return np.dtype(value)
    # Another library's: by DLPack, which copies from no other device.
    return np.from_dlpack(value) if _core._is_array(value) else value


def _to_array(result: Any, is_tensor: bool) -> Any:
    return np.asarray(result) if is_tensor and isinstance(result, _NUMBERS) else result
