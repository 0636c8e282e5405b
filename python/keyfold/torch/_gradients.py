"""Gradients of a keyfold operator, as a function of tensors alone.

What is handed to torch as a derivative must be a function of its arguments, so that it can be
traced: nothing of a recorded call can be kept for it. So the call is made again and recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from keyfold import _core
from keyfold.torch import _kernels
from keyfold.torch._values import leaves, tree_map

Function = Callable[[list[Any]], Any]


def differentiable(value: Any) -> bool:
    """Whether a value is a tensor of a dtype that has gradients."""
    return isinstance(value, _core.Tensor) and value.dtype.name.startswith(
        ("float", "bfloat", "complex")
    )


def gradients(
    function: Function, values: list[Any], needed: Sequence[bool], grads: Sequence[Any]
) -> list[_core.Tensor]:
    """The gradients of a function's results with respect to the tensors among its arguments.

    Args:
        function: from the list of arguments to results: tensors, and lists and tuples of them.
        values: the arguments, with keyfold's tensors.
        needed: for each tensor (a list's one by one), whether its gradient is wanted.
        grads: for each result (a list's one by one), its gradient, or None.

    Returns:
        A gradient per wanted tensor. Where the tensors or `grads` require grad, the gradients can
        be differentiated themselves.

    Raises:
        GradientError: an operator has no derivative.
    """
    wanted = iter(needed)
    variables: list[_core.Tensor] = []
    create = False

    def variable(value: Any) -> Any:
        nonlocal create
        if not isinstance(value, _core.Tensor):
            return value
        create = create or value.requires_grad
        if not next(wanted):
            return value
        variables.append(_core._grad_variable(value))
        return variables[-1]

    with _core._enable_grad(), _core.include_keys(_kernels.key()):
        given = [tree_map(variable, value) for value in values]
        create = create or any(g is not None and g.requires_grad for g in grads)
        # Recorded even where this runs inside of a kernel or a derivative.
        results = leaves(_core._call_recorded(function, (given,), None))
        pairs = [
            (result, grad)
            for result, grad in zip(results, grads, strict=True)
            if grad is not None and differentiable(result) and result.requires_grad
        ]
        if pairs:
            outputs, above = zip(*pairs, strict=True)
            found = _core._grad(list(outputs), variables, list(above), create, create, True)
        else:
            found = [None] * len(variables)
    from keyfold._ops._creation import zeros_like

    return [
        zeros_like(variable.detach()) if grad is None else grad
        for variable, grad in zip(variables, found, strict=True)
    ]


def signed(word: int) -> int:
    """64 bits as the number that torch has for them."""
    return word - (1 << 64) if word >> 63 else word


def unsigned(number: int) -> int:
    return number & ((1 << 64) - 1)
