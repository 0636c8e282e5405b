"""Tensors of torch's and what torch says of them.

The binding reads plain tensors' fields directly, once it has seen that they are where it thinks:
it compares what it reads of these samples with what stands beside them.
"""

from __future__ import annotations

from typing import Any

_DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
]


def _described(tensor: Any, kind: str) -> tuple[Any, ...]:
    """A sample: the tensor, what kind it is, and torch's answers."""
    strided = kind != "other"
    return (
        tensor,
        kind,
        # Asking a lazy one for its address would make it an ordinary one.
        tensor.data_ptr() if strided and kind != "lazy" else 0,
        tensor.untyped_storage().nbytes() if strided else 0,
        list(tensor.shape) if strided else [],
        list(tensor.stride()) if strided else [],
        str(tensor.dtype).removeprefix("torch."),
        tensor._version,
    )


def samples() -> list[tuple[Any, ...]]:
    """Make the samples, whatever mode of torch's is on.

    Kinds: `plain` is dense on the CPU, without a place in torch's graph; `grad` has one; a `view`
    of another tensor may have one; `lazy` shares memory until it is written; `other` is anything
    that isn't simply memory.
    """
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), torch.inference_mode(mode=False), torch.no_grad():
        flat = torch.arange(240.0, device="cpu")
        block = torch.arange(24.0, device="cpu").reshape(2, 3, 4)
        written = torch.zeros(3, device="cpu")
        for number in range(5):
            written.fill_(float(number))
        made = [_described(written, "plain"), _described(written[1:], "view")]
        made += [_described(flat, "plain"), _described(torch.full((), 7.0, device="cpu"), "plain")]
        for name in _DTYPES:
            dtype = getattr(torch, name, None)
            if dtype is not None:
                made.append(_described(torch.zeros(3, dtype=dtype, device="cpu"), "plain"))
        views = [flat[3:], block[1:, :, 1:], block.permute(2, 0, 1), block[0].expand(5, 3, 4)]
        views += [flat[:64].reshape(2, 2, 2, 2, 2, 2), block.transpose(0, 2)]
        made += [_described(view, "view") for view in views]
        made.append(_described(torch.zeros((1, 2, 1, 2, 1, 3, 1), device="cpu"), "plain"))
        made.append(_described(torch.zeros((2, 0, 3), device="cpu"), "plain"))
        made.append(_described(torch.zeros(2, device="cpu").requires_grad_(), "grad"))
        made.append(_described(torch._lazy_clone(torch.zeros(4, device="cpu")), "lazy"))
        complex_one = torch.zeros(3, dtype=torch.complex64, device="cpu").conj()
        others = [
            complex_one,
            complex_one.imag,
            torch._neg_view(torch.zeros(3, device="cpu")),
            torch.zeros(3, device="meta"),
            torch.zeros(3, device="cpu").to_sparse(),
            torch._efficientzerotensor((3,), device="cpu"),
        ]
        made += [_described(other, "other") for other in others]
        return made
