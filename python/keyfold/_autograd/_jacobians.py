"""Jacobians: `jacfwd`, `jacrev`, `hessian`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from keyfold import _core
from keyfold._autograd._grad import _is_array, _name, _variables
from keyfold._autograd._jvp import _all_in_kind, _library, _pair, _result, _tensor, jvp
from keyfold._errors import BindingError, GradientError, InvalidValue
from keyfold._layers._tree import map_leaves
from keyfold._layers._vmap import vmap

__all__ = ["hessian", "jacfwd", "jacrev"]


def _leaves(tree: Any) -> list[Any]:
    found: list[Any] = []
    map_leaves(tree, found.append)
    return found


def _numbers(
    argnums: int | Sequence[int], args: tuple[Any, ...], f: Callable[..., Any]
) -> list[int]:
    """The numbers of the arguments to differentiate with respect to."""
    numbers = [argnums] if isinstance(argnums, int) else list(argnums)
    if len(set(numbers)) < len(numbers):
        raise InvalidValue(f"argnums={argnums} names an argument twice")
    for number in numbers:
        if not -len(args) <= number < len(args):
            raise BindingError(
                f"argnums={number}, but {_name(f)}() was called with {len(args)} positional "
                "arguments"
            )
    return [number % len(args) for number in numbers]


def _basis(x: _core.Tensor) -> _core.Tensor:
    """The directions along the elements of a tensor, one after the other along a new first axis."""
    from keyfold._ops._creation import arange

    numbers = arange(x.size, device=x.device)
    ones = numbers.reshape((x.size, 1)) == numbers
    return ones.to(x.dtype).reshape((x.size, *x.shape))


def _assembled(
    outputs: Any,
    columns: list[list[Any]],
    args: Any,
    argnums: int | Sequence[int],
    numbers: list[int],
) -> Any:
    """Derivatives in the structure of the outputs, each in that of the arguments."""
    place = iter(range(len(_leaves(outputs))))

    def of_output(_: Any) -> Any:
        at = next(place)
        found = iter([column[at] for column in columns])
        trees = [map_leaves(args[number], lambda _: next(found)) for number in numbers]
        return trees[0] if isinstance(argnums, int) else tuple(trees)

    return map_leaves(outputs, of_output)


def jacfwd(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False
) -> Callable[..., Any]:
    """Give the function that computes f's Jacobian by forward mode, all columns in one `vmap`.

    It is the better way where arguments have fewer elements than results. Random numbers that f
    draws are the same in all columns. Of complex arguments it is the derivative along the real
    axis, which is `f'(z)` where f has a complex derivative.

    Args:
        f: a function of tensors and arrays, and tuples, lists and dicts of them.
        argnums: the number of the argument to differentiate with respect to, or several.
        has_aux: f returns a pair, of which the second is passed through.

    Returns:
        A function that gives, in the structure of f's result, the derivatives of each part: of
        shape `result.shape + argument.shape`, in the structure of the argument, and in a tuple
        where argnums is several. With has_aux `(jacobian, aux)`.

    Raises:
        As `jvp` and `vmap`.

    Example:
        >>> import keyfold as kf
        >>> kf.jacfwd(lambda x: x * x)(kf.asarray([1.0, 2.0]))
        Tensor([[2., 0.],
                [0., 4.]])

    Source: the form is that of `torch.func.jacfwd` and of JAX's `jacfwd`.
    """

    @functools.wraps(f)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        numbers = _numbers(argnums, args, f)
        sources = [leaf for number in numbers for leaf in _leaves(args[number])]
        tensors = [_tensor(leaf, f"jacfwd: an argument of {_name(f)}()") for leaf in sources]
        # The last run's result: its structure, and the parts of aux that are no tensors.
        outputs: Any = None
        aux: Any = None
        columns: list[list[Any]] = []
        for place, tensor in enumerate(tensors):

            def along(direction: Any, place: int = place) -> Any:
                nonlocal outputs, aux

                def of_one(x: Any) -> Any:
                    rest = iter([*tensors[:place], x, *tensors[place + 1 :]])
                    given = list(args)
                    for number in numbers:
                        given[number] = map_leaves(args[number], lambda _: next(rest))
                    return f(*given, **kwargs)

                given = (of_one, (tensors[place],), (direction,))
                outputs, tangents, *more = jvp(*given, has_aux=has_aux)
                aux = more[0] if has_aux else None
                return _leaves(tangents), [leaf for leaf in _leaves(aux) if _is_array(leaf)]

            tangents, extra = vmap(along, randomness="same")(_basis(tensor))
            columns.append([_last(part, tensor.shape) for part in tangents])
        result = _assembled(outputs, columns, args, argnums, numbers)
        like = _library(sources)
        result = _all_in_kind(result, like)
        if not has_aux:
            return result
        rest = iter(extra)
        aux = map_leaves(aux, lambda leaf: next(rest)[0] if _is_array(leaf) else leaf)
        return result, _all_in_kind(aux, like)

    return jacobian


def _last(columns: Any, shape: tuple[int, ...]) -> Any:
    """Columns that lie along the first axis as the last axes, in the shape of an argument."""
    rank = columns.ndim
    moved = columns.permute((*range(1, rank), 0))
    return moved.reshape((*columns.shape[1:], *shape))


def jacrev(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False
) -> Callable[..., Any]:
    """Give the function that computes f's Jacobian by reverse mode, all rows in one `vmap`.

    It is the better way where results have fewer elements than arguments: f runs once.

    Args:
        f: a function of real tensors and arrays, and tuples, lists and dicts of them.
        argnums: as for `jacfwd`.
        has_aux: as for `jacfwd`.

    Returns:
        As `jacfwd`.

    Raises:
        GradientError: an operator without a derivative; complex arguments or results, as in
            `torch.func.jacrev`: `jacfwd` gives their derivative.

    Example:
        >>> import keyfold as kf
        >>> kf.jacrev(lambda x: kf.sum(x * x))(kf.asarray([1.0, 2.0]))
        Tensor([2., 4.])

    Source: the form is that of `torch.func.jacrev` and of JAX's `jacrev`.
    """

    @functools.wraps(f)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        with _core._enable_grad():
            return rows(args, kwargs)

    def rows(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        numbers = _numbers(argnums, args, f)
        given, variables, sources = list(args), [], []  # type: ignore[var-annotated]
        for number in numbers:
            where = f"argument {number} of {_name(f)}()"
            given[number] = _variables(args[number], where, variables, sources)
            _check_real(where, _leaves(given[number]))
        result = _core._call_recorded(f, tuple(given), kwargs)
        result, aux = _pair(result, f) if has_aux else (result, None)
        create = _core._is_differentiated() or any(
            isinstance(source, _core.Tensor) and source.requires_grad for source in sources
        )
        where = f"the result of {_name(f)}()"
        outputs = [_result(leaf, f"jacrev: {where}") for leaf in _leaves(result)]
        _check_real(where, outputs)
        create = create or any(_core._leads_outside(output, variables) for output in outputs)
        found = [_rows(output, variables, create) for output in outputs]
        columns = [list(column) for column in zip(*found, strict=True)] or [[] for _ in variables]
        jacobian = _assembled(result, columns, args, argnums, numbers)
        like = _library(sources)
        jacobian = _all_in_kind(jacobian, like)
        if not has_aux:
            return jacobian
        aux = map_leaves(aux, lambda x: _cut(x, create))
        return jacobian, _all_in_kind(aux, like)

    return jacobian


def _cut(leaf: Any, create: bool) -> Any:
    return _core._without_graph(leaf) if isinstance(leaf, _core.Tensor) and not create else leaf


def _check_real(where: str, tensors: Sequence[Any]) -> None:
    """Refuse complex tensors: their gradient isn't their derivative."""
    for tensor in tensors:
        if str(tensor.dtype).startswith("complex"):
            raise GradientError(
                f"jacrev: {where} is {tensor.dtype}: reverse mode gives the gradient of a real "
                "result, dL/dRe + 1j dL/dIm, which is no derivative; take kf.jacfwd (for a "
                "hessian twice), the derivative along the real axis, or a function of the real "
                "and imaginary parts"
            )


def _rows(output: _core.Tensor, variables: list[Any], create: bool) -> list[Any]:
    """The derivatives of one result with respect to each variable."""
    from keyfold._ops._creation import zeros
    from keyfold._ops._operators import stack

    def back(seed: Any) -> list[Any]:
        return _core._grad([output], variables, [seed], True, create, True)

    shapes = [(*output.shape, *variable.shape) for variable in variables]
    if not output.requires_grad:
        return [
            zeros(shape, dtype=x.dtype, device=x.device)
            for shape, x in zip(shapes, variables, strict=True)
        ]
    basis = _basis(output)
    if any("Vmap" in tensor.keys for tensor in (output, *variables)):
        # Each example has its own graph: rows one after the other.
        each = [back(basis[i]) for i in range(output.size)]
        found = [None if rows[0] is None else stack(list(rows)) for rows in zip(*each, strict=True)]
    else:
        found = vmap(back, randomness="same")(basis)
    return [
        zeros(shape, dtype=x.dtype, device=x.device) if rows is None else rows.reshape(shape)
        for rows, shape, x in zip(found, shapes, variables, strict=True)
    ]


def hessian(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """Give the function that computes f's second derivatives: `jacfwd(jacrev(f))`.

    Args:
        f: a function of real tensors and arrays, and tuples, lists and dicts of them.
        argnums: as for `jacfwd`.

    Returns:
        A function that gives derivatives of shape `result.shape + argument.shape +
        argument.shape`; of several arguments or of one with parts, the structure of the argument
        within itself.

    Raises:
        As `jacfwd` and `jacrev`, so of complex numbers; `jacfwd(jacfwd(f))` takes those.

    Example:
        >>> import keyfold as kf
        >>> kf.hessian(lambda x: kf.sum(x * x * x))(kf.asarray([1.0, 2.0]))
        Tensor([[ 6.,  0.],
                [ 0., 12.]])

    Source: the form is that of `torch.func.hessian` and of JAX's `hessian`.
    """
    return jacfwd(jacrev(f, argnums), argnums)
