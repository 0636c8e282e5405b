"""Results as torch wants them: in memory of their own, on the device of the arguments."""

from __future__ import annotations

from typing import Any

import torch

from keyfold._errors import DeviceError
from keyfold.torch._schema import Schema
from keyfold.torch._values import leaves, tensor_to_torch, torch_leaves

__all__ = ["device_of", "extent", "own"]


def extent(tensor: Any) -> tuple[int, int]:
    """Where a tensor's elements begin and end."""
    start = tensor.data_ptr()
    if tensor.is_contiguous():
        return start, start + tensor.nbytes
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.itemsize if tensor.numel() else start


def own(value: Any, taken: list[tuple[int, int]], *, copies: bool) -> Any:
    """A result as a torch tensor; copied if it lies in memory that is taken."""
    if not isinstance(value, torch.Tensor) and not hasattr(value, "__dlpack__"):
        return value
    tensor = tensor_to_torch(value)
    if copies:
        return tensor.clone(memory_format=torch.contiguous_format)
    start, end = extent(tensor)
    if any(start < other_end and other_start < end for other_start, other_end in taken):
        tensor = tensor.clone()
        start, end = extent(tensor)
    taken.append((start, end))
    return tensor


def device_of(schema: Schema, values: list[Any]) -> Any:
    """Where the results of a call are: with its tensors, or on the device that it names.

    A tensor without dimensions goes with the others, wherever it is.

    Raises:
        DeviceError: some tensors are on meta and others have data.
    """
    tensors = list(torch_leaves(values))
    devices = [t.device for t in tensors if t.dim()] or [t.device for t in tensors]
    if len({device.type == "meta" for device in devices}) > 1:
        raise DeviceError(
            f"{schema.full_name}: arguments on different devices: some are on meta and have no "
            f"data, others are on {next(d for d in devices if d.type != 'meta')}"
        )
    devices += [leaf for leaf in leaves(values) if isinstance(leaf, torch.device)]
    return devices[0] if devices else torch.device("cpu")
