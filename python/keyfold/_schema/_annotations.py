"""Annotations of Python functions, and the schema types that they stand for.

No array library is imported for it: a class says by its attributes or its name that it is an array,
and a string annotation may name what is imported for type checkers alone.
"""

from __future__ import annotations

import builtins
import collections.abc
import inspect
import numbers
import types
import typing
from typing import Any

import numpy as np

from keyfold import _core

__all__ = ["evaluate", "schema_type", "show"]

# Classes by what they are called: those that say nothing by their attributes, and those that a
# string annotation names where nothing of the name is imported.
_BY_NAME = dict.fromkeys(
    [
        *("Tensor", "keyfold.Tensor", "kf.Tensor", "torch.Tensor", "torch.nn.Parameter"),
        *("np.ndarray", "numpy.ndarray", "NDArray", "npt.NDArray", "numpy.typing.NDArray"),
        *("Array", "jax.Array", "jnp.ndarray", "jax.numpy.ndarray", "cupy.ndarray", "cp.ndarray"),
    ],
    "Tensor",
)
_BY_NAME |= dict.fromkeys(
    ["DType", "keyfold.DType", "kf.DType", "np.dtype", "numpy.dtype", "torch.dtype"], "ScalarType"
)
_BY_NAME |= dict.fromkeys(["Device", "keyfold.Device", "kf.Device", "torch.device"], "Device")
_BY_NAME |= dict.fromkeys(["Number", "numbers.Number", "torch.types.Number"], "Scalar")

_BY_CLASS: dict[Any, str] = {
    Any: "Any",
    int: "int",
    float: "float",
    builtins.bool: "bool",
    complex: "complex",
    str: "str",
    numbers.Number: "Scalar",
    _core.DType: "ScalarType",
    np.dtype: "ScalarType",
    _core.Device: "Device",
}

_SCALARS = frozenset(["int", "float", "bool", "complex", "Scalar"])
_LISTS = (list, collections.abc.Sequence)


class _Unimported:
    """A name in a string annotation that its module lacks."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Unimported(f"{self.name}.{name}")

    def __getitem__(self, parameters: Any) -> Any:
        return self

    def __call__(self) -> None:
        """Nothing: typing takes callables alone as types."""

    def __or__(self, other: Any) -> Any:
        return _either((self, other))

    def __ror__(self, other: Any) -> Any:
        return _either((other, self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Unimported) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"{self.name} (not imported)"


class _Scope(dict[str, Any]):
    """The names that a string annotation sees; one that is missing stands for its own name."""

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            return getattr(builtins, name)
        # Linters move imports of these to a block that only type checkers read.
        for module in (collections.abc, typing):
            if hasattr(module, name):
                return getattr(module, name)
        return _Unimported(name)


def _either(parts: tuple[Any, ...]) -> Any:
    # `|` is for types alone, which a name that isn't imported is not.
    return typing.Union[parts]  # noqa: UP007


def evaluate(annotation: Any, owner: Any) -> Any:
    """An annotation as an object.

    Args:
        annotation: an object, a text or a forward reference.
        owner: the function or module whose names a text uses.
    """
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if not isinstance(annotation, str):
        return _deeply(annotation, owner)
    scope = _Scope(getattr(owner, "__globals__", None) or getattr(owner, "__dict__", {}))
    code = getattr(owner, "__code__", None)
    for name, cell in zip(
        code.co_freevars if code else (), getattr(owner, "__closure__", None) or (), strict=True
    ):
        try:
            scope[name] = cell.cell_contents
        except ValueError:
            # A local that has no value yet.
            continue
    # The text is source code of the function itself, which ran when it was defined.
    return evaluate(eval(annotation, {}, scope), owner)


def _deeply(annotation: Any, owner: Any) -> Any:
    """The same with the texts inside it evaluated: `list["Tensor"]`, `Optional["Tensor"]`."""
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Literal, typing.Annotated) or not inside:
        return annotation
    found = tuple(
        evaluate(part, owner)
        if isinstance(part, (str, typing.ForwardRef))
        else _deeply(part, owner)
        for part in inside
    )
    if all(new is old for new, old in zip(found, inside, strict=True)):
        return annotation
    if origin in (typing.Union, types.UnionType):
        return _either(found)
    return types.GenericAlias(origin, found)


def schema_type(annotation: Any) -> str | None:
    """The schema type that an annotation stands for; None where there is none."""
    annotation = _plain(annotation)
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _union(inside)
    if origin is typing.Literal:
        return _union(tuple(type(value) for value in inside))
    if isinstance(annotation, _Unimported):
        return _BY_NAME.get(annotation.name)
    if origin in _LISTS and len(inside) == 1:
        return _list(inside[0], "")
    if origin is tuple and inside:
        if len(inside) == 2 and inside[1] is Ellipsis:
            return _list(inside[0], "")
        same = {schema_type(item) for item in inside}
        return _list(inside[0], str(len(inside))) if len(same) == 1 else None
    return _class(annotation if origin is None else origin)


def _plain(annotation: Any) -> Any:
    """Strip aliases, new types, metadata and type variables off an annotation."""
    while True:
        if typing.get_origin(annotation) is typing.Annotated:
            annotation = annotation.__origin__
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        elif type(typing.get_origin(annotation)).__name__ == "TypeAliasType":
            # A generic alias with its parameters, as numpy.typing.NDArray[...] is since NumPy 2.5.
            annotation = typing.get_origin(annotation).__value__[typing.get_args(annotation)]
        elif isinstance(annotation, typing.TypeVar):
            choices = annotation.__constraints__ or (annotation.__bound__,)
            annotation = _either(choices) if choices != (None,) else object
        else:
            return annotation


def _union(parts: tuple[Any, ...]) -> str | None:
    kinds = {schema_type(part) for part in parts if part not in (None, types.NoneType)}
    optional = any(part in (None, types.NoneType) for part in parts)
    if None in kinds or not kinds:
        return None
    found = {kind.removesuffix("?") for kind in kinds if kind is not None}
    optional = optional or any(kind is not None and kind.endswith("?") for kind in kinds)
    if len(found) > 1 and found <= _SCALARS:
        found = {"Scalar"}
    if len(found) > 1:
        return None
    return found.pop() + ("?" if optional else "")


def _list(item: Any, size: str) -> str | None:
    kind = schema_type(item)
    # A schema has lists of optional tensors, and no lists of lists.
    if kind is None or kind.endswith(("]", "]?")) or (kind.endswith("?") and kind != "Tensor?"):
        return None
    return f"{kind}[{size}]"


def _class(kind: Any) -> str | None:
    known = _BY_CLASS.get(kind) if isinstance(kind, collections.abc.Hashable) else None
    if known is not None or not inspect.isclass(kind):
        return known
    # Where a library's class is defined, and what it calls it; the module may be a private one.
    name = kind.__qualname__.rpartition(".")[2]
    known = _BY_NAME.get(f"{kind.__module__.partition('.')[0]}.{name}")
    if known is not None:
        return known
    protocol = name == "Array" and getattr(kind, "_is_protocol", False)
    return "Tensor" if protocol or hasattr(kind, "__dlpack__") else None


def show(annotation: Any) -> str:
    """An annotation as a person writes it."""
    if isinstance(annotation, str):
        return repr(annotation)
    if inspect.isclass(annotation) and typing.get_origin(annotation) is None:
        module = annotation.__module__
        return (
            annotation.__qualname__
            if module == "builtins"
            else f"{module}.{annotation.__qualname__}"
        )
    return repr(annotation)
