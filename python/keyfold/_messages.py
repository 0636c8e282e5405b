"""An operator's error in the words of the function that a user called.

`keyfold.sum` has an argument `axis` where `aten::sum` has `dim`. The engine asks here, once, when
an error about an argument is about to be raised; calls that go well never come by.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any

from keyfold._errors import BindingError

__all__ = ["for_caller", "of_function", "refused", "unexpected", "unexpected_in"]

# What other libraries call the keywords of the array API.
_FOREIGN_KEYWORDS = {
    "dim": ("axis", "axes"),
    "dims": ("axes", "axis"),
    "axes": ("axis",),
    "axis": ("axes",),
    "keepdim": ("keepdims",),
}

# The modules of the functions in Python that call operators for a user.
_MODULES = frozenset(f"keyfold._ops.{name}" for name in ("_creation", "_functions", "_pointwise"))

# An operator's argument, and what functions of the array API call it.
_NAMES = {
    "self": ("x", "x1", "arrays"),
    "other": ("x2",),
    "size": ("shape",),
    "dim": ("axis",),
    "dims": ("axes", "axis"),
    "dim0": ("axis",),
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
_GIVEN = re.compile(r" must be .+?, not (.+?)(?: \(tensors are .*\))?$")
# What a user would have to make an array of first.
_PLAIN = re.compile(r"(not (?:list|tuple|int|float|complex|bool) .*) \(tensors are .*\)$")

# The operands that may be numbers, by the names that the functions have for them.
_OPERAND = re.compile(r"(argument '(?:x[12]|min|max)') must be an array, not ")

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
    return text if frame is None else _of_frame(text, frame)


def of_function(text: str, function: str, names: Mapping[str, str], takes_numbers: bool) -> str:
    """Return an error's text with the names of a function that calls one operator.

    Args:
        text: the operator's own message.
        function: the function's name.
        names: from the operator's arguments to the function's.
        takes_numbers: whether numbers may stand for the function's arrays.
    """
    # Another function of keyfold's may have called it for a user.
    frame = _function_of(sys._getframe(1))
    if frame is None:
        text = _worded(text, function, lambda name: names.get(name, name))
    else:
        text = _of_frame(text, frame)
    if takes_numbers:
        text = _OPERAND.sub(r"\1 must be an array or a number, not ", text)
    return text


def refused(function: str, argument: str, wanted: str, given: Any) -> BindingError:
    """Return the error for an argument that a function refuses.

    Args:
        function: the function's name.
        argument: the argument's.
        wanted: what it takes, `an array`.
        given: the value that it got.
    """
    shown = "None" if given is None else f"{type(given).__name__} {str(given)[:60]}"
    return BindingError(f"keyfold.{function}() argument {argument!r} must be {wanted}, not {shown}")


def _worded(text: str, function: str, renamed: Callable[[str], str]) -> str:
    """An operator's message in the words of a function."""
    text = _FUNCTION.sub(f"keyfold.{function}() ", text)
    text = _TYPE.sub(_in_words, text)
    text = _ARGUMENT.sub(lambda match: f"argument '{renamed(match[1])}{match[2]}'", text)
    return _PLAIN.sub(r"\1; keyfold.asarray makes one of lists and numbers", text)


def _of_frame(text: str, frame: FrameType) -> str:
    """An operator's message in the words of the function that a frame runs."""
    code = frame.f_code
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    found = _GIVEN.search(text)
    given = found[1] if found else ""

    def is_given(name: str) -> bool:
        value = frame.f_locals.get(name)
        kind = type(value).__name__
        return given.startswith(kind) and given == f"{kind} {value!r}"

    def renamed(argument: str) -> str:
        # An operand of an operator that the function is made of is known by what it is.
        names = (*filter(is_given, parameters), *_NAMES.get(argument, ()), argument)
        return next((name for name in names if name in parameters), argument)

    return _worded(text, code.co_name, renamed)


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

    Args:
        function: the function.
        foreign: the keywords.
    """
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return unexpected_in(function.__name__, known, next(iter(foreign)))


def unexpected_in(function: str, known: list[str], keyword: str) -> BindingError:
    """Return the error for a keyword that a function doesn't take, with the one that was meant.

    Args:
        function: the function's name.
        known: the names of the parameters that it takes by keyword.
        keyword: the keyword.
    """
    import difflib

    same = [name for name in _FOREIGN_KEYWORDS.get(keyword, ()) if name in known]
    near = same or difflib.get_close_matches(keyword, known, n=1)
    hint = f". Did you mean {near[0]!r}?" if near else ""
    return BindingError(
        f"keyfold.{function}() got an unexpected keyword argument {keyword!r}{hint}"
    )
