"""How the arrays of arguments and results are arranged: taken apart, put together, compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from keyfold._errors import TraceError

__all__ = ["Spec", "leaves", "match", "put_together", "take_apart"]

# A place in the arguments or in the result is described by a dict with one of these keys:
#   {"input": 0}                       an array: the input of that number
#   {"output": 0, "numpy": False}      a tensor: the output of that number
#   {"static": 3}                      anything else, as it was
#   {"tuple": [...], "class": cls}     each of its items; the class of a named tuple, or None
#   {"list": [...]}
#   {"dict": [[key, ...], ...]}
Spec = dict[str, Any]


def take_apart(
    tree: Any,
    place: str,
    leaves: list[tuple[str, Any]],
    is_leaf: Callable[[Any], bool],
    kind: str,
) -> Spec:
    """Describe a tree of arrays; the arrays go to `leaves` with their places."""
    if is_leaf(tree):
        leaves.append((place, tree))
        spec: Spec = {kind: len(leaves) - 1}
        if kind == "output":
            spec["numpy"] = isinstance(tree, np.ndarray)
        return spec
    if isinstance(tree, tuple):
        items = [
            take_apart(item, f"{place}[{i}]", leaves, is_leaf, kind) for i, item in enumerate(tree)
        ]
        return {"tuple": items, "class": type(tree) if hasattr(tree, "_fields") else None}
    if type(tree) is list:
        items = [
            take_apart(item, f"{place}[{i}]", leaves, is_leaf, kind) for i, item in enumerate(tree)
        ]
        return {"list": items}
    if type(tree) is dict:
        pairs = [
            [key, take_apart(item, f"{place}[{key!r}]", leaves, is_leaf, kind)]
            for key, item in tree.items()
        ]
        return {"dict": pairs}
    return {"static": tree}


def put_together(spec: Spec, kind: str, leaves: list[Any]) -> Any:
    """The tree that a spec stands for, with these arrays in their places."""
    if kind in spec:
        return leaves[spec[kind]]
    if "tuple" in spec:
        items = [put_together(item, kind, leaves) for item in spec["tuple"]]
        named = spec["class"]
        return tuple(items) if named is None else named(*items)
    if "list" in spec:
        return [put_together(item, kind, leaves) for item in spec["list"]]
    if "dict" in spec:
        return {key: put_together(item, kind, leaves) for key, item in spec["dict"]}
    return spec["static"]


def match(spec: Spec, given: Any, place: str) -> Iterator[Any]:
    """The arrays of an argument that is arranged as when the graph was recorded.

    Raises:
        TraceError: it is arranged otherwise.
    """
    if "input" in spec:
        if isinstance(given, (tuple, list, dict, str, type(None))):
            raise _misfit(place, "an array", given)
        yield given
    elif "tuple" in spec or "list" in spec:
        kind = tuple if "tuple" in spec else list
        items = spec["tuple" if "tuple" in spec else "list"]
        if not isinstance(given, kind) or len(given) != len(items):
            raise _misfit(place, f"a {kind.__name__} of {len(items)}", given)
        for i, (item, part) in enumerate(zip(items, given, strict=True)):
            yield from match(item, part, f"{place}[{i}]")
    elif "dict" in spec:
        keys = [key for key, _ in spec["dict"]]
        if not isinstance(given, dict) or set(given) != set(keys):
            raise _misfit(place, f"a dict with the keys {keys}", given)
        for key, item in spec["dict"]:
            yield from match(item, given[key], f"{place}[{key!r}]")
    elif not _same(spec["static"], given):
        raise TraceError(
            f"argument {place} was {spec['static']!r} when the graph was recorded, and is fixed in "
            f"it; it can't be {given!r} now. Trace the function again for it"
        )


def _misfit(place: str, wanted: str, given: Any) -> TraceError:
    if isinstance(given, dict):
        what = f"a dict with the keys {list(given)}"
    elif isinstance(given, (tuple, list)):
        what = f"a {type(given).__name__} of {len(given)}"
    else:
        what = f"{given!r}" if given is None else f"a {type(given).__name__}"
    return TraceError(f"argument {place} was {wanted} when the graph was recorded, not {what}")


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    try:
        return type(a) is type(b) and (bool(a == b) or (a != a and b != b))
    except Exception:
        # Objects that can't be compared aren't known to be the same.
        return False


def leaves(spec: Spec) -> Iterator[Spec]:
    """The places of arrays in a spec, in order."""
    if "input" in spec or "output" in spec:
        yield spec
    for item in spec.get("tuple") or spec.get("list") or ():
        yield from leaves(item)
    for _, item in spec.get("dict", ()):
        yield from leaves(item)
