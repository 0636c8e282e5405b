"""Copies, comparisons and memory of the arrays that `opcheck` handles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from keyfold import _core
from keyfold._ops._creation import empty

__all__ = [
    "Array",
    "arrays",
    "contiguous",
    "copy_of",
    "describe",
    "detached",
    "difference",
    "dtype_name",
    "element_strides",
    "first_address",
    "has_data",
    "is_array",
    "map_arrays",
    "memory_bounds",
    "numbers",
    "share_memory",
    "with_strides",
]

Array = np.ndarray[Any, Any]


def is_array(value: Any) -> bool:
    return isinstance(value, (_core.Tensor, np.ndarray))


def arrays(value: Any) -> Iterator[Any]:
    """The arrays in a value, however deep."""
    if is_array(value):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from arrays(item)


def map_arrays(value: Any, f: Callable[[Any], Any]) -> Any:
    """The same value with each array replaced."""
    if is_array(value):
        return f(value)
    if isinstance(value, (tuple, list)):
        return type(value)(map_arrays(item, f) for item in value)
    return value


def detached(value: Any) -> Any:
    return map_arrays(value, lambda x: x.detach() if isinstance(x, _core.Tensor) else x)


def dtype_name(x: Any) -> str:
    return str(x.dtype)


def has_data(x: Any) -> bool:
    return is_array(x) and (isinstance(x, np.ndarray) or x.device.type != "meta")


def numbers(x: Any) -> Array:
    """The elements as NumPy has them; it has no bfloat16."""
    if isinstance(x, np.ndarray):
        return x
    x = x.detach()
    if x.device.type != "cpu":
        x = x.to("cpu")
    return np.asarray((x.to("float32") if dtype_name(x) == "bfloat16" else x).numpy())


def copy_of(x: Any) -> Any:
    """A copy with the strides of the original."""
    if not has_data(x):
        return x
    return with_strides(x, tuple(np.argsort([-abs(s) for s in x.strides], kind="stable")), 1)


def with_strides(x: Any, order: Sequence[int], step: int) -> Any:
    """A copy whose dimensions lie in memory in that order, each `step` elements apart."""
    if x.ndim == 0:
        return x.copy() if isinstance(x, np.ndarray) else x.clone()
    sizes = [x.shape[d] for d in order]
    sizes[-1] *= step
    back = [int(i) for i in np.argsort(order)]
    if isinstance(x, np.ndarray):
        array = np.zeros(sizes, dtype=x.dtype)[..., ::step].transpose(back)
        array[...] = x
        return array
    tensor = empty(sizes, dtype=x.dtype, device=x.device)[..., ::step].permute(back)
    return tensor.copy_(x)


def memory_bounds(x: Any) -> tuple[int, int] | None:
    """The first address and the one behind the last of an array's elements; None if it has none."""
    if isinstance(x, np.ndarray):
        if x.size == 0:
            return None
        low, high = np.lib.array_utils.byte_bounds(x)
        return int(low), int(high)
    if x.size == 0 or x.device.type == "meta":
        return None
    start, size = x.data_ptr(), x.itemsize
    reach = [(n - 1) * s * size for n, s in zip(x.shape, x.strides, strict=True)]
    return (
        start + sum(r for r in reach if r < 0),
        start + sum(r for r in reach if r > 0) + size,
    )


def first_address(x: Any) -> int | None:
    """Where the first element is; None without elements."""
    if x.size == 0 or not has_data(x):
        return None
    if isinstance(x, np.ndarray):
        return int(x.__array_interface__["data"][0])
    return int(x.data_ptr())


def element_strides(x: Any) -> list[int]:
    """The strides, in elements."""
    if isinstance(x, np.ndarray):
        return [step // x.itemsize for step in x.strides]
    return list(x.strides)


def share_memory(a: Any, b: Any) -> bool:
    """Whether two arrays have memory in common, gaps between elements included."""
    x, y = memory_bounds(a), memory_bounds(b)
    return x is not None and y is not None and x[0] < y[1] and y[0] < x[1]


def describe(x: Any) -> str:
    if is_array(x):
        where = "" if isinstance(x, np.ndarray) else f" on {x.device}"
        return f"{dtype_name(x)}{list(x.shape)}{where}"
    return f"{type(x).__name__} {x!r}"


def difference(found: Any, wanted: Any, rtol: float, atol: float) -> str | None:
    """How two results differ; None if they don't."""
    if isinstance(wanted, (tuple, list)):
        if not isinstance(found, (tuple, list)) or len(found) != len(wanted):
            count = len(found) if isinstance(found, (tuple, list)) else 1
            return f"{count} results instead of {len(wanted)}"
        for place, (a, b) in enumerate(zip(found, wanted, strict=True)):
            problem = difference(a, b, rtol, atol)
            if problem:
                return f"result {place}: {problem}"
        return None
    if not (is_array(found) and is_array(wanted)):
        if isinstance(found, float) and isinstance(wanted, float):
            same = bool(np.isclose(found, wanted, rtol=rtol, atol=atol, equal_nan=True))
        else:
            same = bool(found == wanted)
        return None if same else f"{describe(found)} instead of {describe(wanted)}"
    if dtype_name(found) != dtype_name(wanted) or tuple(found.shape) != tuple(wanted.shape):
        return f"{describe(found)} instead of {describe(wanted)}"
    if not (has_data(found) and has_data(wanted)):
        return None
    a, b = numbers(found), numbers(wanted)
    if a.dtype.kind not in "fc":
        fine = a == b
    else:
        with np.errstate(invalid="ignore", over="ignore"):
            fine = np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
    if fine.all():
        return None
    at = tuple(int(i) for i in np.argwhere(~fine)[0])
    return (
        f"{int((~fine).sum())} of {a.size} elements differ: at {list(at)} {a[at]!s} instead of "
        f"{b[at]!s}"
    )


def contiguous(x: Any) -> Any:
    return with_strides(x, range(x.ndim), 1) if has_data(x) else x
