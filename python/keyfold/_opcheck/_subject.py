"""The operator that `opcheck` checks, with its example arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keyfold import _core
from keyfold._errors import BindingError
from keyfold._opcheck._arrays import (
    arrays,
    copy_of,
    detached,
    difference,
    map_arrays,
)

__all__ = ["FLOATS", "Failed", "Skip", "Subject", "results_of", "why"]

FLOATS = ("float16", "bfloat16", "float32", "float64")


class Skip(Exception):  # noqa: N818 - no error
    """A test has nothing to check here."""


class Failed(Exception):  # noqa: N818 - what a test found
    """A test found something."""


def why(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _check_kind(operator: _core.Operator, value: Any) -> None:
    """Refuse arrays that the tests here can't copy, compare and shake."""
    if isinstance(value, (list, tuple)):
        for item in value:
            _check_kind(operator, item)
    elif hasattr(value, "__dlpack__") and not isinstance(value, (_core.Tensor, np.ndarray)):
        kind = type(value)
        raise BindingError(
            f"opcheck({operator.name}) takes NumPy arrays and keyfold tensors as examples, not a "
            f"{kind.__module__}.{kind.__qualname__}; give it keyfold.asarray(x) or np.asarray(x)"
        )


class Subject:
    """The operator with its example arguments, in declaration order."""

    def __init__(
        self,
        operator: _core.Operator,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        rtol: float,
        atol: float,
        random_state: tuple[int, int],
    ) -> None:
        for value in (*args, *kwargs.values()):
            _check_kind(operator, value)
        self.operator = operator
        self.rtol, self.atol = rtol, atol
        self.random_state = random_state
        self.arguments, self.returns = operator.schema.arguments, operator.schema.returns
        names = [argument.name for argument in self.arguments]
        self.positional = len(args)
        self.names = [*names[: len(args)], *kwargs]
        self.values = [detached(value) for value in (*args, *kwargs.values())]

    def alias_of(self, name: str) -> tuple[frozenset[str], bool]:
        """The alias sets of an argument, and whether it is written to."""
        found = next(argument for argument in self.arguments if argument.name == name)
        # An argument may join a set while the operator runs: `(a -> *)`.
        return found.alias_sets | found.alias_sets_after, found.writes

    @property
    def writes(self) -> bool:
        return any(argument.writes for argument in self.arguments)

    def call(self, values: Sequence[Any]) -> Any:
        """Call the operator with the same random numbers each time."""
        _core.set_rng_state(self.random_state)
        return self.call_as_it_is(values)

    def call_as_it_is(self, values: Sequence[Any]) -> Any:
        names = self.names[self.positional :]
        named = dict(zip(names, values[self.positional :], strict=True))
        return self.operator(*values[: self.positional], **named)

    def example(self) -> tuple[list[Any], Any]:
        """Copies of the arguments, and what the operator makes of them."""
        values = map_arrays(self.values, copy_of)
        try:
            return values, self.call(values)
        except Exception as error:
            raise Failed(f"the call raised {why(error)}") from error

    def tensors(self, values: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        """The arrays among the arguments, with the names of their arguments."""
        for name, value in zip(self.names, values, strict=True):
            for item in arrays(value):
                yield name, item

    def needs_tensors(self) -> None:
        if not any(True for _ in self.tensors(self.values)):
            raise Skip("it has no tensor arguments")

    def compare(self, found: Any, wanted: Any, what: str) -> None:
        """Fail unless two results are the same, as closely as numbers can be."""
        problem = difference(found, wanted, self.rtol, self.atol)
        if problem:
            raise Failed(f"{what}: {problem}")


def results_of(subject: Subject, result: Any) -> list[Any]:
    """One per return of the schema."""
    if not subject.returns:
        return []
    return [result] if len(subject.returns) == 1 else list(result)
