"""Functions of one example, mapped over a batch: `vmap`, `register_vmap`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from keyfold import _core
from keyfold._default import dispatcher as _default
from keyfold._entry_points import find
from keyfold._errors import BindingError, IndexOutOfRange, InvalidValue, ShapeError
from keyfold._layers._tree import map_leaves, refuse_registered

__all__ = [
    "register_vmap",
    "vmap",
]

_RANDOMNESS = ("error", "different", "same")


def vmap(
    f: Callable[..., Any] | None = None,
    /,
    in_axes: Any = 0,
    out_axes: Any = 0,
    *,
    randomness: str = "error",
) -> Callable[..., Any]:
    """Give the function that maps `f` over an axis of its arguments.

    `f` is written for one example. It is called once, with tensors that stand for one example each;
    the operators that it calls compute all examples at once where they have a rule, else one
    after the other. So an operator that writes to an argument, or prints, does so per batch, and a
    Python `if` on a value of an example is an error.

    Args:
        f: the function; without it, this is a decorator. Arguments and results may be tensors,
            arrays, and tuples, lists and dicts of them.
        in_axes: the axis of each argument to map over: one for all, or a tuple with one per
            positional argument; None for an argument that is the same for all examples. For an
            argument with parts, one for all of them or the like structure. Keyword arguments are
            mapped over axis 0.
        out_axes: where the results have the axis: one for all, or the structure of the result.
            None for a result that is the same for all examples and comes back without the axis.
        randomness: what random numbers drawn inside are (`rand`, `randn`, `dropout`): "different"
            for each example, the "same" for all, or an "error", since neither goes without saying.

    Returns:
        A function with the arguments and results of `f`, each with one axis more. If all arrays
        that it is given are of one library (NumPy, say), so are its results. A result that doesn't
        depend on the batch is repeated.

    Raises:
        InvalidValue: nothing to map over; in_axes or out_axes of another structure; an out_axes of
            None for a result that differs from example to example; reading an example's data, or
            using one after the call; drawing random numbers without a choice of `randomness`.
        IndexOutOfRange: an axis that isn't there.
        ShapeError: arguments whose axes differ in size.
        BindingError: something to map over, or a result, that is no tensor or is of a class
            registered with `register_array_type`.
        GradientError: writing to an example in place by an operator without a rule of its own
            while a tensor of the call requires grad (assignment, `+=` and the like have one);
            `checkpoint` inside `f` whose backward runs outside.

    Source: the names and meanings are those of JAX's `vmap`; `randomness` is that of
    `torch.func.vmap`.
    """
    if f is None:
        return functools.partial(vmap, in_axes=in_axes, out_axes=out_axes, randomness=randomness)
    if not callable(f):
        raise BindingError(f"vmap maps a function, not {f!r}")
    _check_axes(in_axes, "in_axes")
    _check_axes(out_axes, "out_axes")
    if randomness not in _RANDOMNESS:
        raise InvalidValue(
            f"vmap: randomness is one of {', '.join(map(repr, _RANDOMNESS))}, not {randomness!r}"
        )

    @functools.wraps(f)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        return _run(f, (in_axes, out_axes, randomness), args, kwargs)

    return mapped


def _run(
    f: Callable[..., Any],
    options: tuple[Any, Any, str],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    in_axes, out_axes, randomness = options
    if isinstance(in_axes, (tuple, list)):
        if len(in_axes) != len(args):
            raise InvalidValue(
                f"vmap: in_axes has {len(in_axes)} entries and {_name(f)}() was called with "
                f"{len(args)} positional argument{'' if len(args) == 1 else 's'}; give one each, "
                "or one int for all"
            )
        axes = list(in_axes)
    else:
        axes = [in_axes] * len(args)
    # Every leaf in order: its name, the value, its axis.
    leaves: list[tuple[str, Any, int | None]] = []
    for number, (arg, axis) in enumerate(zip(args, axes, strict=True)):
        _match(arg, axis, f"argument {number}", "in_axes", leaves)
    positional = len(leaves)
    for key, arg in kwargs.items():
        _match(arg, 0, f"argument {key!r}", "in_axes", leaves)

    size, tensors = _inputs(f, leaves, positional)
    like = _kind([value for _, value, _ in leaves])
    with _core._VmapFrame(size, randomness) as frame:
        level = frame.level
        entered = iter(
            value if tensor is None else _enter(tensor, axis, level)
            for tensor, (_, value, axis) in zip(tensors, leaves, strict=True)
        )
        given = [map_leaves(arg, lambda _: next(entered)) for arg in args]
        named = {key: map_leaves(arg, lambda _: next(entered)) for key, arg in kwargs.items()}
        result = f(*given, **named)
        results: list[tuple[str, Any, int | None]] = []
        _match(result, out_axes, f"the result of {_name(f)}()", "out_axes", results)
        left = iter([_leave(*leaf, level, size, like) for leaf in results])
        return map_leaves(result, lambda _: next(left))


def _inputs(
    f: Callable[..., Any], leaves: list[tuple[str, Any, int | None]], positional: int
) -> tuple[int, list[Any]]:
    """The size of the batch, and a tensor for each leaf that is mapped.

    The first `positional` leaves are of positional arguments, the others of keyword arguments.
    """
    first: tuple[str, int, int] | None = None
    tensors: list[Any] = []
    for number, (where, value, axis) in enumerate(leaves):
        if axis is None or value is None:
            tensors.append(None)
            continue
        tensor = _tensor(value, where, axis, number >= positional)
        shape = tensor.shape
        if not -len(shape) <= axis < len(shape):
            raise IndexOutOfRange(
                f"vmap: {where} of {_name(f)}() has shape {shape}, which has no axis {axis} to "
                "map over"
            )
        size = shape[axis]
        if first is None:
            first = (where, axis, size)
        elif size != first[2]:
            raise ShapeError(
                f"vmap: the sizes to map over differ: {first[0]} has size {first[2]} along axis "
                f"{first[1]}, {where} has size {size} along axis {axis}"
            )
        tensors.append(tensor)
    if first is None:
        raise InvalidValue(
            f"vmap: nothing to map over: no argument of {_name(f)}() has an axis in in_axes"
        )
    return first[2], tensors


def _is_array(value: Any) -> bool:
    return type(value) not in (bool, int, float, complex) and _core._is_array(value)


def _kind(values: list[Any]) -> Any:
    """An array in whose library results go: the first, if all arrays are of one library."""
    arrays = [value for value in values if _is_array(value)]
    plain = (np.ndarray, np.generic)
    alike = all(
        type(value) is type(arrays[0])
        or (isinstance(value, plain) and isinstance(arrays[0], plain))
        for value in arrays
    )
    return arrays[0] if alike and not isinstance(arrays[0], _core.Tensor) else None


def _enter(tensor: _core.Tensor, axis: int | None, level: int) -> Any:
    return _default.ops.keyfold._vmap_enter(tensor, axis, level)


def _leave(where: str, value: Any, axis: int | None, level: int, size: int, like: Any) -> Any:
    """A leaf of the result as `vmap` returns it."""
    if value is None:
        return None
    refuse_registered(value, f"vmap: {where}", "which can't be stacked into a batch")
    if not _is_array(value):
        raise BindingError(
            f"vmap: {where} is {value!r}, and no tensor; return tensors, and tuples, lists and "
            "dicts of them"
        )
    tensor = _core._view(value)
    if axis is None:
        if _core._vmap_depends(tensor, level):
            raise InvalidValue(
                f"vmap: {where} differs from example to example, so it can't have out_axes None; "
                "give it an axis"
            )
        return _as_kind(value, like)
    rank = tensor.ndim + 1
    if not -rank <= axis < rank:
        raise IndexOutOfRange(
            f"vmap: out_axes puts the batch at axis {axis} of {where}, which has {rank} axes "
            "with the batch"
        )
    whole = _default.ops.keyfold._vmap_exit(tensor, level, axis, size)
    return _as_kind(whole, like)


def _as_kind(value: Any, like: Any) -> Any:
    """A result in the library of the arguments, unless only a tensor can be what it is."""
    if like is None or not isinstance(value, _core.Tensor):
        return value
    if "Autograd" in value.keys or "Vmap" in value.keys:
        return value
    return _core._in_kind(value, like)


def _tensor(value: Any, where: str, axis: int, named: bool) -> _core.Tensor:
    """The tensor that a leaf to map over is or views."""
    refuse_registered(value, f"vmap: {where}", "which is mapped over")
    if _is_array(value):
        return _core._view(value)
    if named:
        raise BindingError(
            f"vmap: keyword arguments are mapped over axis 0, and {where} is no tensor: {value!r}; "
            "give it by position with None in in_axes, or bind it with functools.partial"
        )
    raise BindingError(
        f"vmap: in_axes maps over axis {axis} of {where}, which is no tensor: {value!r}; give it "
        "None in in_axes"
    )


def _is_axis(axes: Any) -> bool:
    return axes is None or (isinstance(axes, (int, np.integer)) and not isinstance(axes, bool))


def _check_axes(axes: Any, name: str) -> None:
    if _is_axis(axes):
        return
    if isinstance(axes, dict):
        parts = list(axes.values())
    elif isinstance(axes, (tuple, list)):
        parts = list(axes)
    else:
        raise BindingError(
            f"{name} has ints, None, and tuples, lists and dicts of them, not {axes!r}"
        )
    for part in parts:
        _check_axes(part, name)


def _match(
    tree: Any, axes: Any, where: str, name: str, leaves: list[tuple[str, Any, int | None]]
) -> None:
    """Add the leaves of a tree with their axes, which have its structure or a beginning of it."""
    if isinstance(tree, (tuple, list)):
        if isinstance(axes, dict) or (isinstance(axes, (tuple, list)) and len(axes) != len(tree)):
            raise InvalidValue(
                f"vmap: {where} is a {type(tree).__name__} of {len(tree)}, but its {name} is "
                f"{axes!r}; give one for all, or one each"
            )
        parts = axes if isinstance(axes, (tuple, list)) else [axes] * len(tree)
        for number, (item, part) in enumerate(zip(tree, parts, strict=True)):
            _match(item, part, f"{where}[{number}]", name, leaves)
    elif isinstance(tree, dict):
        if isinstance(axes, (tuple, list)) or (
            isinstance(axes, dict) and axes.keys() != tree.keys()
        ):
            raise InvalidValue(
                f"vmap: {where} is a dict with keys {sorted(map(repr, tree))}, but its {name} is "
                f"{axes!r}; give one for all, or a dict with the same keys"
            )
        for key, item in tree.items():
            part = axes[key] if isinstance(axes, dict) else axes
            _match(item, part, f"{where}[{key!r}]", name, leaves)
    elif _is_axis(axes):
        leaves.append((where, tree, axes if axes is None else int(axes)))
    else:
        raise InvalidValue(
            f"vmap: {where} has no parts, but its {name} is {axes!r}; give an int or None"
        )


def _name(f: Callable[..., Any]) -> str:
    return getattr(f, "__qualname__", repr(f))


def register_vmap(
    op: Any,
    func: Callable[..., Any] | None = None,
    /,
    *,
    override: str = "error",
    dispatcher: _core.Dispatcher | None = None,
) -> Any:
    """Register how an operator computes a whole batch at once.

    Without a rule, `vmap` calls an operator once per example.

    Args:
        op: the operator or its name.
        func: `func(info, in_dims, *args)` returns `(output, out_dims)`. `info.batch_size` is the
            number of examples; `args` are the operator's arguments with all examples in them, and
            `in_dims` says for each, keyword-only ones too, which dimension counts examples: an int,
            None where there is none, a list of them for a list of tensors. `out_dims` says the same
            of the output, an int from 0 or None, or a tuple with one each for several outputs.
            Without `func`, this is a decorator.
        override: as for `impl`.
        dispatcher: where; the process's own by default.

    Returns:
        A handle, whose `remove()` takes it back; the function, where this is a decorator.

    Raises:
        UnknownOperator: there is no such operator.
        RegistrationError: it has a rule already.
        KernelReturnError: when called: a rule whose output and out_dims don't fit.

    Source: the form is that of PyTorch's `torch.library.register_vmap`.
    """
    target = _default if dispatcher is None else dispatcher
    if func is not None:
        return find(target, op, _core._register_vmap, target, op, func, override)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        find(target, op, _core._register_vmap, target, op, function, override)
        return function

    return decorate
