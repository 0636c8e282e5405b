"""Arguments of a call, as words of a command line.

`3x4:float32:meta` is an array, `0.5` a Python literal, `dim=1` a keyword argument, another plain
word a text. An array has its shape, a dtype and, after a second colon, a device; it is made by
`empty`, so that only its shape costs anything.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

import keyfold as kf

__all__ = ["ArgumentFormError", "parse_argument", "parse_arguments"]

_ARRAY = re.compile(
    r"(?P<shape>\(\)|\d+(?:x\d+)*):(?P<dtype>[a-z]\w*)(?::(?P<device>\w+(?::\d+)?))?"
)
_KEYWORD = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)", re.DOTALL)
# A word that needs no quotes to be a text: `mean`, `cuda:0`, `float32`.
_WORD = re.compile(r"[A-Za-z_][\w.]*(?::\d+)?")


class ArgumentFormError(ValueError):
    """A word that is no argument."""


def parse_arguments(words: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and the keyword arguments that the words stand for.

    Raises:
        ArgumentFormError: a word has none of the forms, a keyword comes twice or too early, or an
            array can't be made: an unknown dtype or device, a shape too large.
    """
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for word in words:
        keyword = _KEYWORD.fullmatch(word)
        if keyword is None:
            if kwargs:
                raise ArgumentFormError(
                    f"the argument {word!r} must come before {next(iter(kwargs))}="
                )
            args.append(parse_argument(word))
        elif keyword["name"] in kwargs:
            raise ArgumentFormError(f"the argument {keyword['name']!r} is given twice")
        else:
            kwargs[keyword["name"]] = parse_argument(keyword["value"])
    return args, kwargs


def parse_argument(word: str) -> Any:
    """Return the value of one word."""
    text = word.strip()
    array = _ARRAY.fullmatch(text)
    if array is not None:
        return _array(text, array)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        pass
    if text.startswith("[") and text.endswith("]"):
        # A list with arrays in it. Its items hold no commas but those of a shape "()".
        items = [item for item in text[1:-1].split(",") if item.strip()]
        return [parse_argument(item) for item in items]
    if _WORD.fullmatch(text):
        return text
    raise ArgumentFormError(
        f"{word!r} is no argument: give an array as 3x4:float32 or 3x4:float32:meta, "
        "a Python literal such as 2, 0.5, True, None or '[1, 2]', or a plain word"
    )


def _array(text: str, parts: re.Match[str]) -> kf.Tensor:
    shape = [] if parts["shape"] == "()" else [int(size) for size in parts["shape"].split("x")]
    try:
        return kf.empty(shape, dtype=parts["dtype"], device=parts["device"] or "cpu")
    except (kf.Error, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise ArgumentFormError(f"the array {text!r} can't be made: {error}") from error
