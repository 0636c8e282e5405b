"""Autocast: `autocast`, `register_autocast`, `is_autocast_enabled`, `autocast_dtype`."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from keyfold import _core
from keyfold._default import dispatcher as _default
from keyfold._entry_points import find
from keyfold._errors import BindingError

__all__ = ["autocast", "autocast_dtype", "is_autocast_enabled", "register_autocast"]

_F = TypeVar("_F", bound=Callable[..., Any])


class autocast(_core._Autocast):  # noqa: N801 - the field's name for it
    """Compute matrix products in a short dtype, and what needs precision in float32.

    Inside the `with` block, or inside the function that this decorates, each operator's floating
    tensor arguments are cast by the operator's category:

    - "lower" (`matmul`): to this dtype;
    - "full" (`exp`, `log`, `pow`, `softmax`, `sum`, `mean`, ...): float16 and bfloat16 to float32;
    - "widest" (`add`, `mul`, `where`, `concat`, `stack`, comparisons, ...): to the widest dtype
      among them;
    - "leave" (everything else, and operators of your own until `register_autocast`): untouched.

    float64 never becomes shorter, and a product with a float64 argument isn't lowered. Whole
    numbers, bools and arguments that an operator writes to are untouched. Gradients come back in
    the dtype of the argument that the caller gave. The innermost block counts.

    Args:
        dtype: float16, bfloat16, or float32, which means full precision everywhere. Not needed
            where enabled is False.
        enabled: False switches an outer block off inside this one.

    Raises:
        DTypeError: any other dtype. Inside the block: a bfloat16 result for NumPy arrays, as NumPy
            has no such dtype; give tensors (`keyfold.asarray(x)`), or use float16.
        BindingError: no dtype.
    """

    def __new__(cls, dtype: Any = None, enabled: bool = True) -> autocast:
        """Make the block; it may be entered any number of times."""
        if dtype is None and enabled:
            raise BindingError(
                "autocast() needs the argument 'dtype': float16, bfloat16 or float32; only "
                "autocast(enabled=False) takes none"
            )
        return super().__new__(cls, "float32" if dtype is None else dtype, enabled)

    def __call__(self, function: _F) -> _F:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise BindingError(
                f"{self!r} can't decorate the generator {function.__qualname__}(), which would "
                "run outside of it; write `with` inside"
            )
        wrapper: Any
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await function(*args, **kwargs)
        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return function(*args, **kwargs)

        return wrapper  # type: ignore[no-any-return]


def is_autocast_enabled() -> bool:
    """Return whether operators that are called here are autocast."""
    return _core._autocast_dtype() is not None


def autocast_dtype() -> _core.DType | None:
    """Return the dtype of the innermost `autocast`; None outside, and where it is off."""
    return _core._autocast_dtype()


def register_autocast(
    op: Any,
    category: str | None = None,
    *,
    cast_inputs: Any = None,
    override: str = "error",
) -> _core.Handle:
    """Say how autocast treats an operator's tensor arguments.

    Args:
        op: the operator or its name, `ns::name` or `ns::name.overload`.
        category: `"lower"`, `"full"`, `"widest"` or `"leave"`; see `autocast`.
        cast_inputs: instead of a category: the dtype that float16, bfloat16 and float32 arguments
            become in any autocast block.
        override: as for `impl`: a built-in operator's own category is replaced with `"replace"` or
            `"shadow"`.

    Returns:
        A handle, whose `remove()` takes the rule back.

    Raises:
        UnknownOperator: there is no such operator.
        RegistrationError: it has a category already.
        InvalidValue: no category of that name.
        DTypeError: `cast_inputs` isn't floating.
        BindingError: both of category and cast_inputs, or neither.
    """
    frame = sys._getframe(1)
    file, line = frame.f_code.co_filename, frame.f_lineno
    if isinstance(op, str):
        op = find(_default, op, _default.get_op, op)
    if category is not None and not isinstance(category, str):
        raise BindingError(
            f'a category is a name such as "lower", not {category!r}; a dtype is given as '
            "cast_inputs=",
        )
    return _core._register_autocast(op, category, cast_inputs, override, file, line)
