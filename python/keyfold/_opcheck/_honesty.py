"""Whether an operator does what its schema says: the tests `schema`, `layouts` and `meta`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keyfold import _core
from keyfold._errors import Error, KernelPanic, KernelReturnError, MissingKernel, NotSupported
from keyfold._opcheck._arrays import (
    arrays,
    contiguous,
    copy_of,
    difference,
    element_strides,
    first_address,
    has_data,
    map_arrays,
    memory_bounds,
    share_memory,
    with_strides,
)
from keyfold._opcheck._subject import Failed, Skip, Subject, results_of, why
from keyfold._schema import SchemaReturn

__all__ = ["layouts", "meta", "schema"]


def schema(subject: Subject) -> None:
    values, result = subject.example()
    before = map_arrays(subject.values, copy_of)
    for (name, now), (_, then) in zip(
        subject.tensors(values), subject.tensors(before), strict=True
    ):
        if subject.alias_of(name)[1] or not has_data(now):
            continue
        problem = difference(now, then, 0.0, 0.0)
        if problem:
            raise Failed(
                f"argument '{name}' was changed, and the schema doesn't say so: mark it "
                f"Tensor(a!), or write to a copy ({problem})"
            )
    _aliases(subject, values, result)
    again_values, again = subject.example()
    problem = difference(again, result, 0.0, 0.0) or difference(again_values, values, 0.0, 0.0)
    if problem:
        raise Failed(
            "two calls with the same arguments and the same random numbers gave different "
            f"results: {problem}; draw random numbers with keyfold's generator, and keep no state"
        )


def _aliases(subject: Subject, values: Sequence[Any], result: Any) -> None:
    results = results_of(subject, result)
    for place, (item, declared) in enumerate(zip(results, subject.returns, strict=True)):
        for array in arrays(item):
            _alias_of_arguments(subject, values, array, place, declared)
    for (i, a), (j, b) in itertools.combinations(enumerate(results), 2):
        together = _meet(subject.returns[i].alias_sets, subject.returns[j].alias_sets)
        if together or not any(share_memory(x, y) for x in arrays(a) for y in arrays(b)):
            continue
        raise Failed(
            f"results {i} and {j} share memory, and the schema doesn't say so: give both the same "
            "alias annotation, or return a copy"
        )


def _meet(a: frozenset[str], b: frozenset[str]) -> bool:
    """Whether two alias annotations have a set in common; `*` is any set."""
    return bool(a & b) or bool(a and b and ("*" in a or "*" in b))


def _alias_of_arguments(
    subject: Subject, values: Sequence[Any], array: Any, place: int, declared: SchemaReturn
) -> None:
    sets, write = declared.alias_sets, declared.writes
    candidates = []
    for name, argument in subject.tensors(values):
        allowed = _meet(sets, subject.alias_of(name)[0])
        if allowed:
            candidates.append((name, argument))
        elif share_memory(array, argument):
            raise Failed(
                f"result {place} shares memory with argument '{name}', and the schema doesn't say "
                f"so: annotate both as Tensor(a), or return a copy"
            )
    named = [(name, argument) for name, argument in candidates if memory_bounds(argument)]
    if "*" in sets or not named or memory_bounds(array) is None:
        return
    if any(share_memory(array, argument) for _, argument in named):
        return
    # An operator such as reshape gives a view where the strides allow it, and a copy elsewhere.
    if not write and _is_view_of_contiguous(subject, place, [name for name, _ in named]):
        return
    mark = f"({'|'.join(sorted(sets))}{'!' if write else ''})"
    whose = " or ".join(f"'{name}'" for name, _ in named)
    raise Failed(
        f"result {place} is annotated {mark}, as memory of argument {whose}, but has memory of its "
        "own: return the argument or a view of it, or take the annotation away"
    )


def _is_view_of_contiguous(subject: Subject, place: int, names: list[str]) -> bool:
    values = map_arrays(subject.values, contiguous)
    result = results_of(subject, subject.call(values))[place]
    arguments = [x for name, x in subject.tensors(values) if name in names]
    return any(share_memory(r, x) for r in arrays(result) for x in arguments)


_LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "arguments with gaps between elements": lambda x: with_strides(x, range(x.ndim), 2),
    "arguments in column-major order": lambda x: with_strides(x, range(x.ndim)[::-1], 1),
    "arguments with negative strides": lambda x: _reversed(x),
}
_SHAPES: dict[str, Callable[[Any], Any]] = {
    "arguments without elements": lambda x: copy_of(x[:0] if x.ndim else x),
    "arguments without dimensions": lambda x: copy_of(x.reshape(-1)[:1].reshape(())),
}


def layouts(subject: Subject) -> None:
    subject.needs_tensors()
    wanted_values = map_arrays(subject.values, contiguous)
    wanted = _attempt(subject, wanted_values, "contiguous arguments")
    for what, change in _LAYOUTS.items():
        values = _changed(subject.values, change)
        found = _attempt(subject, values, what)
        subject.compare(found, wanted, f"with {what}")
        subject.compare(values, wanted_values, f"with {what}, what was written")
    for what, change in _SHAPES.items():
        try:
            _attempt(subject, _changed(subject.values, change), what)
        except Refused:
            continue


def _changed(values: Any, change: Callable[[Any], Any]) -> Any:
    return map_arrays(values, lambda x: change(x) if has_data(x) and x.size else x)


class Refused(Failed):
    """The operator said that it doesn't take such arguments."""


def _reversed(x: Any) -> Any:
    if x.ndim == 0:
        return copy_of(x)
    order = range(x.ndim)
    if isinstance(x, np.ndarray):
        return with_strides(np.flip(x), order, 1)[(slice(None, None, -1),) * x.ndim]
    return with_strides(x.flip(), order, 1).flip()


def _attempt(subject: Subject, values: Sequence[Any], what: str) -> Any:
    try:
        return subject.call(values)
    except Exception as error:
        text = f"with {what} the call raised {why(error)}"
        # An error that says what is wrong with the arguments is an answer.
        typed = isinstance(error, (Error, ValueError, TypeError, IndexError, NotImplementedError))
        broken = isinstance(error, (KernelPanic, KernelReturnError))
        if typed and not broken:
            raise Refused(text) from error
        raise Failed(text) from error


def meta(subject: Subject) -> None:
    values, result = subject.example()
    names = subject.names[subject.positional :]
    try:
        inferred, aliases = _core._infer_meta_aliases(
            subject.operator,
            tuple(values[: subject.positional]),
            dict(zip(names, values[subject.positional :], strict=True)),
        )
    except MissingKernel as error:
        if subject.operator.has_kernel("Meta"):
            raise Failed(f"the Meta kernel raised {why(error)}") from error
        raise Skip(
            f'no Meta kernel; add one with @keyfold.register_fake("{subject.operator.name}")'
        ) from None
    except NotSupported as error:
        raise Skip(f"the Meta kernel doesn't know: {error}") from None
    except Exception as error:
        raise Failed(f"the Meta kernel raised {why(error)}") from error
    real, meta = results_of(subject, result), results_of(subject, inferred)
    given = [x for _, x in subject.tensors(values)]
    devices = {x.device.type for x in given if isinstance(x, _core.Tensor)}
    alias = iter(aliases)
    for place, (a, b) in enumerate(zip(real, meta, strict=True)):
        items, inferred_items = list(arrays(a)), list(arrays(b))
        if len(items) != len(inferred_items):
            raise Failed(
                f"result {place} has {len(items)} tensors, the Meta kernel says "
                f"{len(inferred_items)}"
            )
        for x, y in zip(items, inferred_items, strict=True):
            _same_form(place, x, y)
            _same_memory(place, x, given, next(alias))
            device = x.device.type if isinstance(x, _core.Tensor) else "cpu"
            if len(devices) == 1 and device not in devices:
                raise Failed(
                    f"result {place} is on {device}, the arguments are on {devices.pop()}: a Meta "
                    "kernel can't tell that"
                )


def _same_form(place: int, real: Any, meta: Any) -> None:
    for what in ("shape", "dtype"):
        a, b = getattr(real, what), getattr(meta, what)
        a, b = (list(a), list(b)) if what == "shape" else (str(a), str(b))
        if a != b:
            raise Failed(f"result {place} has {what} {a}, the Meta kernel says {b}")
    a, b = element_strides(real), element_strides(meta)
    # The step along a dimension of one element is never taken.
    if real.size and any(n > 1 and s != t for n, s, t in zip(real.shape, a, b, strict=True)):
        raise Failed(f"result {place} has strides {a}, the Meta kernel says {b}")


def _same_memory(
    place: int, real: Any, given: Sequence[Any], alias: tuple[int, int] | None
) -> None:
    """Fail unless a result has the memory that the Meta kernel says."""
    start = first_address(real)
    if start is None:
        return
    of = next((i for i, x in enumerate(given) if share_memory(real, x)), None)
    if (of is None) != (alias is None):
        a, b = ("its own", "an argument's") if of is None else ("an argument's", "its own")
        raise Failed(f"result {place} has {a} memory, the Meta kernel says {b}")
    if alias is None:
        return
    begin = first_address(given[alias[0]])
    found = None if begin is None else (start - begin) // real.itemsize
    if found != alias[1]:
        raise Failed(
            f"result {place} begins at element {found} of an argument's memory, the Meta kernel "
            f"says at element {alias[1]}"
        )
