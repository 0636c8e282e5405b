"""A backend of one's own: the device "npu", with a class of arrays that live there.

`register_backend` gives the key NPU, its narrowed keys (AutogradNPU and the like), the device type
"npu", and a row in every operator. The accelerator is played by NumPy here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import keyfold as kf

kf.register_backend("npu")


class NpuArray:
    """An array in the NPU's memory."""

    def __init__(self, memory: np.ndarray) -> None:
        self._memory = memory

    def to_host(self) -> np.ndarray:
        """Copy it to the host."""
        return self._memory.copy()


kf.register_array_type(NpuArray, "NPU")


@kf.impl("aten::zeros", "NPU")
def zeros(size: list[int], *, dtype: Any, device: Any) -> NpuArray:
    return NpuArray(np.zeros(size))


@kf.impl("aten::add.Scalar", "NPU")
def add_scalar(x: NpuArray, other: float) -> NpuArray:
    return NpuArray(x._memory + other)


@kf.impl("aten::matmul", "NPU")
def matmul(x: NpuArray, y: NpuArray) -> NpuArray:
    return NpuArray(x._memory @ y._memory)


def main() -> None:
    aten = kf.ops.aten
    x = aten.add(aten.zeros([2, 2], device="npu"), 3)
    print("made on the NPU:   ", type(x).__name__)
    print("multiplied there:  ", aten.matmul(x, x).to_host().tolist())
    print("the kernel:        ", kf.explain(aten.matmul, x, x).kernel.__name__)

    # Nothing slides to another backend unasked.
    try:
        aten.exp(x)
    except NotImplementedError as error:
        print("no kernel:         ", error)
    try:
        aten.matmul(x, np.eye(2))
    except kf.DeviceError as error:
        print("two devices:       ", error)


if __name__ == "__main__":
    main()
