"""Python kernels get torch's tensors in a derivative, as they do in the call itself.

keyfold records calls on its own tensors, so below Autograd a kernel would get those, and one that
is written with torch, or with Triton, could have no derivative in torch. A key below the layers,
which calls have inside of exported derivatives alone, puts torch's tensors in their place.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from keyfold import _core
from keyfold._dispatch._registration import fallback, get_kernel
from keyfold._errors import MissingKernel, RegistrationError, UnknownKey
from keyfold.torch._schema import parse
from keyfold.torch._values import resolved, tensor_to_torch, tree_map

_NAME = "TorchKernels"
_lock = threading.Lock()
_keys: list[Any] = []


def key() -> Any:
    """The dispatch key, registered when it is first needed.

    Raises:
        RegistrationError: other keys have taken every place below Autograd.
    """
    with _lock:
        if not _keys:
            made = _registered()
            fallback(made, _with_torch_tensors)
            _keys.append(made)
        return _keys[0]


def _registered() -> Any:
    for neighbour in ("Quantized", "Nested", "Autocast"):
        try:
            return _core.register_key(_NAME, above=neighbour, skippable=True)
        except (RegistrationError, UnknownKey) as error:
            full = error
    raise full


def _with_torch_tensors(
    op: _core.Operator, keyset: _core.DispatchKeySet, args: Any, kwargs: Any
) -> Any:
    below = keyset.remove(_keys[0])
    given: list[tuple[_core.Tensor, Any]] = []

    def to_torch(leaf: Any) -> Any:
        if not isinstance(leaf, _core.Tensor):
            return leaf
        given.append((leaf, tensor_to_torch(leaf)))
        return given[-1][1]

    if not _is_python(op, below):
        return _core.redispatch(op, below, *args, **kwargs)
    converted = [tree_map(to_torch, arg) for arg in args]
    named = {name: tree_map(to_torch, value) for name, value in kwargs.items()}
    if any(own.data_ptr() != theirs.data_ptr() for own, theirs in given if own.size) and any(
        argument.is_written for argument in parse(op.schema).arguments
    ):
        # A copy for torch (of negative strides) can't be written to in place of the argument.
        return _core.redispatch(op, below, *args, **kwargs)

    def to_keyfold(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        same = next((own for own, theirs in given if theirs is leaf), None)
        return _core.from_dlpack(resolved(leaf)) if same is None else same

    result = _core.redispatch(op, below, *converted, **named)
    mapped = tree_map(to_keyfold, result)
    return tuple(mapped) if isinstance(result, tuple) else mapped


def _is_python(op: _core.Operator, keyset: _core.DispatchKeySet) -> bool:
    """Whether the kernel that runs next is a Python function, on tensors with data."""
    highest = keyset.highest()
    if highest is None or not highest.is_backend or highest.name == "Meta":
        return False
    try:
        kernel = get_kernel(op, highest).function
    except MissingKernel:
        return False
    return not isinstance(kernel, (_core.KernelHandle, _core.NativeKernel))
