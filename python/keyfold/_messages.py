"""An operator's error in the words of the function that a user called.

`keyfold.sum` has an argument `axis` where `aten::sum` has `dim`. The engine asks here, once, when
an error about an argument is about to be raised; calls that go well never come by.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from keyfold._errors import BindingError

__all__ = ["for_caller", "unexpected"]

# What other libraries call the keywords of the array API.
_FOREIGN_KEYWORDS = {
    "dim": ("axis", "axes"),
    "dims": ("axes", "axis"),
    "axes": ("axis",),
    "axis": ("axes",),
    "keepdim": ("keepdims",),
}

# The modules whose public functions call operators for a user.
_MODULES = frozenset(
    f"keyfold._ops.{name}"
    for name in ("_creation", "_functions", "_pointwise", "_pointwise_pairs", "_reductions")
)

# An operator's argument, and what functions of the array API call it.
_NAMES = {
    "self": ("x", "x1", "arrays"),
    "other": ("x2",),
    "size": ("shape",),
    "dim": ("axis",),
    "dims": ("axes", "axis"),
    "dim0": ("axis",),
    "keepdim": ("keepdims",),
    "tensors": ("arrays",),
    "index": ("indices",),
    "end": ("stop",),
}

# The schema's types in words.
_TYPES = {
    "Device": 'a device, such as "cpu"',
    "ScalarType": 'a dtype, such as "float32"',
    "Scalar": "a number",
    "bool": "True or False",
    "int": "a whole number",
    "int[]": "whole numbers in a tuple or list",
    "int[1]": "a whole number, or several in a tuple or list",
    "Tensor": "an array",
    "Tensor[]": "a list of arrays",
}

_TYPE = re.compile(r"(?<= must be )([A-Za-z]+(?:\[1?\])?)(\??)(?=, not )")
_SEVERAL = " has no overload for these arguments:"
_MUST_BE = re.compile(r"argument '(\w+)' must be (.+?), not (.+?)(?: \(tensors are .*\))?$", re.M)
# What a user would have to make an array of first.
_PLAIN = re.compile(r"(not (?:list|tuple|int|float|complex|bool) .*) \(tensors are .*\)$")

_ARGUMENT = re.compile(r"argument '(\w+)((?:\[\d+\])?)'")
_FUNCTION = re.compile(r"^\w+::[\w.]+\(\) ")


def for_caller(text: str) -> str:
    """Return an error's text with the names of the keyfold function that was called.

    Args:
        text: the operator's own message.

    Returns:
        The message as it was where a user called the operator itself.
    """
    # The frame below this one called the operator.
    frame = _function_of(sys._getframe(1))
    if frame is None:
        return text
    code = frame.f_code
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    def renamed(match: re.Match[str]) -> str:
        known = (name for name in _NAMES.get(match[1], ()) if name in parameters)
        return f"argument '{next(known, match[1])}{match[2]}'"

    text = _FUNCTION.sub(f"keyfold.{code.co_name}() ", text)
    text = _ARGUMENT.sub(renamed, _TYPE.sub(_in_words, text))
    text = _PLAIN.sub(r"\1; keyfold.asarray makes one of lists and numbers", text)
    if _SEVERAL in text:
        # One sentence does, where all overloads want something else of the same argument.
        wanted = _MUST_BE.findall(text)
        if len({(name, given) for name, _, given in wanted}) == 1:
            name, _, given = wanted[0]
            if name not in parameters:
                # An operand of an operator that the function is made of: known by what it is.
                values = ((key, frame.f_locals.get(key)) for key in parameters)
                same = (
                    key for key, value in values if f"{type(value).__name__} {value!r}" == given
                )
                name = next(same, name)
            each = (one for _, kind, _ in wanted for one in kind.split(" or "))
            kinds = " or ".join(dict.fromkeys(each))
            return f"keyfold.{code.co_name}() argument '{name}' must be {kinds}, not {given}"
    return text


def _in_words(match: re.Match[str]) -> str:
    """A schema's type as people say it: `a number or None` for `Scalar?`."""
    words = _TYPES.get(match[1], match[1])
    return f"{words} or None" if match[2] else words


def _function_of(frame: FrameType | None) -> FrameType | None:
    """The outermost of the frames that keyfold's own functions have here."""
    found = None
    while frame is not None and frame.f_globals.get("__name__") in _MODULES:
        if not frame.f_code.co_name.startswith(("_", "<")):
            found = frame
        frame = frame.f_back
    return found


def unexpected(function: Callable[..., Any], foreign: Iterable[str]) -> BindingError:
    """Return the error for keywords that a function doesn't take, with the one that was meant.

    Functions collect them as `**foreign: Never`, which no type checker lets anything into.

    Args:
        function: the function.
        foreign: the keywords.
    """
    import difflib

    keyword = next(iter(foreign))
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    same = [name for name in _FOREIGN_KEYWORDS.get(keyword, ()) if name in known]
    near = same or difflib.get_close_matches(keyword, known, n=1)
    hint = f". Did you mean {near[0]!r}?" if near else ""
    name = function.__name__
    return BindingError(f"keyfold.{name}() got an unexpected keyword argument {keyword!r}{hint}")
