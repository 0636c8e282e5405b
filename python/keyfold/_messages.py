"""An operator's error in the words of the function that a user called.

`keyfold.sum` has an argument `axis` where `aten::sum` has `dim`. The engine asks here, once, when
an error about an argument is about to be raised; successful calls don't use it.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

from keyfold._errors import BindingError

__all__ = ["no_array", "of_function", "refused", "unexpected", "unexpected_in"]

# The keywords of the array API, by their names in other libraries.
_FOREIGN_KEYWORDS = {
    "dim": ("axis", "axes"),
    "dims": ("axes", "axis"),
    "axes": ("axis",),
    "axis": ("axes",),
    "keepdim": ("keepdims",),
}

# An operator's argument, and what functions of the array API call it.
_NAMES = {
    "self": ("x", "x1", "arrays"),
    "input": ("x",),
    "other": ("x2",),
    "size": ("shape",),
    "dim": ("axis",),
    "dims": ("axes", "axis"),
    "dim0": ("axis",),
    "tensors": ("arrays",),
    "index": ("indices",),
    "end": ("stop",),
    "A": ("x", "x1"),
    "B": ("x2",),
}

# Keywords of PyTorch that have no parameter here, and how to get the same.
_ADVICE = {
    "input": "give the array by position",
    "inplace": "a function that takes out writes into x by out=x",
    "return_indices": "keyfold.ops.aten.max_pool2d_with_indices and its like return them",
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
    "int[2]": "a whole number, or 2 in a tuple or list",
    "int[3]": "a whole number, or 3 in a tuple or list",
    "Tensor": "an array",
    "Tensor[]": "a list of arrays",
}

_TYPE = re.compile(r"(?<= must be )([A-Za-z]+(?:\[\d?\])?)(\??)(?=, not )")
# Values that `asarray` makes arrays of.
_PLAIN = re.compile(r"(not (?:list|tuple|int|float|complex|bool) .*) \(tensors are .*\)$")

# The operands that may be numbers, by the names that the functions have for them.
_OPERAND = re.compile(r"(argument 'x[12]') must be an array, not ")

_ARGUMENT = re.compile(r"argument '(\w+)((?:\[\d+\])?)'")
_FUNCTION = re.compile(r"^\w+::[\w.]+\(\) ")


def of_function(
    text: str,
    function: str = "",
    names: dict[str, str] | None = None,
    takes_numbers: bool = False,
) -> str:
    """Return an error's text in the words of the function that a user called.

    That is the outermost one of those that are written in Python, if one of them called the
    operator, else the one that is named here. Without either the text stays as it is.

    Args:
        text: the operator's own message.
        function: the name of a function that calls one operator, such as `keyfold.sum`.
        names: from the operator's arguments to that function's.
        takes_numbers: whether numbers may stand for that function's arrays.
    """
    caller = _function_of(sys._getframe().f_back)
    if caller is not None:
        function, code = caller
        parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        pairs = ((own, name) for own, ours in _NAMES.items() for name in ours)
        names = {own: name for own, name in pairs if name in parameters}
    elif not function or names is None:
        return text
    text = _FUNCTION.sub(f"{function}() ", text)
    text = _TYPE.sub(_in_words, text)
    text = _ARGUMENT.sub(lambda x: f"argument '{names.get(x[1], x[1])}{x[2]}'", text)
    text = _PLAIN.sub(r"\1; keyfold.asarray makes one of lists and numbers", text)
    return _OPERAND.sub(r"\1 must be an array or a number, not ", text) if takes_numbers else text


def refused(function: str, argument: str, wanted: str, given: Any) -> BindingError:
    """Return the error for an argument that a function refuses.

    Args:
        function: the function's name.
        argument: the argument's.
        wanted: what it takes, `an array`.
        given: the value that it got.
    """
    shown = "None" if given is None else f"{type(given).__name__} {repr(given)[:60]}"
    return BindingError(f"keyfold.{function}() argument {argument!r} must be {wanted}, not {shown}")


def no_array(function: str, argument: str, given: Any, wanted: str = "an array") -> BindingError:
    """Return the error for a value that is no array. The arguments are those of `refused`."""
    error = refused(function, argument, wanted, given)
    if isinstance(given, (list, tuple, int, float, complex)):
        return BindingError(f"{error}; keyfold.asarray makes one of lists and numbers")
    return error


def _in_words(match: re.Match[str]) -> str:
    """A schema's type as people say it: `a number or None` for `Scalar?`."""
    words = _TYPES.get(match[1], match[1])
    return f"{words} or None" if match[2] else words


def _function_of(frame: FrameType | None) -> tuple[str, CodeType] | None:
    """The outermost of the package's functions in Python that a call of an operator comes from."""
    found = None
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(("keyfold._ops.", "keyfold.linalg")):
            break
        name = frame.f_code.co_name
        if not name.startswith(("_", "<")):
            public = module if module == "keyfold.linalg" else "keyfold"
            found = f"{public}.{name}", frame.f_code
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
    return unexpected_in(f"keyfold.{function.__name__}", known, next(iter(foreign)))


def unexpected_in(function: str, known: list[str], keyword: str) -> BindingError:
    """Return the error for a keyword that a function doesn't take, with the one that was meant.

    Args:
        function: the function's name, such as `keyfold.sum`.
        known: the names of the parameters that it takes by keyword.
        keyword: the keyword.
    """
    import difflib

    same = [name for name in _FOREIGN_KEYWORDS.get(keyword, ()) if name in known]
    near = same or difflib.get_close_matches(keyword, known, n=1)
    hint = f". Did you mean {near[0]!r}?" if near else ""
    if keyword in _ADVICE:
        hint = f"; {_ADVICE[keyword]}"
    return BindingError(f"{function}() got an unexpected keyword argument {keyword!r}{hint}")
