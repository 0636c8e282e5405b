"""`CustomOp`: an operator with its function, and what is registered through it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

from keyfold import _core
from keyfold._autograd import register_autograd, register_jvp
from keyfold._default import dispatcher as _default
from keyfold._dispatch._custom_op_kernels import check_marks, no_fake, returning_no_argument
from keyfold._dispatch._keys import DispatchKey
from keyfold._errors import (
    BindingError,
    MissingKernel,
    NotSupported,
    RegistrationError,
)
from keyfold._layers._fake import _problem, register_fake
from keyfold._layers._vmap import register_vmap
from keyfold._schema import Schema
from keyfold._show._objects import of_operator

__all__ = ["CustomOp", "backend_of", "lock"]

_F = TypeVar("_F", bound=Callable[..., Any])

# The operators made here, by name: a module that is loaded again takes its own ones over.
_made: dict[str, CustomOp] = {}
lock = threading.RLock()


def _source_of(function: Any) -> tuple[Any, ...]:
    """Where a function is written: equal for one that is loaded again."""
    name = getattr(function, "__qualname__", "<")
    if "<" not in name:
        return (getattr(function, "__module__", None), name)
    code = getattr(inspect.unwrap(function), "__code__", None)
    return (id(function),) if code is None else (code.co_filename, code.co_firstlineno)


def backend_of(device: Any) -> Any:
    """The key of a device's backend."""
    wanted = _core.Device(device).type
    return next(key for key in DispatchKey if key.is_backend and key.name.lower() == wanted)


def _key_of(place: Any) -> Any:
    """The key that a place means: a key or its name as it is, a device by its backend."""
    if isinstance(place, _core.Device):
        return backend_of(place)
    if isinstance(place, str):
        for key in DispatchKey:
            if key.is_backend and key.name.lower() == place:
                return key
    return place


class CustomOp:
    """An operator with its function, made by `custom_op`.

    Calling it is calling the operator. What is registered through it goes with `close()`, or with
    the end of a `with` block that it opens; nothing goes with the object itself.

    Attributes:
        operator: the operator. A hot loop that calls it instead saves a few tens of nanoseconds.
    """

    # A call finds the operator in the slot and calls that: no Python code of ours runs.
    __slots__ = (
        "__call__",
        "__dict__",
        "__weakref__",
        "_fake",
        "_function",
        "_handles",
        "_kernels",
        "_off",
        "_wraps",
        "operator",
    )

    __call__: Callable[..., Any]
    operator: _core.Operator
    _function: Callable[..., Any]
    # Every registration, in order.
    _handles: list[_core.Handle]
    # Kernels of `register_kernel` by key; of those switched off, the registration in front of them.
    _kernels: dict[str, tuple[Any, _core.Handle]]
    _off: dict[str, _core.Handle]
    # The function on meta, until there is a fake kernel.
    _fake: _core.Handle | None
    # Whether kernels could return what they write to.
    _wraps: bool

    def __init__(self) -> None:
        raise BindingError('a CustomOp is made by keyfold.custom_op("ns::name", ...)')

    @classmethod
    def _make(
        cls,
        name: str,
        function: Callable[..., Any],
        schema: str,
        mutates_args: str | Iterable[str],
        places: Sequence[Any],
        mixed_devices: bool,
    ) -> CustomOp:
        made = object.__new__(cls)
        made._function = function
        made._kernels = {}
        made._off = {}
        made._fake = None
        functools.update_wrapper(made, function)
        former = _made.get(name)
        again = former is not None and _source_of(former._function) == _source_of(function)
        try:
            defined = _default.define(schema, mixed_devices=mixed_devices)
        except RegistrationError:
            if not again or former is None or former.closed:
                raise
            # The same function with another signature: the former operator makes way.
            former.close()
            defined = _default.define(schema, mixed_devices=mixed_devices)
        made._handles = [defined]
        try:
            made.operator = _default.get_op(name)
            made.__call__ = made.operator
            made._wraps = check_marks(made.operator, mutates_args)
            kernel = made._wrapped(function)
            for place in places:
                made._keep(_default.impl(name, place, kernel))
            if "CompositeExplicitAutograd" in map(str, places) and "Meta" not in map(str, places):
                made._fake = _default.impl(name, "Meta", made._without_data(kernel))
                made._handles.append(made._fake)
        except BaseException:
            for handle in reversed(made._handles):
                handle.remove()
            raise
        if again and former is not None:
            # Its definition and kernels are replaced; its rules are registered anew by the source.
            former.close()
        _made[name] = made
        return made

    def _keep(self, handle: _core.Handle) -> _core.Handle:
        self._handles = [h for h in self._handles if h.active]
        self._handles.append(handle)
        return handle

    def _wrapped(self, kernel: Any) -> Any:
        return returning_no_argument(self.name, kernel) if self._wraps else kernel

    def _without_data(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function for tensors on meta, as long as there is no fake kernel.

        One that consists of operators can compute shapes; for another, the error says what to do.
        """
        name = self.name
        if not self.schema.returns:
            # It only writes, and here is nothing to write to.
            return functools.wraps(function)(lambda *args, **kwargs: None)

        @functools.wraps(function)
        def fake(*args: Any, **kwargs: Any) -> Any:
            try:
                result = function(*args, **kwargs)
            except Exception as error:
                why = f"its function raised {type(error).__name__}: {error}"
                raise NotSupported(no_fake(name, why)) from error
            for item in result if isinstance(result, (tuple, list)) else (result,):
                problem = _problem(item)
                if problem:
                    raise NotSupported(no_fake(name, f"its function returned {problem}"))
            return result

        return fake

    @property
    def name(self) -> str:
        """The operator's full name."""
        return self.operator.name

    @property
    def schema(self) -> Schema:
        """The operator's schema."""
        return self.operator.schema

    @property
    def function(self) -> Callable[..., Any]:
        """The function that it was made of."""
        return self._function

    @property
    def closed(self) -> bool:
        """Whether what was registered through it was taken back."""
        return not self._handles

    def register_kernel(
        self,
        place: Any,
        fn: Any = None,
        /,
        *,
        with_keyset: bool = False,
        override: str = "error",
    ) -> Any:
        """Register a kernel for one backend or key; it comes before the operator's own function.

        Args:
            place: a device type (`"cuda"`), or a key as `impl` takes it (`"CUDA"`, `"Profiler"`).
            fn: the kernel; without it, this is a decorator.
            with_keyset: whether the kernel gets the call's key set as its first argument.
            override: as for `impl`.

        Returns:
            A handle, whose `remove()` takes it back; the function, where this is a decorator.
        """
        key = _key_of(place)

        def register(function: Any) -> _core.Handle:
            kernel = function
            if callable(function) and not isinstance(function, _core.NativeKernel):
                kernel = self._wrapped(function)
            handle = _default._implement(self.operator, key, kernel, with_keyset, override)
            if not with_keyset:
                self._kernels[str(key)] = (kernel, handle)
            return self._keep(handle)

        return _either_way(register, fn)

    def register_fake(self, fn: Any = None, /, *, override: str = "error") -> Any:
        """Register how the results look, without data. See `keyfold.register_fake`."""

        def register(function: Callable[..., Any]) -> _core.Handle:
            # The function itself was tried so far.
            own, self._fake = self._fake, None
            mode = "shadow" if own is not None and override == "error" else override
            try:
                handle = register_fake(self.operator, function, override=mode)
            except BaseException:
                self._fake = own
                raise
            return self._keep(cast("_core.Handle", handle))

        return _either_way(register, fn)

    def register_autograd(
        self,
        backward: Callable[..., Any] | None = None,
        /,
        *,
        setup_context: Callable[..., Any] | None = None,
        override: str = "error",
    ) -> Any:
        """Register the derivative. See `keyfold.register_autograd`."""

        def register(function: Callable[..., Any]) -> _core.Handle:
            handle = register_autograd(
                self.operator, function, setup_context=setup_context, override=override
            )
            return self._keep(cast("_core.Handle", handle))

        return _either_way(register, backward)

    def register_jvp(
        self, jvp: Callable[..., Any] | None = None, /, *, override: str = "error"
    ) -> Any:
        """Register how tangents go forward. See `keyfold.register_jvp`."""

        def register(function: Callable[..., Any]) -> Any:
            return self._keep(register_jvp(self.operator, function, override=override))

        return _either_way(register, jvp)

    def register_vmap(
        self, func: Callable[..., Any] | None = None, /, *, override: str = "error"
    ) -> Any:
        """Register how a whole batch is computed at once. See `keyfold.register_vmap`."""

        def register(function: Callable[..., Any]) -> _core.Handle:
            handle = register_vmap(self.operator, function, override=override)
            return self._keep(cast("_core.Handle", handle))

        return _either_way(register, func)

    def register_autocast(
        self, category: str | None = None, *, cast_inputs: Any = None, override: str = "error"
    ) -> _core.Handle:
        """Say how autocast treats the arguments. See `keyfold.register_autocast`."""
        code = sys._getframe(1)
        file, line = code.f_code.co_filename, code.f_lineno
        return self._keep(
            _core._register_autocast(self.operator, category, cast_inputs, override, file, line)
        )

    def set_kernel_enabled(self, place: Any, enabled: bool = True) -> KernelSwitch:
        """Switch a kernel of `register_kernel` off (or on again) inside a `with` block.

        While it is off, the operator's own function runs in its place, for every thread: to see
        whether a fast kernel is at fault.

        Args:
            place: what the kernel was registered with.
            enabled: False for off.

        Raises:
            MissingKernel: `register_kernel` has none there.
        """
        key = str(_key_of(place))
        if key not in self._kernels or not self._kernels[key][1].active:
            there = ", ".join(at for at, (_, h) in self._kernels.items() if h.active) or "none"
            raise MissingKernel(
                f"{self.name}: register_kernel gave it no kernel at {key} to switch; it has {there}"
            )
        return KernelSwitch(self, key, enabled)

    def _switch(self, key: str, on: bool) -> None:
        with lock:
            if on and key in self._off:
                self._off[key].remove()
                del self._off[key]
            elif not on and key not in self._off:
                function = self._wrapped(self._function)
                given = (self.operator, key, function, False, "shadow")
                handles = itertools.starmap(_default._implement, [given])
                # One call without a step in Python, where an interrupt would lose the handle.
                self._off.update(zip((key,), handles, strict=True))

    def close(self) -> None:
        """Take back the operator and all that was registered through this object."""
        with lock:
            for handle in [*self._off.values(), *reversed(self._handles)]:
                handle.remove()
            self._off.clear()
            self._kernels.clear()
            self._handles = []
            if _made.get(self.name) is self:
                del _made[self.name]

    def __enter__(self) -> CustomOp:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> str:
        # Like a function: by the module's name for it.
        return str(self.__dict__.get("__qualname__", self.name))

    def __repr__(self) -> str:
        closed = " (closed)" if self.closed else ""
        return f"<CustomOp {self.schema}{closed}>"

    def _repr_html_(self) -> str:
        return of_operator(self.operator)


class KernelSwitch(contextlib.ContextDecorator, _core._Block):
    """The `with` block of `CustomOp.set_kernel_enabled`."""

    def __init__(self, op: CustomOp, key: str, enabled: bool) -> None:
        self._made_of = (op, key, enabled)
        self._before: bool | None = None

    def _recreate_cm(self) -> KernelSwitch:
        # A decorated function that calls itself has a block for each call.
        return KernelSwitch(*self._made_of)

    def _begin(self) -> None:
        op, key, enabled = self._made_of
        self._before = key not in op._off
        op._switch(key, enabled)

    def _leave(self, failed: bool) -> None:
        op, key, _ = self._made_of
        if self._before is not None:
            op._switch(key, self._before)


def _either_way(register: Callable[[Any], _core.Handle], function: Any) -> Any:
    """Registers a function and gives the handle; without a function, a decorator that does."""
    if function is not None:
        return register(function)

    def decorate(function: _F) -> _F:
        register(function)
        return function

    return decorate
