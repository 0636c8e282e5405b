"""`infer_schema`: an operator's schema from the annotations of a Python function."""

from __future__ import annotations

import inspect
import math
import sys
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from keyfold import _core
from keyfold._errors import BindingError, SchemaError
from keyfold._schema._annotations import evaluate, schema_type, show

__all__ = ["infer_schema"]

_SUPPORTED = """
a parameter can be
  an array: keyfold.Tensor, numpy.ndarray, numpy.typing.NDArray[...], torch.Tensor, jax.Array, a
    class with __dlpack__, a protocol named Array;
  int, float, bool, complex, str; int | float (Scalar); keyfold.DType, numpy.dtype, torch.dtype;
    keyfold.Device, torch.device; Any, for what is no array;
  X | None of these; list[X], Sequence[X] or tuple[X, ...] of these; tuple[int, int]"""
_RESULTS = """
a result can be
  None, an array, what else a parameter can be;
  a tuple of two or more of these, or a NamedTuple"""
_HINT = """
a schema of your own can be given: custom_op(..., schema="(Tensor x) -> Tensor")"""


def infer_schema(
    function: Callable[..., Any],
    /,
    *,
    mutates_args: str | Iterable[str],
    op_name: str | None = None,
) -> str:
    """Read an operator's schema from a function's annotations.

    Annotations may be objects or strings (`from __future__ import annotations`); a string may name
    what is imported for type checkers alone: `torch.Tensor` where torch isn't imported.

    =========================================================  =============================
    annotation                                                 schema
    =========================================================  =============================
    `kf.Tensor`, `np.ndarray`, `NDArray[...]`, `torch.Tensor`,
    `jax.Array`, a class with `__dlpack__`, a protocol
    `Array`, and unions of these                               `Tensor`
    `int`, `float`, `bool`, `complex`, `str`                   the same
    `int | float`, also with bool and complex                  `Scalar`
    `kf.DType`, `np.dtype`, `torch.dtype`                      `ScalarType`
    `kf.Device`, `torch.device`                                `Device`
    `Any`, of a parameter                                      `Any`
    `Optional[X]`, `X | None`                                  `X?`
    `list[X]`, `Sequence[X]`, `tuple[X, ...]`                  `X[]`
    `tuple[int, int]`                                          `int[2]`
    returned: `None`; `tuple[X, Y]`; a NamedTuple              `()`; `(X, Y)`; `(X a, Y b)`
    =========================================================  =============================

    Args:
        function: the function. Each parameter and the result have annotations; no `*args`, no
            `**kwargs`. Nothing that it returns may be, or share memory with, an argument.
        mutates_args: the names of the arguments that it writes to: `()` for none, `"unknown"` for
            all tensors.
        op_name: what to put in front, `ns::name`.

    Returns:
        The schema, such as `(Tensor x, float k=2.0) -> Tensor`.

    Raises:
        SchemaError: an annotation or default that no schema has, or none at all. The message names
            the function, its file and line, and the parameter.

    Source: the name and the arguments are those of `torch.library.infer_schema`.
    """
    return _Inference(function, mutates_args).text(op_name or "")


class _Inference:
    """One function being read: what errors name."""

    def __init__(self, function: Callable[..., Any], mutates_args: str | Iterable[str]) -> None:
        if not callable(function):
            raise BindingError(f"infer_schema reads a function, not {function!r}")
        self.inner = _innermost(function)
        self.title = f"{_name(function)}() ({_place(self.inner)})"
        for test, kind in (
            (inspect.iscoroutinefunction, "a coroutine function"),
            (inspect.isgeneratorfunction, "a generator function"),
            (inspect.isasyncgenfunction, "a generator function"),
        ):
            if test(self.inner):
                raise self.error(f"is {kind}, which returns before it computes; write a plain one")
        self.signature = self._signature(function)
        self.mutates = self._mutates(mutates_args)
        self.aliases = 0

    def error(self, problem: str) -> SchemaError:
        return SchemaError(f"infer_schema: {self.title} {problem}")

    def _signature(self, function: Callable[..., Any]) -> inspect.Signature:
        try:
            if sys.version_info >= (3, 14):
                # Annotations are computed when they are asked for; an unknown name stays a text.
                import annotationlib

                form = annotationlib.Format.FORWARDREF
                return inspect.signature(function, annotation_format=form)
            return inspect.signature(function)
        except (TypeError, ValueError) as error:
            raise self.error(f"has no signature that can be read ({error}){_HINT}") from error

    def _mutates(self, names: str | Iterable[str]) -> frozenset[str] | None:
        """The names of the arguments that are written to; None for all that can be."""
        if isinstance(names, str):
            if names == "unknown":
                return None
            raise self.error(
                f'has mutates_args={names!r}: give names in a tuple, ({names!r},), or "unknown"'
            )
        known = list(self.signature.parameters)
        wanted = frozenset(names)
        for name in sorted(wanted, key=str):
            if name not in known:
                raise self.error(
                    f"has no parameter {name!r}, which mutates_args names; it has "
                    f"{', '.join(known) or 'none'}"
                )
        return wanted

    def text(self, name: str) -> str:
        parts: list[str] = []
        named = False
        for parameter in self.signature.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                star = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
                raise self.error(
                    f"takes {star}{parameter.name}, and a schema has a fixed number of named "
                    "arguments; name them, or take a list"
                )
            if parameter.kind is parameter.KEYWORD_ONLY and not named:
                named = True
                parts.append("*")
            parts.append(self._parameter(parameter))
        return f"{name}({', '.join(parts)}) -> {self._result()}"

    def _evaluate(self, annotation: Any, what: str, owner: Any = None) -> Any:
        try:
            # A class sees what its module does.
            scope = self.inner if owner is None else sys.modules.get(owner.__module__)
            return evaluate(annotation, scope)
        except Exception as error:
            raise self.error(
                f"{what} is annotated {show(annotation)}, which can't be read "
                f"({type(error).__name__}: {error}); name types that the module or the function "
                f"around it can see{_HINT}"
            ) from error

    def _parameter(self, parameter: inspect.Parameter) -> str:
        name = parameter.name
        if parameter.annotation is parameter.empty:
            raise self.error(
                f"parameter {name!r} has no annotation, such as {name}: numpy.ndarray;"
                f"{_SUPPORTED}{_HINT}"
            )
        annotation = self._evaluate(parameter.annotation, f"parameter {name!r}")
        kind = schema_type(annotation)
        if kind is None:
            raise self.error(
                f"parameter {name!r} is annotated {show(annotation)}, for which a schema has no "
                f"type;{_SUPPORTED}{_HINT}"
            )
        if kind == "Any" and parameter.default is None:
            kind = "Any?"
        default = "" if parameter.default is parameter.empty else self._default(parameter, kind)
        return f"{self._marked(name, kind)} {name}{default}"

    def _marked(self, name: str, kind: str) -> str:
        """The type with its alias annotation, if the function writes to the argument."""
        tensor = kind.startswith("Tensor")
        if self.mutates is None:
            written = tensor
        elif name in self.mutates:
            if not tensor:
                raise self.error(
                    f"parameter {name!r} is of type {kind}, and mutates_args names it: only "
                    "tensors can be written to"
                )
            written = True
        else:
            written = False
        if not written:
            return kind
        # a to z, then a26, a27, ...
        mark = chr(ord("a") + self.aliases) if self.aliases < 26 else f"a{self.aliases}"
        self.aliases += 1
        return kind.replace("Tensor", f"Tensor({mark}!)", 1)

    def _default(self, parameter: inspect.Parameter, kind: str) -> str:
        value = parameter.default
        if value is None and not kind.endswith("?"):
            shown = show(self._evaluate(parameter.annotation, ""))
            raise self.error(
                f"parameter {parameter.name!r} is annotated {shown} and its default is None; "
                f"annotate it {shown} | None"
            )
        literal = _literal(value, kind)
        if literal is None:
            raise self.error(
                f"parameter {parameter.name!r} is of type {kind} in the schema, which can't have "
                f"the default {value!r}; give another one, or X | None with the default None"
            )
        return f"={literal}"

    def _result(self) -> str:
        annotation = self.signature.return_annotation
        if annotation is inspect.Signature.empty:
            raise self.error(
                f"doesn't say what it returns: write -> None, or its type;{_RESULTS}{_HINT}"
            )
        annotation = self._evaluate(annotation, "the result")
        if annotation in (None, types.NoneType):
            return "()"
        named = getattr(annotation, "_fields", None)
        if isinstance(annotation, type) and issubclass(annotation, tuple) and named:
            fields = annotation.__annotations__
            items = [
                self._evaluate(fields.get(name), f"{annotation.__qualname__}.{name}", annotation)
                for name in named
            ]
            names = [f" {name}" for name in named]
        elif typing.get_origin(annotation) is tuple and Ellipsis not in typing.get_args(annotation):
            items = list(typing.get_args(annotation))
            names = [""] * len(items)
            if not items:
                return "()"
        else:
            kind = schema_type(annotation)
            if kind is None:
                raise self._bad_result(annotation)
            return kind
        if len(items) == 1:
            raise self.error(
                f"returns {show(annotation)}: one result is returned as it is, not in a tuple"
            )
        kinds = [schema_type(item) for item in items]
        if None in kinds:
            raise self._bad_result(annotation)
        return f"({', '.join(f'{k}{n}' for k, n in zip(kinds, names, strict=True))})"

    def _bad_result(self, annotation: Any) -> SchemaError:
        return self.error(
            f"returns {show(annotation)}, for which a schema has no type;{_RESULTS}{_HINT}"
        )


def _innermost(function: Any) -> Any:
    """The function whose annotations count: out of partials, decorators, methods and objects."""
    while True:
        if hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif hasattr(function, "func") and hasattr(function, "keywords"):
            function = function.func
        elif isinstance(function, types.MethodType):
            function = function.__func__
        elif not hasattr(function, "__code__") and hasattr(type(function).__call__, "__code__"):
            function = type(function).__call__
        else:
            return function


def _name(function: Any) -> str:
    while hasattr(function, "func") and hasattr(function, "keywords"):
        function = function.func
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def _place(function: Any) -> str:
    code = getattr(function, "__code__", None)
    if code is None:
        return "no source"
    return f"{code.co_filename}:{code.co_firstlineno}"


def _literal(value: Any, kind: str) -> str | None:
    """A default as a schema writes it; None where it can't."""
    if value is None:
        return "None"
    kind = kind.removesuffix("?")
    if kind.endswith("]"):
        base, _, size = kind[:-1].rpartition("[")
        if not isinstance(value, (list, tuple)) or (size and len(value) != int(size)):
            return None
        items = [_literal(item, base) for item in value]
        if any(item is None or (item == "None" and base[-1] != "?") for item in items):
            return None
        return f"[{', '.join(str(item) for item in items)}]"
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        if kind == "ScalarType":
            return _dtype(value)
        return _quoted(value) if kind in ("str", "Device", "Any") else None
    if kind == "Device":
        return _quoted(str(value)) if _is_device(value) else None
    if kind == "ScalarType":
        return _dtype(value)
    if isinstance(value, bool):
        return str(value) if kind in ("bool", "Scalar", "Any") else None
    if isinstance(value, int):
        fits = kind in ("int", "float", "complex", "Scalar", "Any") and -(2**63) <= value < 2**63
        return repr(int(value)) if fits else None
    if isinstance(value, complex) and kind == "complex" and value.imag == 0.0:
        value = value.real
    if isinstance(value, float) and kind in ("float", "complex", "Scalar", "Any"):
        return "nan" if math.isnan(value) else repr(float(value))
    return None


def _is_device(value: Any) -> bool:
    kind = type(value)
    return kind is _core.Device or (kind.__module__, kind.__qualname__) == ("torch", "device")


def _dtype(value: Any) -> str | None:
    if type(value).__module__ == "torch":
        value = str(value).removeprefix("torch.")
    try:
        return _core.DType(value).name
    except (TypeError, ValueError):
        return None


_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"}


def _quoted(text: str) -> str:
    return f'"{"".join(_ESCAPES.get(c, c) for c in text)}"'
