"""What the operations of a graph have in common."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Rational
from typing import Any, NamedTuple, TypeAlias, TypeVar

from keyfold import _core
from keyfold._errors import BindingError, DTypeError, InvalidValue, UnknownTensor
from keyfold.cudnn._names import data_type, name_of
from keyfold.cudnn._tensor import GraphTensor

__all__ = [
    "GraphBase",
    "Inputs",
    "Options",
    "Scalar",
    "found",
    "fractions",
    "integer",
    "integers",
    "label",
    "matching",
    "mentions_narrow",
    "number",
    "scalar",
    "sizes",
    "type_name",
    "whole",
    "word",
]

Inputs: TypeAlias = Mapping[str, "GraphTensor | Scalar | Sequence[GraphTensor] | None"]

# The two arguments of every operation: the data type that it computes in, and its name.
Options: TypeAlias = tuple[Any, str]

_Read = TypeVar("_Read")

_EIGHT_BITS = ("float8_e4m3fn", "float8_e5m2")


def type_name(given: Any) -> str | None:
    """The name of a data type: keyfold's, NumPy's, ml_dtypes', torch's, NVIDIA's, or a name.

    Raises:
        DTypeError: graphs have no such data type.
    """
    if given is None or isinstance(given, str):
        return given
    name = name_of(given)
    if name is not given:
        names: dict[str, str | None] = {n: t for n, t in vars(data_type).items() if n[0] != "_"}
        if name not in names:
            raise DTypeError(f"graphs have no data type {name}; they have {', '.join(names)}")
        return names[name]
    # 8-bit floats are no dtypes of keyfold's tensors.
    text = getattr(given, "name", None) or getattr(given, "__name__", None) or str(given)
    text = text.removeprefix("torch.")
    return text if text in _EIGHT_BITS else str(_core.DType(given))


def mentions_narrow(text: str) -> bool:
    """Whether a text has a name, long or short, of a data type that NumPy has no dtype for."""
    return any(name in text for name in ("bfloat16", "bf16", "e4m3", "e5m2"))


def number(value: Any) -> Any:
    """A number as JSON has it: infinities and NaN are words."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def integer(given: Any, where: str) -> int:
    """An integer of 64 bits, which isn't a float that is cut off.

    Raises:
        BindingError: it isn't an integer.
        InvalidValue: it doesn't fit 64 bits.
    """
    try:
        value = operator.index(given)
    except TypeError:
        raise BindingError(f"{where} takes an int, not {given!r}") from None
    if not -(2**63) <= value < 2**63:
        raise InvalidValue(f"{where} is {value}, which doesn't fit 64 bits with a sign")
    return value


def sizes(given: Iterable[Any], where: str) -> list[int]:
    """A list of integers of 64 bits.

    Raises:
        BindingError: it isn't a list of integers.
        InvalidValue: one of them doesn't fit 64 bits.
    """
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise BindingError(f"{where} takes a list of ints, not {given!r}")
    return [integer(item, where) for item in given]


def integers(given: int | Iterable[int], count: int, where: str) -> list[int]:
    """One integer for each dimension of space; one alone counts for all."""
    return _listed(
        given, count, lambda item: integer(item, where), where, "an int or a list of ints"
    )


def fractions(
    given: int | Rational | Iterable[int | Rational], count: int, where: str
) -> list[list[int]]:
    """One fraction for each dimension of space, as JSON has it; one alone counts for all."""

    def parts(item: int | Rational) -> list[int]:
        if isinstance(item, Rational):
            return [integer(item.numerator, where), integer(item.denominator, where)]
        return [integer(item, where), 1]

    return _listed(given, count, parts, where, "an int, a fractions.Fraction, or a list of them")


def _listed(
    given: Any, count: int, read: Callable[[Any], _Read], where: str, what: str
) -> list[_Read]:
    try:
        if isinstance(given, Iterable) and not isinstance(given, str | bytes):
            return [read(item) for item in given]
        return [read(given)] * count
    except BindingError:
        raise BindingError(f"{where} takes {what}, not {given!r}") from None


def word(given: Any, where: str) -> str:
    """A name of a mode, in lower case.

    Raises:
        BindingError: it isn't a string.
    """
    name = given if isinstance(given, str) else name_of(given)
    if not isinstance(name, str):
        raise BindingError(f"{where} takes a string, not {given!r}")
    return name.lower()


class Scalar(NamedTuple):
    """A number that an operation reads, which becomes a tensor of the graph with the operation."""

    value: float
    data_type: str | None


def scalar(given: Any, where: str) -> GraphTensor | Scalar | None:
    """A tensor as it is, and a number as a float of the graph's compute data type.

    Raises:
        BindingError: it is neither a tensor nor a number.
    """
    if given is None or isinstance(given, GraphTensor):
        return given
    value = given.item() if hasattr(given, "item") else given
    if not isinstance(value, int | float):
        raise BindingError(f"{where} takes a number or a tensor of the graph, not {given!r}")
    return Scalar(float(value), None)


def whole(given: Any, where: str) -> GraphTensor | Scalar:
    """A tensor as it is, and an integer as one of int64.

    Raises:
        BindingError: it is neither a tensor nor an integer.
        InvalidValue: it doesn't fit 64 bits.
    """
    return given if isinstance(given, GraphTensor) else Scalar(integer(given, where), "int64")


def label(tensor: GraphTensor) -> str:
    """A tensor's name, or its number where it has none, for errors."""
    return f'"{tensor.name}"' if tensor.name else f"#{tensor.uid}"


def matching(key: Any, tensors: Iterable[GraphTensor]) -> list[GraphTensor]:
    """The tensors that a key means: itself, or those of its number or name, which isn't empty."""
    return [one for one in tensors if key in (one, one.uid, one.name or one)]


def found(key: Any, tensors: Iterable[GraphTensor], there: str) -> GraphTensor:
    """The one tensor that a key means; `there` begins the error, "the graph has".

    Raises:
        UnknownTensor: it means none of the tensors, or several.
    """
    tensors = list(tensors)
    meant = matching(key, tensors)
    if len(meant) == 1:
        return meant[0]
    if meant:
        numbers = ", ".join(f"#{one.uid}" for one in meant)
        raise UnknownTensor(
            f"{there} {len(meant)} tensors {key!r}, {numbers}: name one by its uid, or by itself"
        )
    listed = ", ".join(map(label, tensors)) or "none"
    raise UnknownTensor(f"{there} no tensor {key!r}; there are: {listed}")


class GraphBase:
    """The part of a graph that operations need."""

    _native: _core._CudnnGraph
    _tensors: dict[int, GraphTensor]
    # Whether a data type was ever given that NumPy has no dtype for: plans of others needn't look.
    _may_be_narrow = False

    def _type(self, given: Any) -> str | None:
        """The name of a data type that something in the graph gets."""
        name = type_name(given)
        self._may_be_narrow |= mentions_narrow(name or "")
        return name

    def _add(
        self,
        method: str,
        operation: str | dict[str, Any],
        inputs: Inputs,
        outputs: Sequence[str],
        options: Options,
        *,
        dims: Sequence[int] | None = None,
    ) -> tuple[GraphTensor, ...]:
        """Add an operation, or nothing; returns the tensors at its outputs, in their order.

        `dims` are the sizes of the first output, where the inputs leave them free.
        """
        compute, name = options
        ports: list[tuple[str, int | Scalar]] = []
        for port, given in inputs.items():
            where = f"{method}(): {port}"
            if isinstance(given, Scalar):
                ports.append((port, given))
            elif isinstance(given, list | tuple):
                ports += [(port, self._uid(item, where)) for item in given]
            elif given is not None:
                ports.append((port, self._uid(given, where)))
        if dims is not None:
            dims = sizes(dims, f"{method}(): dim")
        step = (json.dumps(operation), ports, list(outputs), type_name(compute), name, dims)
        made = self._native.add(method, *step)
        return tuple(self._own(uid) for uid in made)

    def _own(self, uid: int) -> GraphTensor:
        """The one object of a tensor."""
        if uid not in self._tensors:
            self._tensors[uid] = GraphTensor(self, uid)
        return self._tensors[uid]

    def _uid(self, given: Any, where: str) -> int:
        """The number of a tensor of this graph."""
        if not isinstance(given, GraphTensor):
            raise BindingError(
                f"{where} is a tensor of the graph (g.tensor, g.scalar, an operation's result), "
                f"not {type(given).__name__}"
            )
        if given._graph is not self:
            raise BindingError(f"{where} is {given!r} of another graph")
        return given.uid
