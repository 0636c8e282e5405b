"""Values on their way between the two libraries.

Operators take torch's tensors as they are, without a copy. What they can't see (the conj and neg
bits, `requires_grad`) is resolved and detached first.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import torch

from keyfold import _core
from keyfold._errors import DTypeError, NotSupported

_DTYPES: dict[str, Any] = {
    name: getattr(torch, name)
    for name in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
    )
    if hasattr(torch, name)
}  # fmt: skip
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
# The library that `_in_kind` puts tensors in is this one's.
_LIKE = torch.empty(0, device="cpu")
_ENUMERATORS: dict[str, Any] = {
    name: getattr(torch, name)
    for name in (
        "strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged",
        "contiguous_format", "preserve_format", "channels_last", "channels_last_3d",
    )
    if hasattr(torch, name)
}  # fmt: skip


def torch_dtype(dtype: Any) -> Any:
    """The torch dtype of keyfold's."""
    return _DTYPES[dtype.name]


def keyfold_dtype(dtype: Any) -> str:
    """The name of a torch dtype in keyfold.

    Raises:
        DTypeError: keyfold has no such dtype.
    """
    try:
        return _DTYPE_NAMES[dtype]
    except KeyError:
        raise DTypeError(
            f"keyfold has no dtype like {dtype}; it has {', '.join(_DTYPES)}"
        ) from None


def tree_map(function: Callable[[Any], Any], value: Any) -> Any:
    """A function applied to a value, or to each item of a list or tuple."""
    if isinstance(value, (list, tuple)):
        return [tree_map(function, item) for item in value]
    return function(value)


def leaves(value: Any) -> Iterator[Any]:
    """A value, or the items of a list or tuple of them."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def torch_leaves(value: Any) -> Iterator[Any]:
    """The torch tensors among them."""
    return (leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor))


def plain_to_keyfold(value: Any) -> Any:
    """A value that is no tensor and means the same in keyfold."""
    if isinstance(value, torch.dtype):
        return keyfold_dtype(value)
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, (torch.layout, torch.memory_format)):
        return str(value).removeprefix("torch.")
    if isinstance(value, torch.SymInt):
        return int(value)
    if isinstance(value, torch.SymFloat):
        return float(value)
    if isinstance(value, torch.SymBool):
        return bool(value)
    return value


def resolved(tensor: Any) -> Any:
    """A tensor without history and without the bits that DLPack doesn't know."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_conj():
        tensor = tensor.resolve_conj()
    return tensor.resolve_neg() if tensor.is_neg() else tensor


def tensor_to_keyfold(tensor: Any) -> _core.Tensor:
    """A torch tensor as keyfold's, on the same memory.

    Raises:
        NotSupported: it isn't a dense tensor.
        DTypeError: keyfold has no such dtype.
    """
    if tensor.layout is not torch.strided:
        raise NotSupported(
            f"a torch tensor with layout {str(tensor.layout).removeprefix('torch.')} can't be "
            "given to a keyfold operator: make it dense with .to_dense()"
        )
    keyfold_dtype(tensor.dtype)
    if tensor.device.type == "meta":
        return stand_in(tensor)
    return _core.from_dlpack(resolved(tensor))


def tensor_to_torch(value: Any) -> Any:
    """An array of any library as a torch tensor, on the same memory where that can be.

    What torch has not (a read-only array, negative strides) is copied.
    """
    if isinstance(value, torch.Tensor):
        return value
    if not _core._is_array(value):
        raise NotSupported(f"a {type(value).__qualname__} can't be given to torch")
    tensor = _core._view(value)
    if tensor.device.type == "meta":
        return torch.empty_strided(
            tensor.shape, tensor.strides, dtype=torch_dtype(tensor.dtype), device="meta"
        )
    tensor = tensor.detach()
    if tensor.readonly or any(stride < 0 for stride in tensor.strides):
        tensor = tensor.clone().contiguous()
    # Memory of torch's own stays torch's, wherever it moves; DLPack would be given a copy of it.
    return _core._in_kind(tensor, _LIKE)


def plain_to_torch(value: Any, kind: str) -> Any:
    """A value that is no tensor as torch takes it, by its type in the schema."""
    if value is None:
        return None
    if kind.startswith("ScalarType"):
        return torch_dtype(_core.DType(value)) if not isinstance(value, torch.dtype) else value
    if kind.startswith("Device"):
        return torch.device(str(value))
    if kind.startswith(("Layout", "MemoryFormat")):
        return _ENUMERATORS[value] if isinstance(value, str) else value
    return value


def meta_like(shape: Any, strides: Any, dtype: Any) -> _core.Tensor:
    """A keyfold tensor on meta with these strides, in elements."""
    found = _core._infer_meta("aten::alias", (_Shape(shape, strides, dtype).tensor(),), {})
    assert isinstance(found, _core.Tensor)
    return found


def stand_in(tensor: Any) -> _core.Tensor:
    """A keyfold tensor on meta that looks like a torch tensor with or without data.

    Sizes and strides that torch keeps symbolic are taken for what they are now; torch notes that.
    """
    return meta_like(
        [int(n) for n in tensor.shape], [int(n) for n in tensor.stride()], tensor.dtype
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("index", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (
        ("tensor", _DLTensor),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
    )


# The owners of the memory of DLPack structures, until their deleter is called.
_alive: dict[int, Any] = {}


def _let_go(address: int) -> None:
    _alive.pop(address, None)


_release = _Deleter(_let_go)


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6}


class _Shape:
    """A tensor's outside, offered through DLPack: its data must not be looked at.

    Only to be handed on to a Meta kernel, which looks at shape, strides and dtype. keyfold has no
    other way to make a tensor with given strides.
    """

    def __init__(self, shape: Any, strides: Any, dtype: Any) -> None:
        name = keyfold_dtype(dtype)
        bits = dtype.itemsize * 8
        numbers = ctypes.c_int64 * len(shape)
        self._data = ctypes.create_string_buffer(64 + 64)
        aligned = -(-ctypes.addressof(self._data) // 64) * 64
        self._sizes, self._strides = numbers(*shape), numbers(*strides)
        pointer = ctypes.POINTER(ctypes.c_int64)
        self._managed = _Managed(
            _DLTensor(
                aligned,
                _Device(1, 0),
                len(shape),
                _Type(_CODES[name.rstrip("0123456789")], bits, 1),
                ctypes.cast(self._sizes, pointer),
                ctypes.cast(self._strides, pointer),
                0,
            ),
            None,
            _release,
        )

    def tensor(self) -> _core.Tensor:
        return _core.from_dlpack(self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **_options: Any) -> Any:
        address = ctypes.addressof(self._managed)
        _alive[address] = self
        return _new_capsule(address, b"dltensor", None)
