"""How arguments and results are arranged, as JSON and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keyfold import _core
from keyfold._errors import TraceError
from keyfold._trace._structure import Spec

__all__ = ["damaged", "full", "plain"]

# Classes that JSON has; a value of another class is an object with one key.
_JSON = (type(None), bool, int, str)


def plain(spec: Spec, place: str) -> Spec:
    """A spec as JSON."""
    if "tuple" in spec:
        return {"tuple": [plain(item, f"{place}[{i}]") for i, item in enumerate(spec["tuple"])]}
    if "list" in spec:
        return {"list": [plain(item, f"{place}[{i}]") for i, item in enumerate(spec["list"])]}
    if "dict" in spec:
        pairs = [
            [_value(key, f"a key of {place}"), plain(item, f"{place}[{key!r}]")]
            for key, item in spec["dict"]
        ]
        return {"dict": pairs}
    if "static" in spec:
        return {"static": _value(spec["static"], place)}
    return spec


def _value(value: Any, place: str) -> Any:
    """A fixed value as JSON."""
    kind = type(value)
    if kind is int and not -(2**63) <= value < 2**63:
        return {"int": str(value)}
    if kind in _JSON:
        return value
    if kind is float:
        return {"float": repr(value)}
    if kind is complex:
        return {"complex": [repr(value.real), repr(value.imag)]}
    if kind is _core.DType:
        return {"dtype": value.name}
    if kind is _core.Device:
        return {"device": str(value)}
    raise TraceError(
        f"to_json(): {place} is fixed in the graph and is a {kind.__name__}, which has no JSON; "
        "give the function numbers and text, or hold the object outside of its arguments"
    )


def full(plain: Any, place: str, kind: str) -> Spec:
    """A spec out of JSON."""
    if not isinstance(plain, dict):
        raise damaged(place, "is no object")
    fields = set(plain)
    if fields == ({"input"} if kind == "input" else {"output", "numpy"}):
        number, numpy = plain[kind], plain.get("numpy", False)
        if type(number) is not int or type(numpy) is not bool:
            raise damaged(place, f"has no number of an {kind}")
        return plain
    if fields == {"static"}:
        return {"static": _read(plain["static"], f"{place}.static")}
    if len(fields) == 1 and fields <= {"tuple", "list", "dict"}:
        (form,) = fields
        items = plain[form]
        if not isinstance(items, list):
            raise damaged(f"{place}.{form}", "is no list")
        if form != "dict":
            parts = [full(item, f"{place}.{form}[{i}]", kind) for i, item in enumerate(items)]
            return {form: parts, "class": None} if form == "tuple" else {form: parts}
        pairs = []
        for i, pair in enumerate(items):
            if not isinstance(pair, list) or len(pair) != 2:
                raise damaged(f"{place}.dict[{i}]", "is no pair of a key and what it holds")
            key = _read(pair[0], f"{place}.dict[{i}][0]")
            pairs.append([key, full(pair[1], f"{place}.dict[{i}][1]", kind)])
        return {"dict": pairs}
    raise damaged(place, f"has the unknown keys {sorted(fields)}")


_READ: dict[str, Callable[[Any], Any]] = {
    "int": int,
    "float": float,
    "complex": lambda pair: complex(float(pair[0]), float(pair[1])),
    "dtype": _core.DType,
    "device": _core.Device,
}


def _read(value: Any, place: str) -> Any:
    """A fixed value out of JSON."""
    if isinstance(value, _JSON):
        return value
    if isinstance(value, dict) and len(value) == 1:
        ((kind, text),) = value.items()
        if kind in _READ:
            try:
                return _READ[kind](text)
            except (TypeError, ValueError, IndexError, KeyError) as error:
                raise damaged(place, f"is no {kind}: {error}") from error
    raise damaged(place, "is no value that a graph fixes")


def damaged(place: str, problem: str) -> TraceError:
    return TraceError(f"no keyfold graph: {place} {problem}")
