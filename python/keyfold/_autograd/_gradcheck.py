"""Derivatives against finite differences: `gradcheck`, `gradgradcheck`.

Method: central differences, `(f(x + eps) - f(x - eps)) / (2 eps)`, whose error falls with eps
squared until rounding takes over; in float64 an eps of 1e-6 leaves about nine digits.

A complex number is two real ones here, its parts. The gradient of the real part of a result is
found from the gradient 1 of the result, that of the imaginary part from 1j; of a complex input it
is `dL/dRe + 1j dL/dIm`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keyfold import _core
from keyfold._autograd._grad import grad
from keyfold._autograd._jvp import jvp
from keyfold._errors import DTypeError, GradientError, InvalidValue
from keyfold._messages import refused

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
    check_forward: bool = False,
    check_backward: bool = True,
) -> bool:
    """Compare a function's derivatives with finite differences.

    Every element of every floating or complex result is differentiated with respect to every
    element of every input that requires grad, complex ones by both parts, so small inputs are
    enough. Each call gets the same random numbers.

    Args:
        f: a function of `inputs` that returns a tensor or several.
        inputs: its argument, or a tuple of them. Checked are tensors that require grad and NumPy
            arrays of floats and complex numbers; others are passed as they are. The tensors
            themselves are not used: f gets copies.
        eps: the step.
        atol: how far apart two derivatives may be,
        rtol: and how far in addition, as a part of the numeric one.
        raise_exception: False to return False instead of raising GradientError.
        check_forward: True to compare the derivatives of forward mode (`jvp`), too.
        check_backward: False to leave out those of reverse mode, of a function that has none.

    Returns:
        Whether all derivatives agree.

    Raises:
        GradientError: one doesn't: the message has the result, the input, the element, and both
            values. Or the gradient, or with `check_forward` the tangent, can't be computed.
        DTypeError: an input to check is neither float64 nor complex128.
        InvalidValue: no input is to be checked, or in neither mode.

    Source: the form is that of `torch.autograd.gradcheck`, whose `check_forward_ad` and
    `check_backward_ad` are `check_forward` and `check_backward`.
    """
    given = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    checked = _checked(given, "gradcheck")
    modes = {"check_backward": check_backward, "check_forward": check_forward}
    for name, mode in modes.items():
        if not isinstance(mode, bool):
            raise refused("gradcheck", name, "True or False", mode)
    if not any(modes.values()):
        raise InvalidValue("gradcheck: check_backward or check_forward must be True; both are not")
    try:
        _compare(f, given, checked, eps, atol, rtol, check_forward, check_backward)
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
        grad_outputs = [_random_like(random, output) for output in outputs]
    elif not isinstance(grad_outputs, (tuple, list)):
        grad_outputs = [grad_outputs]
    seeds = [_wide(_numbers(seed)) for seed in grad_outputs]

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
        # The gradient of an input that the result doesn't depend on is zero for all inputs.
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


def _wide(x: _Array) -> _Array:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _random_like(random: np.random.Generator, output: _core.Tensor) -> _Array:
    x = random.standard_normal(output.shape)
    return x + 1j * random.standard_normal(output.shape) if _is_complex(output) else x


def _is_complex(x: Any) -> bool:
    return str(x.dtype).startswith("complex")


def _parts(x: Any) -> _Array:
    """The real numbers that an array is made of, in one dimension."""
    flat = np.ascontiguousarray(_wide(_numbers(x))).reshape(-1)
    return flat.view(np.float64)


def _count(x: Any) -> int:
    """How many real numbers an array is made of."""
    return 2 * int(x.size) if _is_complex(x) else int(x.size)


def _checked(inputs: Sequence[Any], what: str) -> list[int]:
    """The places of the inputs to differentiate with respect to."""
    places = []
    for place, x in enumerate(inputs):
        if isinstance(x, _core.Tensor):
            if not x.requires_grad:
                continue
        elif not isinstance(x, (np.ndarray, np.generic)) or x.dtype.kind not in "fc":
            continue
        if str(x.dtype) not in ("float64", "complex128"):
            raise DTypeError(
                f"{what}: input {place} is {x.dtype}; finite differences need float64 or "
                "complex128, since shorter numbers round away the difference: convert it first"
            )
        places.append(place)
    if not places:
        raise InvalidValue(
            f"{what}: none of the {len(inputs)} inputs is to be checked; give a float64 or "
            "complex128 tensor that requires grad, or such a NumPy array"
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
    """The floating and complex results of a call."""
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
        if "float" in str(item.dtype) or _is_complex(item):
            outputs.append(item)
    return outputs


def _compare(
    f: Callable[..., Any],
    inputs: Sequence[Any],
    checked: Sequence[int],
    eps: float,
    atol: float,
    rtol: float,
    check_forward: bool = False,
    check_backward: bool = True,
) -> None:
    random_state = _core.get_rng_state()

    def evaluate(values: dict[int, _Array]) -> tuple[list[Any], list[_core.Tensor]]:
        _core.set_rng_state(random_state)
        arguments = _arguments(inputs, checked, values)
        return arguments, _outputs(f, arguments)

    arguments, outputs = evaluate({})
    leaves = [arguments[place] for place in checked]
    for place, leaf in zip(checked, leaves, strict=True):
        backward = [_rows(output, leaf) for output in outputs if check_backward]
        base = np.array(_numbers(inputs[place]), order="C")
        numeric = [np.zeros((_count(output), _count(leaf))) for output in outputs]
        forward = [np.zeros_like(matrix) for matrix in numeric]
        for element in range(_count(leaf)):
            if check_forward:
                _core.set_rng_state(random_state)
                for matrix, tangent in zip(
                    forward, _tangents(f, arguments, place, element), strict=True
                ):
                    matrix[:, element] = tangent
            sides = []
            for step in (eps, -eps):
                moved = base.copy()
                moved.reshape(-1).view(np.float64)[element] += step
                _, moved_outputs = evaluate({place: moved})
                sides.append([_parts(output) for output in moved_outputs])
            for matrix, up, down in zip(numeric, *sides, strict=True):
                matrix[:, element] = (up - down) / (2 * eps)
        for number, output in enumerate(outputs):
            modes = [("the derivative", backward)] if check_backward else []
            modes += [("the forward-mode derivative", forward)] if check_forward else []
            for name, found in modes:
                what = f"{name} of output {number} with respect to input {place}"
                _check(numeric[number], found[number], output, leaf, what, atol, rtol)


def _rows(output: _core.Tensor, leaf: _core.Tensor) -> _Array:
    """The derivatives of each part of a result: a row of as many as the leaf has parts."""
    rows = np.zeros((_count(output), _count(leaf)))
    if not output.requires_grad:
        return rows
    for element in range(_count(output)):
        seed = np.zeros(output.shape, dtype=str(output.dtype))
        seed.reshape(-1).view(seed.real.dtype)[element] = 1.0
        found = grad(
            [output], [leaf], [_core.from_numpy(seed)], retain_graph=True, allow_unused=True
        )[0]
        if found is not None:
            rows[element] = _parts(found)
    return rows


def _tangents(
    f: Callable[..., Any], arguments: Sequence[Any], place: int, element: int
) -> list[_Array]:
    """The derivatives of each result with respect to one part of an argument, by forward mode."""
    direction = np.zeros_like(_numbers(arguments[place]))
    direction.reshape(-1).view(np.float64)[element] = 1.0
    tangents: list[Any] = [None] * len(arguments)
    tangents[place] = _core.from_numpy(direction)
    found = jvp(lambda *args: _outputs(f, args), tuple(arguments), tuple(tangents))[1]
    return [_parts(tangent) for tangent in found]


def has_forward(f: Callable[..., Any], inputs: Sequence[_core.Tensor]) -> bool:
    """Whether all operators that a function calls have a rule for tangents."""
    level = _core._JvpLevel()
    try:
        with _core._enable_grad():
            level.call(f, tuple(level.dual(x, x) for x in inputs), True)
    except GradientError:
        # Of an operator without a rule, which the level knows, or of one with a wrong rule.
        pass
    finally:
        level.end()
    return not level.lacks_rule


def _place(part: int, x: _core.Tensor) -> str:
    """The element that a part belongs to, and which part it is of a complex one."""
    element, which = divmod(part, 2) if _is_complex(x) else (part, None)
    indices = [int(i) for i in np.unravel_index(element, x.shape or (1,))][: x.ndim]
    return f"{indices}" if which is None else f"{indices}.{('real', 'imag')[which]}"


def _check(
    numeric: _Array,
    analytic: _Array,
    output: _core.Tensor,
    leaf: _core.Tensor,
    what: str,
    atol: float,
    rtol: float,
) -> None:
    apart = np.abs(numeric - analytic)
    # Written so that NaN counts as wrong, unless both are.
    fine = (apart <= atol + rtol * np.abs(numeric)) | (np.isnan(numeric) & np.isnan(analytic))
    if fine.all():
        return
    row, column = np.unravel_index(int(np.argmin(fine)), fine.shape)
    at, by = _place(int(row), output), _place(int(column), leaf)
    hint = ""
    if not output.requires_grad and what.startswith("the derivative"):
        hint = "; the result doesn't require grad: something on the way to it isn't recorded"
    raise GradientError(
        f"{what} is wrong in "
        f"{int((~fine).sum())} of {fine.size} elements: of output element {at} by input element "
        f"{by} it is numerically {numeric[row, column]:.9g}, analytically "
        f"{analytic[row, column]:.9g} (apart by {apart[row, column]:.3g}; allowed are "
        f"atol={atol:g} + rtol={rtol:g} of the numeric one){hint}"
    )
