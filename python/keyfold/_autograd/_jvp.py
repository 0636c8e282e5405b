"""Forward mode: `jvp`, `register_jvp`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keyfold import _core
from keyfold._autograd._grad import _is_array, _name, _number
from keyfold._default import dispatcher as _default
from keyfold._entry_points import find
from keyfold._errors import BindingError, DTypeError, GradientError
from keyfold._layers._tree import map_leaves, refuse_registered

__all__ = ["jvp", "register_jvp"]


def jvp(
    func: Callable[..., Any], primals: Any, tangents: Any, *, has_aux: bool = False
) -> tuple[Any, ...]:
    """Give a function's value and its derivative along a direction, in one run.

    Each operator computes the tangent of its result from those of its operands (forward mode), so
    nothing is kept for later. `jvp` of a `jvp`, of a gradient, and `grad` of a `jvp` are what they
    should be, and inside `vmap` every example has its own. `detach` cuts tangents off as it cuts
    gradients, and so does `no_grad` inside `func`.

    Of complex numbers it is the derivative along the direction in the complex plane: `f'(z) t`
    where f has a complex derivative. The conjugate is part of gradients, not of tangents.

    Args:
        func: a function of tensors. Results are tensors and arrays, and tuples, lists and dicts of
            them.
        primals: its positional arguments, in a tuple: tensors, arrays, numbers, and tuples, lists
            and dicts of them.
        tangents: the direction, in the structure of `primals`: each of its primal's shape. None for
            an argument or a part of it that stays as it is.
        has_aux: func returns a pair, of which the second is passed through.

    Returns:
        `(outputs, tangents)`, or `(outputs, tangents, aux)`. Where all arrays that were given are
        of another library (NumPy, say), so are the results.

    Raises:
        BindingError: primals and tangents of different structures; a result that is no tensor.
        GradientError: a tangent that hasn't its primal's form; an operator without a rule for
            tangents (see `register_jvp`).
        DTypeError: a primal that is neither floating nor complex.

    Example:
        >>> import keyfold as kf
        >>> value, tangent = kf.jvp(lambda x: x * kf.sin(x), (kf.asarray(2.0),), (kf.asarray(1.0),))
        >>> round(tangent.item(), 6)
        0.077004

    Source: the form is that of `torch.func.jvp` and of JAX's `jvp`.
    """
    for name, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, (tuple, list)):
            raise BindingError(
                f"jvp: {name} has the positional arguments of {_name(func)}() in a tuple, not "
                f"{given!r}"
            )
    sources: list[Any] = []
    level = _core._JvpLevel()
    records = _core.is_grad_enabled()
    try:
        # A derivative was asked for, whatever is switched off around it.
        with _core._enable_grad():
            duals = _duals(level, primals, tangents, "primals", sources)
            result = level.call(func, tuple(duals), records)
            result, aux = _pair(result, func) if has_aux else (result, None)
            along: list[Any] = []
            outputs = _unpacked(level, result, f"the result of {_name(func)}()", along)
            if has_aux:
                aux = map_leaves(aux, lambda x: _primal(level, x))
    finally:
        level.end()
    like = _library(sources)
    left = iter(along)
    results = (outputs, map_leaves(outputs, lambda _: next(left)))
    results = tuple(_all_in_kind(part, like) for part in results)
    return (*results, _all_in_kind(aux, like)) if has_aux else results


def _pair(result: Any, func: Callable[..., Any]) -> tuple[Any, Any]:
    if isinstance(result, tuple) and len(result) == 2:
        return result
    raise BindingError(f"has_aux=True: {_name(func)}() has to return (result, aux), not {result!r}")


def _duals(level: Any, primals: Any, tangents: Any, where: str, sources: list[Any]) -> Any:
    """The primals with their tangents, where they have one."""
    if tangents is None:
        return primals
    if isinstance(primals, (tuple, list)):
        if not isinstance(tangents, (tuple, list)) or len(tangents) != len(primals):
            raise _differ(where, primals, tangents)
        both = enumerate(zip(primals, tangents, strict=True))
        items = [_duals(level, x, t, f"{where}[{i}]", sources) for i, (x, t) in both]
        return type(primals)(*items) if hasattr(primals, "_fields") else type(primals)(items)
    if isinstance(primals, dict):
        if not isinstance(tangents, dict) or tangents.keys() != primals.keys():
            raise _differ(where, primals, tangents)
        return {
            key: _duals(level, x, tangents[key], f"{where}[{key!r}]", sources)
            for key, x in primals.items()
        }
    if isinstance(tangents, (tuple, list, dict)):
        raise _differ(where, primals, tangents)
    sources += [primals, tangents]
    primal = _tensor(primals, f"jvp: {where}")
    tangent = _tensor(tangents, f"jvp: {where.replace('primals', 'tangents', 1)}")
    if tangent.shape != primal.shape:
        raise GradientError(
            f"jvp: the tangent of {where} has shape {tangent.shape}, but that has shape "
            f"{primal.shape}; a tangent has its primal's shape"
        )
    if tangent.dtype != primal.dtype and not isinstance(tangents, _core.Tensor):
        tangent = tangent.to(primal.dtype)
    try:
        return level.dual(primal, tangent)
    except (DTypeError, GradientError) as error:
        raise type(error)(f"jvp: {where}: {error}") from None


def _differ(where: str, primals: Any, tangents: Any) -> Exception:
    return BindingError(
        f"jvp: tangents have the structure of primals, but {where} is {_shown(primals)} and its "
        f"tangent is {_shown(tangents)}; give one each, or None where nothing changes"
    )


def _shown(tree: Any) -> str:
    if isinstance(tree, (tuple, list)):
        return f"a {type(tree).__name__} of {len(tree)}"
    if isinstance(tree, dict):
        return f"a dict with keys {sorted(map(repr, tree))}"
    return f"a {type(tree).__name__}"


def _tensor(value: Any, where: str) -> _core.Tensor:
    """The tensor that a leaf is or views."""
    refuse_registered(value, where, "which can't be differentiated")
    if isinstance(value, _core.Tensor):
        return value
    return _core._view(value) if _is_array(value) else _number(value)


def _result(value: Any, where: str) -> _core.Tensor:
    refuse_registered(value, where, "which has no derivative")
    if isinstance(value, _core.Tensor):
        return value
    if not _is_array(value):
        raise BindingError(
            f"{where} is {value!r}, and no tensor; return tensors, and tuples, lists and dicts "
            "of them"
        )
    return _core._view(value)


def _unpacked(level: Any, tree: Any, where: str, tangents: list[Any]) -> Any:
    """Results without tangents; these are added to a list."""

    def unpack(leaf: Any) -> Any:
        value, tangent = level.unpack(_result(leaf, f"jvp: {where}"))
        tangents.append(tangent)
        return value

    return map_leaves(tree, unpack)


def _primal(level: Any, leaf: Any) -> Any:
    return level.unpack(leaf)[0] if isinstance(leaf, _core.Tensor) else leaf


def _library(sources: list[Any]) -> Any:
    """An array in whose library results go; None for keyfold's tensors, and for numbers alone."""
    if any(isinstance(source, _core.Tensor) for source in sources):
        return None
    return next(filter(_is_array, sources), None)


def _all_in_kind(tree: Any, like: Any) -> Any:
    def in_kind(leaf: Any) -> Any:
        if not isinstance(leaf, _core.Tensor) or "Vmap" in leaf.keys or "Autograd" in leaf.keys:
            return leaf
        return _core._in_kind(leaf, like)

    return tree if like is None else map_leaves(tree, in_kind)


def register_jvp(
    op: Any,
    jvp: Callable[..., Any] | None = None,
    /,
    *,
    override: str = "error",
    dispatcher: _core.Dispatcher | None = None,
) -> Any:
    """Register how tangents go forward through an operator.

    Operators that are expressions (`elementwise`), and those whose kernel calls other operators at
    a composite key, need none. Without a rule, `jvp` through an operator is an error.

    Args:
        op: the operator or its name.
        jvp: `jvp(inputs, tangents, output)` returns the tangent of the result: a tensor of its
            shape, or None for zero; a tuple of them for several results. `inputs` has the
            operator's arguments, `tangents` one for each: a tensor, None for zero and for what is
            no tensor, a list for a list of tensors. `output` is what the operator returned; None
            where it writes to an argument, whose new tangent is asked for before the write. Without
            `jvp`, this is a decorator.
        override: "error", "shadow" or "replace", as for `impl`.
        dispatcher: where; the process's own by default.

    Returns:
        A handle, whose `remove()` takes it back; the function, where this is a decorator.

    Raises:
        UnknownOperator: there is no such operator.
        RegistrationError: a rule was registered already.

    Example:
        >>> import keyfold as kf
        >>> handle = kf.define("jvp_doc::double(Tensor x) -> Tensor")
        >>> _ = kf.impl("jvp_doc::double", "CPU", lambda x: x + x)
        >>> _ = kf.register_jvp("jvp_doc::double", lambda inputs, tangents, output: 2 * tangents[0])
        >>> kf.jvp(kf.ops.jvp_doc.double, (kf.asarray([1.0, 2.0]),), (kf.asarray([1.0, 0.0]),))[1]
        Tensor([2., 0.])
    """
    target = _default if dispatcher is None else dispatcher

    def register(function: Callable[..., Any]) -> Any:
        return find(target, op, _core._register_jvp, target, op, function, override)

    if jvp is not None:
        return register(jvp)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        register(function)
        return function

    return decorate
