"""What the operations of a graph have in common."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from keyfold import _core
from keyfold._errors import BindingError
from keyfold.cudnn._tensor import GraphTensor

__all__ = ["GraphBase", "Inputs", "integers", "number", "type_name"]

Inputs: TypeAlias = Mapping[str, "GraphTensor | Sequence[GraphTensor] | None"]

_EIGHT_BITS = ("float8_e4m3fn", "float8_e5m2")


def type_name(given: Any) -> str | None:
    """The name of a data type: keyfold's, NumPy's, torch's, or a name."""
    if given is None or isinstance(given, str):
        return given
    # 8-bit floats are no dtypes of keyfold's tensors.
    text = str(getattr(given, "name", given)).removeprefix("torch.")
    return text if text in _EIGHT_BITS else str(_core.DType(given))


def number(value: Any) -> Any:
    """A number as JSON has it: infinities and NaN are words."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def integers(given: int | Iterable[int], count: int, where: str) -> list[int]:
    """One integer for each dimension of space; one alone counts for all."""
    import operator

    try:
        if not isinstance(given, Iterable):
            return [operator.index(given)] * count
        return [operator.index(item) for item in given]
    except TypeError:
        raise BindingError(f"{where} takes an int or a list of ints, not {given!r}") from None


class GraphBase:
    """The part of a graph that operations need."""

    _native: _core._CudnnGraph
    _tensors: dict[int, GraphTensor]

    def _add(
        self,
        method: str,
        operation: str | dict[str, Any],
        inputs: Inputs,
        outputs: Sequence[str],
        *,
        compute_data_type: Any = None,
        name: str = "",
    ) -> tuple[GraphTensor, ...]:
        """Add an operation; returns the tensors at its outputs, in their order."""
        import json

        uids: list[tuple[str, int]] = []
        for port, given in inputs.items():
            listed = given if isinstance(given, list | tuple) else [given]
            uids += [
                (port, self._uid(item, f"{method}(): {port}"))
                for item in listed
                if item is not None
            ]
        step = (json.dumps(operation), uids, list(outputs), type_name(compute_data_type), name)
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
