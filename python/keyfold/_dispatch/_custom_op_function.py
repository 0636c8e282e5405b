"""`custom_op`: a Python function as an operator, defined and registered in one step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

from keyfold import _core
from keyfold._dispatch._custom_op import CustomOp, backend_of, lock
from keyfold._errors import BindingError, SchemaError
from keyfold._schema._infer_schema import infer_schema

__all__ = ["custom_op"]


@overload
def custom_op(
    name: str,
    fn: None = None,
    /,
    *,
    mutates_args: str | Iterable[str],
    device_types: str | Sequence[str] | None = None,
    keys: Any = None,
    schema: str | None = None,
    mixed_devices: bool = False,
) -> Callable[[Callable[..., Any]], CustomOp]: ...


@overload
def custom_op(
    name: str,
    fn: Callable[..., Any],
    /,
    *,
    mutates_args: str | Iterable[str],
    device_types: str | Sequence[str] | None = None,
    keys: Any = None,
    schema: str | None = None,
    mixed_devices: bool = False,
) -> CustomOp: ...


def custom_op(
    name: str,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    mutates_args: str | Iterable[str],
    device_types: str | Sequence[str] | None = None,
    keys: Any = None,
    schema: str | None = None,
    mixed_devices: bool = False,
) -> Any:
    """Make an operator of a Python function: its schema from the annotations, it as the kernel.

    The function gets the very arrays that a call was given. What it returns must have memory of its
    own: `opcheck` finds results that share memory with arguments, and an operator that writes to
    arguments refuses at once to return one of them.

    Without device types and keys, it is the kernel for every backend
    (`CompositeExplicitAutograd`): NumPy's arrays, CUDA's and those of backends that are registered
    later; a kernel for one backend (`register_kernel`) comes before it. Its derivative isn't that
    of the operators that it calls: give one with `register_autograd`. Tensors on meta go through
    the function, too, if it consists of operators that can compute shapes; else give
    `register_fake`. What returns nothing has nothing to do there.

    Args:
        name: the operator's full name, `ns::name`.
        fn: the function; without it, this is a decorator.
        mutates_args: the names of the arguments that it writes to: `()` for none, `"unknown"` for
            all tensors.
        device_types: the devices that it is the kernel for: `"cpu"`, or several.
        keys: dispatch keys instead, as `impl` takes them: `"CompositeImplicitAutograd"` for a
            function whose derivative is that of the operators that it calls.
        schema: the schema instead of the annotations', with or without the name:
            `(Tensor x) -> Tensor`. It says by `(a!)` what `mutates_args` names.
        mixed_devices: whether the arguments may live on different devices.

    Returns:
        A `CustomOp`, which is called like the function.

    Raises:
        SchemaError: no schema can be read from the annotations, or the given one is wrong.
        RegistrationError: the name is taken by another operator. The same function again (a module
            loaded anew, a notebook's cell run again) replaces the earlier one.
        DeviceError, UnknownKey: no such device or key.

    Source: the form is that of PyTorch's `torch.library.custom_op`.
    """
    if not isinstance(name, str):
        raise BindingError(f'custom_op() takes a name, "ns::name", not {name!r}')

    def make(function: Callable[..., Any]) -> CustomOp:
        if device_types is not None and keys is not None:
            raise BindingError(f"custom_op({name!r}): give device_types or keys, not both")
        if device_types is not None:
            places = [backend_of(device) for device in _several(device_types)]
        else:
            places = ["CompositeExplicitAutograd"] if keys is None else _several(keys)
        text = _schema_text(name, function, mutates_args, schema)
        with lock:
            return CustomOp._make(name, function, text, mutates_args, places, mixed_devices)

    return make if fn is None else make(fn)


def _several(given: Any) -> list[Any]:
    single = isinstance(given, (str, _core.Device, _core.DispatchKeyBase))
    return [given] if single else list(given)


def _schema_text(
    name: str,
    function: Callable[..., Any],
    mutates_args: str | Iterable[str],
    schema: str | None,
) -> str:
    if schema is None:
        return infer_schema(function, mutates_args=mutates_args, op_name=name)
    if not schema.lstrip().startswith("("):
        given = schema.partition("(")[0].strip()
        if given != name:
            raise SchemaError(f"custom_op({name!r}): the schema is of {given!r}")
        return schema
    return f"{name}{schema.lstrip()}"
