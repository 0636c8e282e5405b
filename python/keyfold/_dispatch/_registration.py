"""Defining operators and registering kernels in the process's own dispatcher."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

from keyfold import _core
from keyfold._default import dispatcher as _default
from keyfold._dispatch._numpy_kernel import on_numpy
from keyfold._entry_points import find, missing
from keyfold._errors import BindingError, GuardError, InvalidValue, UnknownOperator

__all__ = [
    "Library",
    "call_direct",
    "define",
    "explain",
    "fallback",
    "get_kernel",
    "get_op",
    "impl",
]

_F = TypeVar("_F", bound=Callable[..., Any])


def define(
    schema: str,
    *,
    mixed_devices: bool = False,
    mixed_arrays: bool = False,
    tags: str | Iterable[str] = (),
) -> _core.Handle:
    """Define an operator.

    Args:
        schema: its schema, such as `ns::scale(Tensor x, float k=2.0) -> Tensor`.
        mixed_devices: whether its arguments may live on different devices.
        mixed_arrays: whether its arguments may be arrays of different libraries, a NumPy array and
            a torch tensor say. Its results are then of the library of the first one.
        tags: what holds for every call: `"nondeterministic_seeded"` for an operator that draws
            random numbers, so that a trace keeps its calls; `"data_dependent_shape"` where the
            result's shape depends on values. `kf.get_op(name).tags` tells them.

    Returns:
        A handle. The same schema again gives another one; the operator goes with the last.

    Raises:
        SchemaError: the text doesn't parse; a caret shows where.
        RegistrationError: the name is defined already, with another schema.
        BindingError: the schema is no text.
        InvalidValue: a tag that there isn't.
    """
    if not isinstance(schema, str):
        raise BindingError(
            'define() takes a schema\'s text, such as "ns::scale(Tensor x) -> Tensor", not '
            f"{_said(schema)}; custom_op makes an operator of a function"
        )
    return _default.define(
        schema, mixed_devices=mixed_devices, mixed_arrays=mixed_arrays, tags=_names(tags)
    )


def _names(tags: str | Iterable[str]) -> list[str]:
    """The names of tags; one alone may stand without a list."""
    return [tags] if isinstance(tags, str) else list(tags)


@overload
def impl(
    op: Any,
    key: Any,
    fn: None = None,
    *,
    with_keyset: bool = False,
    override: str = "error",
    arrays: str | None = None,
) -> Callable[[_F], _F]: ...
@overload
def impl(
    op: Any,
    key: Any,
    fn: Any,
    *,
    with_keyset: bool = False,
    override: str = "error",
    arrays: str | None = None,
) -> _core.Handle: ...
def impl(
    op: Any,
    key: Any,
    fn: Any = None,
    *,
    with_keyset: bool = False,
    override: str = "error",
    arrays: str | None = None,
) -> Any:
    """Register a kernel for an operator at a dispatch key.

    Args:
        op: the operator or its name, `ns::name` or `ns::name.overload`.
        key: the key: `"CPU"`, `"Autograd"`, `"AutogradCUDA"`, `"CompositeImplicitAutograd"`, ...
        fn: the kernel: a callable, a `NativeKernel` or what one is made of (a `tvm_ffi.Function`,
            a PyCapsule, a numba `cfunc`), or `fallthrough`. Without it, this is a decorator, which
            gives the function back.
        with_keyset: whether the kernel gets the call's key set as its first argument.
        override: what to do where a kernel is registered already: `"error"` (unless the same
            source is registered again), `"shadow"` it, or `"replace"` it.
        arrays: `"numpy"` for a function that takes NumPy arrays, one compiled by `numba.njit` say:
            it gets arrays over the memory of the call's, which may be of any library, lists as
            tuples, and dtypes as NumPy's. By default a kernel gets the caller's own objects.

    Returns:
        A handle, whose `remove()` takes the kernel back.

    Raises:
        InvalidValue: `arrays` is something else.
        UnknownOperator: the operator isn't defined: define it first.
        UnknownKey: no such key.
        BindingError: the arguments are in another order than this one.
        RegistrationError: the place is taken, or the kernel's signature contradicts the schema.
    """
    return _implement(_default, op, key, fn, with_keyset, override, arrays)


def _implement(
    dispatcher: _core.Dispatcher,
    op: Any,
    key: Any,
    fn: Any,
    with_keyset: bool,
    override: str,
    arrays: str | None,
) -> Any:
    _check_order(op, key, fn)

    def act(fn: Any) -> _core.Handle:
        fn = _on(arrays, dispatcher, op, fn, with_keyset)
        return find(dispatcher, op, dispatcher._implement, op, key, fn, with_keyset, override)

    if fn is not None:
        return act(fn)

    def register(fn: _F) -> _F:
        act(fn)
        return fn

    return register


def _on(
    arrays: str | None, dispatcher: _core.Dispatcher, op: Any, fn: Any, with_keyset: bool
) -> Any:
    """The kernel for arrays as the caller has them, or for NumPy's."""
    if arrays is None:
        return fn
    if arrays != "numpy":
        raise InvalidValue(
            f'impl(): arrays is "numpy", or None for the caller\'s own, not {arrays!r}'
        )
    return on_numpy(dispatcher, op, fn, with_keyset)


def _check_order(op: Any, key: Any, fn: Any) -> None:
    """Refuse arguments that other libraries take in another order."""
    if isinstance(key, str) and "::" in key:
        raise BindingError(
            f"impl() takes the operator first, then the key: impl({_said(key)}, {_said(op)}), "
            f"not impl({_said(op)}, {_said(key)})"
        )
    if callable(key) and (isinstance(fn, (str, _core.DispatchKeyBase))):
        raise BindingError(
            f"impl() takes the key second, then the kernel: impl({_said(op)}, {_said(fn)}, "
            f"{_said(key)}), not impl({_said(op)}, {_said(key)}, {_said(fn)})"
        )
    if callable(key) and fn is None:
        raise BindingError(
            f'impl() takes the key second, then the kernel: impl({_said(op)}, "CPU", '
            f"{_said(key)}), not impl({_said(op)}, {_said(key)})"
        )


def _said(given: Any) -> str:
    """An argument as its author wrote it, more or less."""
    if isinstance(given, str):
        # Half of a surrogate pair can't be printed.
        return f'"{given}"'.encode(errors="backslashreplace").decode()
    name = getattr(given, "__name__", None) or getattr(given, "name", None)
    return name if isinstance(name, str) else repr(given)


def fallback(key: Any, fn: Any, *, override: str = "error") -> _core.Handle:
    """Register `fn(op, keyset, args, kwargs)` as the kernel of every operator at a key.

    Args:
        key: the key, usually one of your own.
        fn: the function, or `fallthrough`. It gets the operator, the call's key set, and the
            arguments, and passes a call on with
            `redispatch(op, keyset.remove(key), *args, **kwargs)`.
        override: as for `impl`.

    Returns:
        A handle, whose `remove()` takes it back.
    """
    return _default.fallback(key, fn, override=override)


def get_op(name: Any) -> _core.Operator:
    """Return the operator of a full name.

    Raises:
        UnknownOperator: there is none; the nearest names are offered.
    """
    return find(_default, name, _default.get_op, name)


def get_kernel(op: Any, key: Any) -> _core.KernelHandle:
    """Return the kernel in an operator's table at a key, callable with the operator's arguments.

    Raises:
        MissingKernel: the table has none there.
    """
    return find(_default, op, _default.get_kernel, op, key)


def call_direct(op: Any, key: Any, /, *args: Any, keyset: Any = None, **kwargs: Any) -> Any:
    """Run the kernel that an operator has at one key, whatever the arguments' keys are.

    Args:
        op: the operator or its name.
        key: the key, which need not be among the arguments'.
        args: the operator's arguments.
        keyset: the set for a kernel that asks for it; the computed one by default.
        kwargs: the operator's keyword arguments.
    """
    try:
        return _default.call_direct(op, key, *args, keyset=keyset, **kwargs)
    except UnknownOperator as error:
        if not missing(_default, op, error):
            raise
    return _default.call_direct(op, key, *args, keyset=keyset, **kwargs)


def explain(op: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Say what a call would do, without running anything.

    Args:
        op: the operator or its name.
        args: the operator's arguments.
        kwargs: the operator's keyword arguments.

    Returns:
        An `Explanation`: data, with `str()` for people and rich HTML in notebooks.
    """
    return find(_default, op, _default.explain, op, *args, **kwargs)


class Library(_core._Block):
    """Definitions and kernels of one namespace, registered and taken back together.

    Each call acts at once. Inside a `with` block calls are collected instead, and registered when
    it ends: all of them, or, if something fails, none. They stay registered after the block, until
    `close()`.
    """

    def __init__(self, ns: str, *, dispatcher: _core.Dispatcher | None = None) -> None:
        """Open a library for a namespace.

        Args:
            ns: the namespace.
            dispatcher: where to register; the process's own dispatcher by default.
        """
        if not isinstance(ns, str):
            raise BindingError(f"a namespace is a str, not {ns!r}")
        if not ns.isidentifier():
            raise InvalidValue(f"a namespace is an identifier, not {ns!r}")
        self.ns = ns
        self._dispatcher = _default if dispatcher is None else dispatcher
        self._handles: list[_core.Handle] = []
        self._definitions: list[tuple[str, bool, bool, list[str]]] = []
        self._kernels: list[tuple[str, Any, Any, bool, str]] = []
        # Calls of several threads are collected one at a time. Reentrant, since a signal handler
        # may register in the middle of a collection on the same thread.
        self._collecting = threading.RLock()

    def define(
        self,
        schema: str,
        *,
        mixed_devices: bool = False,
        mixed_arrays: bool = False,
        tags: str | Iterable[str] = (),
    ) -> _core.Handle | None:
        """Define an operator as `keyfold.define` does; its name may leave out the namespace.

        Returns:
            The handle; None inside a `with` block, where nothing is registered yet.
        """
        full, names = self._qualify(schema), _names(tags)
        with self._collecting:
            if self._is_open:
                self._definitions.append((full, mixed_devices, mixed_arrays, names))
                return None
        handle = self._dispatcher.define(
            full, mixed_devices=mixed_devices, mixed_arrays=mixed_arrays, tags=names
        )
        return self._keep(handle)

    def impl(
        self,
        name: Any,
        fn: Any,
        key: Any,
        *,
        with_keyset: bool = False,
        override: str = "error",
        arrays: str | None = None,
    ) -> _core.Handle | None:
        """Register a kernel (the arguments in the order of `torch.library`).

        Returns:
            The handle; None inside a `with` block, where nothing is registered yet.

        Raises:
            BindingError: the kernel and the key are in each other's places.
        """
        if isinstance(fn, (str, _core.DispatchKeyBase)) and callable(key):
            raise BindingError(
                f"Library.impl() takes the kernel second, then the key: impl({_said(name)}, "
                f"{_said(key)}, {_said(fn)}), not impl({_said(name)}, {_said(fn)}, {_said(key)})"
            )
        op = name if isinstance(name, str) else self._dispatcher.get_op(name).name
        full = self._qualify(op)
        with self._collecting:
            if self._is_open:
                fn = _on(arrays, self._dispatcher, full, fn, with_keyset)
                self._kernels.append((full, fn, key, with_keyset, override))
                return None
        return self._keep(
            _implement(self._dispatcher, full, key, fn, with_keyset, override, arrays)
        )

    def close(self) -> None:
        """Take back everything that this library registered, the last first."""
        if self._is_open:
            raise GuardError(f"the library {self.ns!r} is still collecting in a with block")
        while self._handles:
            self._handles.pop().remove()

    @property
    def handles(self) -> tuple[_core.Handle, ...]:
        """The handles of what is registered, in order."""
        return tuple(self._handles)

    def _leave(self, failed: bool) -> None:
        with self._collecting:
            definitions, kernels = self._definitions, self._kernels
            self._definitions, self._kernels = [], []
        if not failed:
            commit = self._dispatcher._commit
            find(self._dispatcher, f"{self.ns}::", commit, definitions, kernels, self._handles)

    def _keep(self, handle: _core.Handle) -> _core.Handle:
        self._handles.append(handle)
        return handle

    def _qualify(self, text: str) -> str:
        head = text.split("(", 1)[0]
        if "::" not in head:
            return f"{self.ns}::{text}"
        if head.split("::", 1)[0].strip() != self.ns:
            raise InvalidValue(f"the library {self.ns!r} can't register {head.strip()!r}")
        return text

    def __repr__(self) -> str:
        return f"<Library {self.ns!r} ({len(self._handles)} registrations)>"
