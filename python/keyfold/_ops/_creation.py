"""Making tensors: constants, counts, and whatever Python and other libraries have.

The names and arguments are those of the array API standard. Each constant goes through its
operator in `keyfold.ops.aten`, where kernels for other devices join in.
"""

from __future__ import annotations

import array
import mmap
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np

from keyfold import _core
from keyfold._default import dispatcher as _default
from keyfold._errors import BindingError, DeviceError, DTypeError, InvalidValue
from keyfold._messages import refused

__all__ = [
    "arange",
    "asarray",
    "empty",
    "empty_like",
    "full",
    "full_like",
    "ones",
    "ones_like",
    "rand",
    "randn",
    "zeros",
    "zeros_like",
]

_aten = _default.ops.aten

# Classes with a flat buffer of elements, which NumPy takes for no sequence of Python objects.
_BUFFERS = (bytes, bytearray, memoryview, array.array, mmap.mmap)

# By these NumPy finds the array that an object stands for.
_ARRAY_PROTOCOLS = ("__array__", "__array_interface__", "__array_struct__", "__buffer__")


def sizes_of(function: str, shape: Any, rest: tuple[Any, ...] = ()) -> Any:
    """The sizes that were given as one tuple, or one by one: `3` stands for `(3,)`.

    An array of whole numbers stands for the list of them. What is no size at all stays as it is,
    for the operator to refuse.
    """
    if rest:
        sizes = (shape, *rest)
        if not all(is_index(size) for size in sizes):
            given = ", ".join(f"{_kind(size)} {size!r}"[:80] for size in sizes)
            raise BindingError(
                f"keyfold.{function}() argument 'shape' must be whole numbers in a tuple or list, "
                f"or one by one, not {given}"
            )
        return sizes
    if isinstance(shape, np.ndarray) and shape.dtype.kind in "iu":
        shape = shape.tolist()
    is_number = isinstance(shape, _core.Tensor) and shape.ndim == 0
    return (shape,) if is_number or is_index(shape) else shape


def is_index(x: Any) -> bool:
    """Whether an object stands for one whole number: a bool and an array don't."""
    if isinstance(x, int):
        return not isinstance(x, bool)
    return hasattr(x, "__index__") and not hasattr(x, "__len__")


def empty(
    shape: SupportsIndex | Sequence[int],
    *sizes: SupportsIndex,
    dtype: Any = None,
    device: Any = None,
) -> _core.Tensor:
    """Return a tensor with uninitialised elements.

    Args:
        shape: the sizes, in a tuple or one by one.
        sizes: the sizes after the first, where they are given one by one.
        dtype: the dtype; float64 by default.
        device: the device; the CPU by default.

    Raises:
        ShapeError: a size is negative, or the elements don't fit into memory.
    """
    made: _core.Tensor = _aten.empty(sizes_of("empty", shape, sizes), dtype=dtype, device=device)
    return made


def zeros(
    shape: SupportsIndex | Sequence[int],
    *sizes: SupportsIndex,
    dtype: Any = None,
    device: Any = None,
) -> _core.Tensor:
    """Return a tensor of zeros. The arguments are those of `empty`."""
    made: _core.Tensor = _aten.zeros(sizes_of("zeros", shape, sizes), dtype=dtype, device=device)
    return made


def ones(
    shape: SupportsIndex | Sequence[int],
    *sizes: SupportsIndex,
    dtype: Any = None,
    device: Any = None,
) -> _core.Tensor:
    """Return a tensor of ones. The arguments are those of `empty`."""
    made: _core.Tensor = _aten.ones(sizes_of("ones", shape, sizes), dtype=dtype, device=device)
    return made


def rand(
    shape: SupportsIndex | Sequence[int],
    *sizes: SupportsIndex,
    dtype: Any = None,
    device: Any = None,
) -> _core.Tensor:
    """Return random numbers, evenly distributed from 0 to 1, 1 left out.

    They are the process's own, see `manual_seed`: Philox4x32-10.

    Args:
        shape: the sizes, in a tuple or one by one.
        sizes: the sizes after the first, where they are given one by one.
        dtype: the dtype, a float; float64 by default.
        device: the device; the CPU by default.

    Raises:
        DTypeError: the dtype isn't a float.
    """
    made: _core.Tensor = _aten.rand(sizes_of("rand", shape, sizes), dtype=dtype, device=device)
    return made


def randn(
    shape: SupportsIndex | Sequence[int],
    *sizes: SupportsIndex,
    dtype: Any = None,
    device: Any = None,
) -> _core.Tensor:
    """Return random numbers of the normal distribution: mean 0, variance 1. As `rand` otherwise."""
    made: _core.Tensor = _aten.randn(sizes_of("randn", shape, sizes), dtype=dtype, device=device)
    return made


def full(
    shape: SupportsIndex | Sequence[int],
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
) -> _core.Tensor:
    """Return a tensor of one number.

    Args:
        shape: the sizes, or one size.
        fill_value: the number.
        dtype: the dtype; by default that of the number: bool, int64, float64 or complex128.
        device: the device; the CPU by default.

    Raises:
        InvalidValue: the dtype can't hold the number.
    """
    made: _core.Tensor = _aten.full(sizes_of("full", shape), fill_value, dtype=dtype, device=device)
    return made


def arange(
    start: Any,
    /,
    stop: Any = None,
    step: Any = 1,
    *,
    dtype: Any = None,
    device: Any = None,
) -> _core.Tensor:
    """Return evenly spaced numbers: from 0 to `start`, or from `start` to `stop`, end left out.

    Args:
        start: where to begin, or the end if it is the only number.
        stop: where to end.
        step: how far apart neighbours are; may be negative, not zero.
        dtype: the dtype; by default int64 for whole numbers, else float64.
        device: the device; the CPU by default.
    """
    made: _core.Tensor = _aten.arange(start, stop, step, dtype=dtype, device=device)
    return made


def _like(x: Any, dtype: Any, device: Any) -> dict[str, Any]:
    """The arguments for a tensor like `x`, of other dtypes and devices where they are given."""
    x = asarray(x)
    return {
        "shape": x.shape,
        "dtype": x.dtype if dtype is None else dtype,
        "device": x.device if device is None else device,
    }


def empty_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> _core.Tensor:
    """Return a tensor of the shape, dtype and device of `x`, with uninitialised elements."""
    return empty(**_like(x, dtype, device))


def zeros_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> _core.Tensor:
    """Return zeros of the shape, dtype and device of `x`."""
    return zeros(**_like(x, dtype, device))


def ones_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> _core.Tensor:
    """Return ones of the shape, dtype and device of `x`."""
    return ones(**_like(x, dtype, device))


def full_like(x: Any, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> _core.Tensor:
    """Return one number in the shape, dtype and device of `x`."""
    return full(fill_value=fill_value, **_like(x, dtype, device))


def asarray(
    obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None
) -> _core.Tensor:
    """Return a tensor of what `obj` holds, on the same memory where that is possible.

    Args:
        obj: a tensor, a NumPy array, an object with `__dlpack__` or with a buffer, a number, or
            nested lists of numbers.
        dtype: the dtype. By default the one that `obj` has; bool, int64, float64 or complex128 for
            Python's numbers.
        device: the device. By default the one that `obj` is on; for Python's objects the CPU.
        copy: True for a copy in any case; False for none, and an error where one is needed; None
            for one where it is needed: another dtype, byte order or device, unaligned memory,
            lists.

    Raises:
        InvalidValue: a copy is needed and `copy` is False; lists of different lengths; one of
            Python's numbers is out of the range of a dtype of whole numbers.
        DTypeError: the dtype isn't supported.
    """
    copy = copy_of("asarray", copy)
    tensor, fresh = _shared(obj, dtype)
    if fresh and copy is False:
        raise InvalidValue(f"asarray(): a {_kind(obj)} can't become a tensor without a copy")
    if copy is False:
        if dtype is not None and tensor.dtype != dtype:
            raise InvalidValue(
                f"asarray(): {tensor.dtype} elements can't be had as {dtype} without a copy"
            )
        if device is not None and tensor.device != device:
            raise InvalidValue(
                f"asarray(): a tensor on {tensor.device} can't be had on {device} without a copy"
            )
    # A tensor made here needs no second copy. A recorded graph has to make it anew at each replay,
    # since the function may write to it.
    again = fresh and _core._is_tracing()
    try:
        return tensor.to(dtype=dtype, device=device, copy=(bool(copy) and not fresh) or again)
    except (DTypeError, DeviceError) as error:
        raise type(error)(f"asarray(): {error}") from None


def copy_of(function: str, copy: Any) -> bool | None:
    """An argument `copy`, for which 0 and 1 are taken, too. Anything but a bool is refused."""
    if copy is None or isinstance(copy, (bool, np.bool_)) or (type(copy) is int and copy in (0, 1)):
        return None if copy is None else bool(copy)
    raise refused(function, "copy", "True, False or None", copy)


def _shared(obj: Any, dtype: Any) -> tuple[_core.Tensor, bool]:
    """A tensor of the object's data, and whether it is a copy.

    Python's numbers are checked against the dtype that they are wanted in.
    """
    if isinstance(obj, _core.Tensor):
        return obj, False
    if isinstance(obj, np.ndarray):
        return _from_array(obj)
    if isinstance(obj, _BUFFERS):
        return _from_array(np.asarray(memoryview(obj)))
    if hasattr(obj, "__dlpack__") and not isinstance(obj, np.generic):
        return _core.from_dlpack(obj), False
    try:
        made = np.asarray(obj)
    except ValueError as error:
        if isinstance(obj, (list, tuple)):
            why = f"a {_kind(obj)} whose items differ in length or depth makes no array"
            raise InvalidValue(f"asarray(): {why}") from error
        raise InvalidValue(f"asarray(): {error}") from error
    if made.dtype == object and all(isinstance(item, int) for item in made.flat):
        # Beyond 64 bits: a float can hold them.
        _check_range(made, dtype)
        try:
            made = np.asarray(obj, dtype=np.float64)
        except OverflowError as error:
            raise InvalidValue(f"asarray(): {error}") from error
    if made.dtype.kind not in "biufc":
        raise DTypeError(
            f"asarray(): a {_kind(obj)} of {made.dtype} elements isn't supported; give numbers, "
            "nested lists of numbers, or an array"
        )
    # An object that says what array it is may have given its own memory away.
    shares = any(hasattr(type(obj), name) for name in _ARRAY_PROTOCOLS)
    if not shares and dtype is not None:
        _check_range(made, dtype)
    return _from_array(made)[0], not shares or isinstance(obj, np.generic)


def _check_range(made: np.ndarray[Any, Any], dtype: Any) -> None:
    """Refuse Python's numbers that a dtype of whole numbers can't hold: they would wrap."""
    name = "" if dtype is None else _core.DType(dtype).name
    if "int" in name:
        (low, high), where = _bounds(name), f"dtype {name}"
    elif dtype is None and made.dtype == object:
        (low, high), where = (-(2**63), 2**64 - 1), "64 bits"
    else:
        return
    if made.dtype.kind not in "iufO" or not made.size:
        return
    for value in (made.min(), made.max()):
        if not ((isinstance(value, int) or np.isfinite(value)) and low <= int(value) <= high):
            raise InvalidValue(
                f"asarray(): {value} is out of range for {where}, which holds {low} to {high}"
            )


def _bounds(name: str) -> tuple[int, int]:
    info = np.iinfo(name)
    return int(info.min), int(info.max)


def _from_array(given: np.ndarray[Any, Any]) -> tuple[_core.Tensor, bool]:
    """A tensor over an array, or over a copy where it lies in memory as tensors can't."""
    fits = given.dtype.isnative and given.flags.aligned
    if fits and given.size:
        fits = all(
            size == 1 or stride % given.itemsize == 0
            for size, stride in zip(given.shape, given.strides, strict=True)
        )
    if fits or given.dtype.kind not in "biufc":
        return _core.from_numpy(given), False
    return _core.from_numpy(np.array(given, dtype=given.dtype.newbyteorder("="))), True


def _kind(obj: Any) -> str:
    return type(obj).__name__
