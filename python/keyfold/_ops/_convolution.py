"""Convolutions along one to three dimensions, and transposed ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keyfold._default import dispatcher as _default
from keyfold._messages import no_array, refused

__all__ = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
]

_aten = _default.ops.aten

_Numbers = int | Sequence[int]


def conv1d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: _Numbers = 1,
    padding: _Numbers | str = 0,
    dilation: _Numbers = 1,
    groups: int = 1,
) -> Any:
    """Return the convolution of sequences, with the kernel not reversed, as PyTorch has it.

    Float16 and bfloat16 are added up in float32 and rounded once. Not in the standard.

    Args:
        x: an array of shape `(N, C, L)`, or `(C, L)` for one sequence.
        weight: an array of shape `(O, C / groups, K)`.
        bias: an array of shape `(O,)`, or None.
        stride: how many elements of `x` the kernel goes on from one element of the result to the
            next.
        padding: zeros on both sides, or a pair of them before and after; "valid" for none, "same"
            for as many as keep the size at a stride of 1.
        dilation: the distance in `x` between neighbouring elements of the kernel.
        groups: the number of groups that channels are divided into; it divides `C` and `O`.

    Returns:
        An array of shape `(N, O, L2)`, where `L2` is
        `(L + both paddings - dilation * (K - 1) - 1) // stride + 1`.

    Raises:
        ShapeError: the shapes don't fit, or the kernel is larger than the padded array.
        InvalidValue: a stride, dilation, padding or number of groups is out of range.
        DTypeError: an array isn't of floats.
    """
    return _convolution(1, _aten.conv1d, x, weight, bias, stride, padding, dilation, groups)


def conv2d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: _Numbers = 1,
    padding: _Numbers | str = 0,
    dilation: _Numbers = 1,
    groups: int = 1,
) -> Any:
    """Return the convolution of images, with the kernel not reversed, as PyTorch has it.

    Float16 and bfloat16 are added up in float32 and rounded once. Not in the standard.

    Args:
        x: an array of shape `(N, C, H, W)`, or `(C, H, W)` for one image.
        weight: an array of shape `(O, C / groups, K, L)`.
        bias: an array of shape `(O,)`, or None.
        stride: how many elements of `x` the kernel goes on from one element of the result to the
            next, one number or two.
        padding: zeros on both sides: one number, one for each dimension, or `(top, bottom, left,
            right)`; "valid" for none, "same" for as many as keep the size at a stride of 1.
        dilation: the distance in `x` between neighbouring elements of the kernel, one number or
            two.
        groups: the number of groups that channels are divided into; it divides `C` and `O`.

    Returns:
        An array of shape `(N, O, H2, W2)`, where `H2` is
        `(H + both paddings - dilation * (K - 1) - 1) // stride + 1`; the others likewise.

    Raises:
        ShapeError: the shapes don't fit, or the kernel is larger than the padded array.
        InvalidValue: a stride, dilation, padding or number of groups is out of range.
        DTypeError: an array isn't of floats.

    Example:
        >>> images, weight = kf.ones((1, 3, 8, 8)), kf.ones((16, 3, 3, 3))
        >>> kf.conv2d(images, weight, stride=2, padding=1).shape
        (1, 16, 4, 4)
    """
    return _convolution(2, _aten.conv2d, x, weight, bias, stride, padding, dilation, groups)


def conv3d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: _Numbers = 1,
    padding: _Numbers | str = 0,
    dilation: _Numbers = 1,
    groups: int = 1,
) -> Any:
    """Return the convolution of volumes, with the kernel not reversed, as PyTorch has it.

    Float16 and bfloat16 are added up in float32 and rounded once. Not in the standard.

    Args:
        x: an array of shape `(N, C, D, H, W)`, or `(C, D, H, W)` for one volume.
        weight: an array of shape `(O, C / groups, J, K, L)`.
        bias: an array of shape `(O,)`, or None.
        stride: how many elements of `x` the kernel goes on from one element of the result to the
            next, one number or three.
        padding: zeros on both sides: one number, one for each dimension, or a pair for each, before
            and after; "valid" for none, "same" for as many as keep the size at a stride of 1.
        dilation: the distance in `x` between neighbouring elements of the kernel, one number or
            three.
        groups: the number of groups that channels are divided into; it divides `C` and `O`.

    Returns:
        An array of shape `(N, O, D2, H2, W2)`, where `D2` is
        `(D + both paddings - dilation * (J - 1) - 1) // stride + 1`; the others likewise.

    Raises:
        ShapeError: the shapes don't fit, or the kernel is larger than the padded array.
        InvalidValue: a stride, dilation, padding or number of groups is out of range.
        DTypeError: an array isn't of floats.
    """
    return _convolution(3, _aten.conv3d, x, weight, bias, stride, padding, dilation, groups)


def conv_transpose1d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: _Numbers = 1,
    padding: _Numbers = 0,
    output_padding: _Numbers = 0,
    groups: int = 1,
    dilation: _Numbers = 1,
) -> Any:
    """Return the transposed convolution of sequences: the gradient of `conv1d`'s input.

    Not in the standard.

    Args:
        x: an array of shape `(N, C, L)`, or `(C, L)` for one sequence.
        weight: an array of shape `(C, O / groups, K)`.
        bias: an array of shape `(O,)`, or None.
        stride: the stride of that convolution.
        padding: its padding, which is taken away from the result.
        output_padding: a size that is added to the result, below the stride or the dilation.
        groups: the number of groups that channels are divided into; it divides `C` and `O`.
        dilation: the distance between neighbouring elements of the kernel.

    Returns:
        An array of shape `(N, O, L2)`, where `L2` is
        `(L - 1) * stride - 2 * padding + dilation * (K - 1) + output_padding + 1`.

    Raises:
        ShapeError: the shapes don't fit, or nothing would be left.
        InvalidValue: a stride, dilation, padding or number of groups is out of range.
        DTypeError: an array isn't of floats.
    """
    operator = _aten.conv_transpose1d
    return operator(x, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose2d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: _Numbers = 1,
    padding: _Numbers = 0,
    output_padding: _Numbers = 0,
    groups: int = 1,
    dilation: _Numbers = 1,
) -> Any:
    """Return the transposed convolution of images: the gradient of `conv2d`'s input.

    Not in the standard.

    Args:
        x: an array of shape `(N, C, H, W)`, or `(C, H, W)` for one image.
        weight: an array of shape `(C, O / groups, K, L)`.
        bias: an array of shape `(O,)`, or None.
        stride: the stride of that convolution, one number or two.
        padding: its padding, which is taken away from the result.
        output_padding: a size that is added to the result, below the stride or the dilation.
        groups: the number of groups that channels are divided into; it divides `C` and `O`.
        dilation: the distance between neighbouring elements of the kernel.

    Returns:
        An array of shape `(N, O, H2, W2)`, where `H2` is
        `(H - 1) * stride - 2 * padding + dilation * (K - 1) + output_padding + 1`; the others
        likewise.

    Raises:
        ShapeError: the shapes don't fit, or nothing would be left.
        InvalidValue: a stride, dilation, padding or number of groups is out of range.
        DTypeError: an array isn't of floats.
    """
    operator = _aten.conv_transpose2d
    return operator(x, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose3d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: _Numbers = 1,
    padding: _Numbers = 0,
    output_padding: _Numbers = 0,
    groups: int = 1,
    dilation: _Numbers = 1,
) -> Any:
    """Return the transposed convolution of volumes: the gradient of `conv3d`'s input.

    Not in the standard.

    Args:
        x: an array of shape `(N, C, D, H, W)`, or `(C, D, H, W)` for one volume.
        weight: an array of shape `(C, O / groups, J, K, L)`.
        bias: an array of shape `(O,)`, or None.
        stride: the stride of that convolution, one number or three.
        padding: its padding, which is taken away from the result.
        output_padding: a size that is added to the result, below the stride or the dilation.
        groups: the number of groups that channels are divided into; it divides `C` and `O`.
        dilation: the distance between neighbouring elements of the kernel.

    Returns:
        An array of shape `(N, O, D2, H2, W2)`, where `D2` is
        `(D - 1) * stride - 2 * padding + dilation * (J - 1) + output_padding + 1`; the others
        likewise.

    Raises:
        ShapeError: the shapes don't fit, or nothing would be left.
        InvalidValue: a stride, dilation, padding or number of groups is out of range.
        DTypeError: an array isn't of floats.
    """
    operator = _aten.conv_transpose3d
    return operator(x, weight, bias, stride, padding, output_padding, groups, dilation)


def _convolution(
    rank: int,
    operator: Any,
    x: Any,
    weight: Any,
    bias: Any,
    stride: _Numbers,
    padding: _Numbers | str,
    dilation: _Numbers,
    groups: int,
) -> Any:
    """Call `aten::convolution` for padding in pairs, else the operator of that rank."""
    if isinstance(padding, list | tuple) and len(padding) not in (1, rank, 2 * rank):
        each = f"{rank} in a tuple, or {2 * rank}, before and after each dimension"
        raise refused(f"conv{rank}d", "padding", f"a whole number, {each}", padding)
    if not isinstance(padding, list | tuple) or len(padding) != 2 * rank:
        return operator(x, weight, bias, stride, padding, dilation, groups)
    try:
        dimensions = len(weight.shape)
    except (AttributeError, TypeError):
        raise no_array(f"conv{rank}d", "weight", weight) from None
    if dimensions != rank + 2:
        # The operator's error says which shape the weight has to have.
        return operator(x, weight, bias, stride, 0, dilation, groups)
    lists = [_list(stride), list(padding), _list(dilation)]
    return _aten.convolution(x, weight, bias, *lists, False, [0], groups)


def _list(numbers: _Numbers) -> list[Any]:
    return list(numbers) if isinstance(numbers, list | tuple) else [numbers]
