"""Derivatives: `grad`, `no_grad`, `checkpoint`, `register_autograd`."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from keyfold import _core
from keyfold._default import dispatcher as _default
from keyfold._entry_points import find
from keyfold._errors import BindingError, InvalidValue
from keyfold._layers._tree import map_leaves, refuse_registered

__all__ = [
    "checkpoint",
    "grad",
    "no_grad",
    "register_autograd",
    "value_and_grad",
]

_F = TypeVar("_F", bound=Callable[..., Any])


class no_grad(_core._NoGrad):  # noqa: N801 - the field's name for it
    """Record nothing inside the `with` block, or inside the function that this decorates."""

    def __new__(cls, function: Any = None) -> Any:
        """Make the block; `@no_grad` without parentheses decorates, too."""
        made = super().__new__(cls)
        return made if function is None else made(function)

    def __call__(self, function: _F) -> _F:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise BindingError(
                f"no_grad() can't decorate the generator {_name(function)}, whose body runs later; "
                "use a with block inside it"
            )
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def later(*args: Any, **kwargs: Any) -> Any:
                with no_grad():
                    return await function(*args, **kwargs)

            return cast("_F", later)

        @functools.wraps(function)
        def without(*args: Any, **kwargs: Any) -> Any:
            with no_grad():
                return function(*args, **kwargs)

        return cast("_F", without)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def grad(
    outputs: Any,
    inputs: Any = None,
    grad_outputs: Any = None,
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    retain_graph: bool | None = None,
    create_graph: bool | None = None,
    allow_unused: bool = False,
) -> Any:
    """Give gradients: of tensors, or of a function.

    With tensors, `grad(outputs, inputs)` gives the gradients of the sum of the outputs with respect
    to the inputs, and leaves every tensor's own `grad` alone. With a function, `grad(f)` gives the
    function that computes f's gradient with respect to its argument number `argnums`; f returns a
    single number. Inside `vmap`, each example has its own gradient.

    The gradient of a complex number is `dL/dRe + 1j dL/dIm` of the real result L, as PyTorch has
    it: the direction in which L grows fastest, the conjugate of what some other libraries give.

    Args:
        outputs: a tensor or several, or a function.
        inputs: the tensors to differentiate with respect to.
        grad_outputs: gradients of the outputs to begin with; 1 for single numbers by default.
        argnums: of a function: the number of the argument, or several. Arguments may be tensors,
            arrays, numbers, and tuples, lists and dicts of them.
        has_aux: of a function: it returns a pair, of which the second is passed through.
        retain_graph: keep what the graph saved, to go through it again; as `create_graph` by
            default.
        create_graph: record the derivatives, too. By default for a function inside another `grad`,
            and where its value also depends on other tensors that require grad.
        allow_unused: give None for inputs that no output depends on, instead of an error.

    Returns:
        A gradient per input, in a tuple if several were given; or a function. Arrays have gradients
        that are arrays.

    Raises:
        GradientError: an input or output that doesn't require grad; an output that isn't a single
            real number and has no `grad_outputs`; no derivative; see `Tensor.backward`.
    """
    if callable(outputs) and not isinstance(outputs, _core.Tensor):
        if inputs is not None or grad_outputs is not None:
            raise BindingError(
                "grad(f) takes a function alone; its arguments go to what it returns"
            )
        both = value_and_grad(outputs, argnums=argnums, has_aux=has_aux, create_graph=create_graph)

        @functools.wraps(outputs)
        def gradient(*args: Any, **kwargs: Any) -> Any:
            value, result = both(*args, **kwargs)
            return (result, value[1]) if has_aux else result

        return gradient
    if inputs is None:
        raise BindingError(
            "grad(outputs, inputs) needs the tensors to differentiate with respect to"
        )
    create = bool(create_graph)
    with _core._enable_grad() if create else contextlib.nullcontext():
        found = _core._grad(
            _as_list(outputs),
            _as_list(inputs),
            [] if grad_outputs is None else _as_list(grad_outputs),
            create if retain_graph is None else retain_graph,
            create,
            allow_unused,
        )
    return tuple(found) if isinstance(inputs, (tuple, list)) else found[0]


def value_and_grad(
    f: Callable[..., Any],
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    create_graph: bool | None = None,
) -> Callable[..., Any]:
    """Give the function that computes f's value and its gradient together.

    Args:
        f: a function that returns a single number (a tensor with one element).
        argnums: the number of the argument to differentiate with respect to, or several.
        has_aux: whether f returns a pair, of which the second is passed through; its tensors come
            back in kind, as the value does.
        create_graph: as for `grad`.

    Returns:
        A function that returns `(value, gradient)`, or `((value, aux), gradient)`.

    Raises:
        GradientError: f returns something else than a single real number, or there is no gradient.
        BindingError: an argument to differentiate with respect to is of a class registered with
            `register_array_type`.
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if len(set(numbers)) < len(numbers):
        raise InvalidValue(f"argnums={argnums} names an argument twice")

    @functools.wraps(f)
    def both(*args: Any, **kwargs: Any) -> Any:
        # A gradient was asked for, whatever is switched off around it; only what f switches off
        # itself counts.
        with _core._enable_grad():
            return recorded(args, kwargs)

    def recorded(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = list(args)
        variables: list[Any] = []
        sources: list[Any] = []
        for number in numbers:
            if not -len(args) <= number < len(args):
                raise BindingError(
                    f"argnums={number}, but {_name(f)}() was called with {len(args)} positional "
                    "arguments"
                )
            given[number] = _variables(
                given[number], f"argument {number} of {_name(f)}()", variables, sources
            )
        result = _core._call_recorded(f, tuple(given), kwargs)
        value, aux = result if has_aux else (result, None)
        if not isinstance(value, _core.Tensor) or value.size != 1:
            shown = f"a tensor of shape {value.shape}" if isinstance(value, _core.Tensor) else value
            raise _core_error(
                f"{_name(f)}() must return a single number, as a tensor with one element, to have "
                f"a gradient, not {shown!r}"
            )
        if str(value.dtype).startswith("complex"):
            raise _core_error(
                f"{_name(f)}() must return a real number to have a gradient, not {value.dtype}: "
                "take its real part, its imaginary part or its abs"
            )
        create = create_graph
        if create is None:
            create = (
                _core._is_differentiated()
                or any(isinstance(s, _core.Tensor) and s.requires_grad for s in sources)
                or _core._leads_outside(value, variables)
            )
        if value.requires_grad:
            found = iter(_core._grad([value], variables, [], create, create, True))
        else:
            found = iter([None] * len(variables))
        gradients = []
        sources_left = iter(sources)
        for number in numbers:
            gradients.append(_collect(args[number], found, sources_left))
        if not create:
            value, aux = _detached(value), _detached(aux)
            if not any(isinstance(source, _core.Tensor) for source in sources):
                like = next(filter(_is_array, sources), None)
                value, aux = _all_in_kind(value, like), _all_in_kind(aux, like)
        whole = (value, aux) if has_aux else value
        return whole, gradients[0] if isinstance(argnums, int) else tuple(gradients)

    return both


def _name(f: Callable[..., Any]) -> str:
    return getattr(f, "__qualname__", repr(f))


def _core_error(message: str) -> Exception:
    from keyfold._errors import GradientError

    return GradientError(message)


def _in_kind(value: _core.Tensor, source: Any) -> Any:
    """A tensor in the library of an array, unless it is an example of a batch or has a tangent.

    NumPy's where there is no array, since then a number was given.
    """
    if "Vmap" in value.keys or _core._has_tangent(value):
        return value
    return value.numpy() if source is None else _core._in_kind(value, source)


def _all_in_kind(tree: Any, source: Any) -> Any:
    """The same with every tensor in the library of an array."""
    return map_leaves(tree, lambda x: _in_kind(x, source) if isinstance(x, _core.Tensor) else x)


def _variables(tree: Any, place: str, variables: list[Any], sources: list[Any]) -> Any:
    """Put a variable of its own in the place of every tensor, array and number."""

    def variable(leaf: Any) -> Any:
        refuse_registered(leaf, f"grad: {place}", "which can't be differentiated")
        source = leaf
        if not isinstance(source, _core.Tensor):
            source = _core._view(leaf) if _is_array(leaf) else _number(leaf)
        variables.append(_core._grad_variable(source))
        sources.append(leaf)
        return variables[-1]

    return map_leaves(tree, variable)


def _is_array(value: Any) -> bool:
    return type(value) not in (bool, int, float, complex) and _core._is_array(value)


def _number(value: Any) -> _core.Tensor:
    from keyfold._ops._creation import asarray

    return asarray(value)


def _detached(tree: Any) -> Any:
    """The same with every tensor cut from its history."""

    def detached(leaf: Any) -> Any:
        if not isinstance(leaf, _core.Tensor):
            return leaf
        # Tangents of a jvp around this stay.
        return _core._without_graph(leaf) if _core._has_tangent(leaf) else leaf.detach()

    return map_leaves(tree, detached)


def _collect(tree: Any, found: Any, sources: Any) -> Any:
    """Gradients in the form of what they are gradients of; zeros where nothing depends on it."""

    def collect(_: Any) -> Any:
        gradient, source = next(found), next(sources)
        if gradient is None:
            from keyfold._ops._creation import zeros_like

            like = _core._view(source) if _is_array(source) else _number(source)
            gradient = zeros_like(like)
        differentiated = gradient.requires_grad or _core._has_tangent(gradient)
        if isinstance(source, _core.Tensor) or differentiated:
            return gradient
        return _in_kind(gradient, source if _is_array(source) else None)

    return map_leaves(tree, collect)


def checkpoint(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function without keeping what its derivatives need; backward calls it again.

    Memory for time: for a part of a network, its inputs and outputs alone are kept. The second call
    has the guards that are open now and the random numbers of the first (dropout drops the same).

    Args:
        function: it must make the same operator calls each time it gets the same arguments.
        args: its arguments.
        kwargs: its keyword arguments.

    Returns:
        What the function returns.

    Raises:
        GradientError: in backward, if the second call didn't do what the first did.

    Source: Chen et al., "Training deep nets with sublinear memory cost", 2016.
    """
    return _core._checkpoint(function, args, kwargs)


class Context:
    """The data of one call that a derivative's `setup_context` and `backward` share.

    Attributes:
        saved_tensors: in backward: the tensors that `save_for_backward` was given.
        needs_input_grad: for each argument of the operator, whether its gradient is needed.
    """

    saved_tensors: tuple[Any, ...]
    needs_input_grad: tuple[bool, ...]

    def __init__(self, needs_input_grad: Sequence[bool]) -> None:
        self.needs_input_grad = tuple(needs_input_grad)
        self.saved_tensors = ()
        self._to_save: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors: arguments, results, others, None.

        What is changed in place before backward is an error there, not a wrong gradient.
        """
        self._to_save = tensors


def register_autograd(
    op: Any,
    backward: Callable[..., Any] | None = None,
    /,
    *,
    setup_context: Callable[..., Any] | None = None,
    override: str = "error",
    dispatcher: _core.Dispatcher | None = None,
) -> Any:
    """Register the derivative of an operator.

    Args:
        op: the operator or its name.
        backward: `backward(ctx, *grads)`: from the gradients of the results (zeros for a result
            that nothing depends on) to one per argument of the operator: a tensor of the argument's
            form, a list of them for a `Tensor[]`, or None. Written with operators, it has
            derivatives itself. Without it, this is a decorator.
        setup_context: `setup_context(ctx, inputs, output)`, called with each recorded call; it
            keeps tensors with `ctx.save_for_backward(...)` and anything else as attributes of
            `ctx`.
        override: as for `impl`.
        dispatcher: where; the process's own by default.

    Returns:
        A handle, whose `remove()` takes it back; the function, where this is a decorator.

    Raises:
        UnknownOperator: there is no such operator.
        RegistrationError: it has a kernel at Autograd already.
    """
    target = _default if dispatcher is None else dispatcher

    def register(function: Callable[..., Any]) -> Any:
        return find(
            target,
            op,
            _core._register_autograd,
            *(target, op, function, setup_context, Context, override),
        )

    if backward is not None:
        return register(backward)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        register(function)
        return function

    return decorate
