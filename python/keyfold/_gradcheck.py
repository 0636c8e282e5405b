"""Derivatives against finite differences: `gradcheck`, `gradgradcheck`.

Method: central differences, `(f(x + eps) - f(x - eps)) / (2 eps)`, whose error falls with eps
squared until rounding takes over; in float64 an eps of 1e-6 leaves about nine digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keyfold import _core
from keyfold._autograd import grad
from keyfold._errors import DTypeError, GradientError, InvalidValue

__all__ = ["gradcheck", "gradgradcheck"]

_Array = np.ndarray[Any, Any]


def gradcheck(
    f: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """Compare a function's derivatives with finite differences.

    Every element of every floating result is differentiated with respect to every element of every
    input that requires grad, so small inputs are enough. Each call gets the same random numbers.

    Args:
        f: a function of `inputs` that returns a tensor or several.
        inputs: its argument, or a tuple of them. Checked are tensors that require grad and NumPy
            arrays of floats; others are passed as they are. The tensors themselves are not used:
            f gets copies.
        eps: the step.
        atol: how far apart two derivatives may be,
        rtol: and how far in addition, as a part of the numeric one.
        raise_exception: False to return False instead of raising GradientError.

    Returns:
        Whether all derivatives agree.

    Raises:
        GradientError: one doesn't: the message has the result, the input, the element, and both
            values. An error of going back.
        DTypeError: an input to check isn't float64.
        InvalidValue: no input is to be checked.
    """
    given = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    checked = _checked(given, "gradcheck")
    try:
        _compare(f, given, checked, eps, atol, rtol)
    except GradientError:
        if raise_exception:
            raise
        return False
    return True


def gradgradcheck(
    f: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """Compare the derivatives of a function's gradients with finite differences.

    Args:
        f: as for `gradcheck`.
        inputs: as for `gradcheck`.
        grad_outputs: the gradients of the floating results to begin with; random ones by default.
            The gradients are differentiated with respect to these, too.
        eps: as for `gradcheck`.
        atol: as for `gradcheck`.
        rtol: as for `gradcheck`.
        raise_exception: as for `gradcheck`.

    Returns:
        Whether all derivatives agree.

    Raises:
        GradientError, DTypeError, InvalidValue: as `gradcheck`.
    """
    given = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    checked = _checked(given, "gradgradcheck")
    count = len(given)
    if grad_outputs is None:
        random = np.random.default_rng(0)
        outputs = _outputs(f, _arguments(given, checked, {}))
        grad_outputs = [random.standard_normal(output.shape) for output in outputs]
    elif not isinstance(grad_outputs, (tuple, list)):
        grad_outputs = [grad_outputs]
    seeds = [np.asarray(_numbers(seed), dtype=np.float64) for seed in grad_outputs]

    def gradients(*all_inputs: Any) -> list[_core.Tensor]:
        outputs = _outputs(f, all_inputs[:count])
        variables = [all_inputs[place] for place in checked]
        pairs = [
            (output, seed)
            for output, seed in zip(outputs, all_inputs[count:], strict=True)
            if output.requires_grad
        ]
        if not pairs:
            return []
        found = grad(
            [output for output, _ in pairs],
            variables,
            [seed for _, seed in pairs],
            create_graph=True,
            allow_unused=True,
        )
        # What a result doesn't depend on has the gradient zero, whatever the inputs are.
        return [gradient for gradient in found if gradient is not None]

    whole = (*given, *seeds)
    try:
        _compare(gradients, whole, _checked(whole, "gradgradcheck"), eps, atol, rtol)
    except GradientError:
        if raise_exception:
            raise
        return False
    return True


def _numbers(x: Any) -> _Array:
    return np.asarray(x.detach().numpy() if isinstance(x, _core.Tensor) else x)


def _checked(inputs: Sequence[Any], what: str) -> list[int]:
    """The places of the inputs to differentiate with respect to."""
    places = []
    for place, x in enumerate(inputs):
        if isinstance(x, _core.Tensor):
            if not x.requires_grad:
                continue
        elif not isinstance(x, (np.ndarray, np.generic)) or x.dtype.kind != "f":
            continue
        if str(x.dtype) != "float64":
            raise DTypeError(
                f"{what}: input {place} is {x.dtype}; finite differences need float64, since "
                "shorter numbers round away the difference: convert it first"
            )
        places.append(place)
    if not places:
        raise InvalidValue(
            f"{what}: none of the {len(inputs)} inputs is to be checked; give a float64 tensor "
            "that requires grad, or a float64 NumPy array"
        )
    return places


def _arguments(
    inputs: Sequence[Any], checked: Sequence[int], values: dict[int, _Array]
) -> list[Any]:
    """The inputs with those to check replaced by leaves, which hold `values` where given."""
    all_inputs = list(inputs)
    for place in checked:
        array = values.get(place)
        array = np.array(_numbers(inputs[place]) if array is None else array, order="C")
        all_inputs[place] = _core.from_numpy(array).requires_grad_()
    return all_inputs


def _outputs(f: Callable[..., Any], arguments: Sequence[Any]) -> list[_core.Tensor]:
    """The floating results of a call."""
    result = f(*arguments)
    items = result if isinstance(result, (tuple, list)) else [result]
    outputs = []
    for place, item in enumerate(items):
        if not isinstance(item, _core.Tensor):
            if isinstance(item, (np.ndarray, np.generic)) and item.dtype.kind in "fc":
                raise GradientError(
                    f"result {place} is a NumPy array, which has left the graph of derivatives; "
                    "the function must compute with tensors"
                )
            continue
        if str(item.dtype).startswith("complex"):
            raise GradientError(
                f"result {place} is {item.dtype}; finite differences are compared for real results "
                "only"
            )
        if "float" in str(item.dtype):
            outputs.append(item)
    return outputs


def _compare(
    f: Callable[..., Any],
    inputs: Sequence[Any],
    checked: Sequence[int],
    eps: float,
    atol: float,
    rtol: float,
) -> None:
    random_state = _core.get_rng_state()

    def evaluate(values: dict[int, _Array]) -> tuple[list[Any], list[_core.Tensor]]:
        _core.set_rng_state(random_state)
        arguments = _arguments(inputs, checked, values)
        return arguments, _outputs(f, arguments)

    arguments, outputs = evaluate({})
    leaves = [arguments[place] for place in checked]
    for place, leaf in zip(checked, leaves, strict=True):
        analytic = [_rows(output, leaf) for output in outputs]
        base = np.array(_numbers(inputs[place]), order="C")
        numeric = [np.zeros((output.size, leaf.size)) for output in outputs]
        for element in range(base.size):
            sides = []
            for step in (eps, -eps):
                moved = base.copy()
                moved.reshape(-1)[element] += step
                _, moved_outputs = evaluate({place: moved})
                sides.append([_numbers(output).reshape(-1) for output in moved_outputs])
            for matrix, up, down in zip(numeric, *sides, strict=True):
                matrix[:, element] = (up - down) / (2 * eps)
        for number, output in enumerate(outputs):
            _check(numeric[number], analytic[number], output, leaf, (number, place), atol, rtol)


def _rows(output: _core.Tensor, leaf: _core.Tensor) -> _Array:
    """The derivatives of each element of a result: a row of as many as the leaf has elements."""
    rows = np.zeros((output.size, leaf.size))
    if not output.requires_grad:
        return rows
    for element in range(output.size):
        seed = np.zeros(output.shape, dtype=str(output.dtype))
        seed.reshape(-1)[element] = 1.0
        found = grad(
            [output], [leaf], [_core.from_numpy(seed)], retain_graph=True, allow_unused=True
        )[0]
        if found is not None:
            rows[element] = _numbers(found).reshape(-1)
    return rows


def _check(
    numeric: _Array,
    analytic: _Array,
    output: _core.Tensor,
    leaf: _core.Tensor,
    which: tuple[int, int],
    atol: float,
    rtol: float,
) -> None:
    apart = np.abs(numeric - analytic)
    # Written so that NaN counts as wrong, unless both are.
    fine = (apart <= atol + rtol * np.abs(numeric)) | (np.isnan(numeric) & np.isnan(analytic))
    if fine.all():
        return
    row, column = np.unravel_index(int(np.argmin(fine)), fine.shape)
    at = [int(i) for i in np.unravel_index(int(row), output.shape or (1,))][: output.ndim]
    by = [int(i) for i in np.unravel_index(int(column), leaf.shape or (1,))][: leaf.ndim]
    hint = ""
    if not output.requires_grad:
        hint = "; the result doesn't require grad: something on the way to it isn't recorded"
    raise GradientError(
        f"the derivative of output {which[0]} with respect to input {which[1]} is wrong in "
        f"{int((~fine).sum())} of {fine.size} elements: of output element {at} by input element "
        f"{by} it is numerically {numeric[row, column]:.9g}, analytically "
        f"{analytic[row, column]:.9g} (apart by {apart[row, column]:.3g}; allowed are "
        f"atol={atol:g} + rtol={rtol:g} of the numeric one){hint}"
    )
