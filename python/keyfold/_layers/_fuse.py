"""`fuse`: functions whose calls are recorded once and computed again without them."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import threading
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast, overload

from keyfold import _core
from keyfold._errors import Error, GradientError, InvalidValue
from keyfold._layers._arguments import Arguments, Given, is_array, replaced
from keyfold._layers._attempt import Attempt
from keyfold._layers._changes import WRITES_ARRAY, changed, snapshot
from keyfold._layers._pipeline import pipeline
from keyfold._layers._results import Recorded, Results
from keyfold._layers._watched import Reads, watched

__all__ = ["fuse"]

P = ParamSpec("P")
R = TypeVar("R")

# After this many recordings without a replay so many calls aren't recorded.
_MAX_FRUITLESS, _REST = 32, 1000

# The most forms of arguments that are remembered as not recordable.
_MAX_REFUSED = 256


class _Signature:
    """The signature of what a fused function calls; the class has its constructor's own."""

    def __get__(self, instance: Any, owner: Any = None) -> inspect.Signature:
        if instance is None:
            raise AttributeError("__signature__")
        return inspect.signature(instance._f)


class fuse(_core._Fused, Generic[P, R]):  # noqa: N801 - used as a decorator
    """Record a function's operations once, and compute them as one plan from then on.

    The first call with arguments of certain forms (structure, shapes, strides, dtypes, devices, and
    the values of numbers and other arguments) records the operators that the function calls,
    without computing anything; the plan computes pointwise operations that read each other's
    results in one pass over memory. Later calls with such arguments don't run the function's Python
    code. Results are those of the function, bit for bit.

    A recording is made anew when a kernel is registered or removed, when a global or enclosing
    variable that the function reads is another object, and when a tensor that it uses besides its
    arguments is held by nobody else any more, or is made to require gradients; also when a list,
    dict, set or attribute that it reaches, as far as its code names it, holds other objects. What
    libraries read isn't watched. Operators read arrays besides the arguments at each call; what
    NumPy or Python computes stays as it was recorded.

    While the function is recorded, NumPy arrays among its arguments are `keyfold.Tensor`s, so that
    `x ** 2` is keyfold's power. Results are NumPy arrays if all arrays among the arguments are.

    Where a layer is at work, as for gradients, `vmap`, autocast or a profile, the function runs in
    a `pipeline` each time; inside a pipeline or a trace it is called as it is. A function that
    can't be recorded, since it reads elements, branches on them, writes to memory that it wasn't
    given, assigns attributes, globals or enclosing variables, changes a list or dict, keeps a
    tensor, or returns objects other than arrays and numbers, runs as it is; `explain()` says so. So
    does one that is given an iterator, a set or another collection that may change, besides lists
    and dicts. The call that finds that out runs from there on, so that its Python code runs once.

    Errors of values are raised when results are computed, as in a pipeline: the function can't
    catch them. Operations whose results nobody reads are computed if they may fail, or have a
    kernel of the user's own.

    Args:
        f: the function. Its arguments and results are arrays (keyfold's or NumPy's) and other
            objects, also in lists, tuples and dicts. Without it `fuse` gives a decorator with the
            options: `@kf.fuse(recordings=4)`.
        recordings: the most recordings that are kept, the latest ones. A recording keeps alive the
            arguments that aren't arrays, as a method's object.

    Raises:
        InvalidValue: `recordings` isn't a number of at least 1, or `f` is a static or class method:
            `fuse` goes under those.
        TypeError: `f` can't be called.

    Example:
        >>> import keyfold as kf
        >>> @kf.fuse
        ... def swish(x):
        ...     return x * kf.sigmoid(x)
        >>> x = kf.asarray([0.0, 1.0])
        >>> bool((swish(x) == x * kf.sigmoid(x)).all())
        True
        >>> swish(x + 1.0).shape, swish.stats()["replayed"]
        ((2,), 2)
        >>> print(swish.explain())
        1 recording, 2 replays
          2 operations in 1 step
    """

    if TYPE_CHECKING:

        @overload
        def __new__(cls, f: Callable[P, R], /, *, recordings: int = 16) -> fuse[P, R]: ...

        # Without a function it gives a decorator.
        @overload
        def __new__(  # type: ignore[misc]
            cls, f: None = None, /, *, recordings: int = 16
        ) -> Callable[[Callable[P, R]], fuse[P, R]]: ...

    def __new__(cls, f: Any = None, /, *, recordings: int = 16) -> Any:
        if f is None:
            return functools.partial(cls, recordings=recordings)
        return super().__new__(cls)

    def __init__(self, f: Callable[P, R], /, *, recordings: int = 16) -> None:
        if not isinstance(recordings, int) or recordings < 1:
            raise InvalidValue(f"fuse(): recordings is {recordings!r}; keep at least 1")
        if isinstance(f, staticmethod | classmethod):
            kind = type(f).__name__
            raise InvalidValue(f"fuse(): f is a {kind}; put @{kind} above @fuse")
        if not callable(f):
            raise TypeError(f"fuse(): f is {f!r}, which can't be called")
        # Not the attributes of an object that is called: they are its state.
        functools.update_wrapper(self, f, updated=())
        self._f = f
        self._capacity = recordings
        self._lock = threading.Lock()
        # All recordings, the oldest first; by the structure of arguments. The class below has those
        # of calls with arrays alone, which it computes.
        self._kept: list[Recorded] = []
        self._recorded: dict[Any, tuple[Recorded, ...]] = {}
        self._refused: dict[Any, str] = {}
        # Forms of calls that changed something once.
        self._changed: set[Any] = set()
        # Recordings since one was replayed, and calls that aren't recorded after many of these.
        self._fruitless, self._seen = 0, 0
        self._rest: float = 0
        self._counts = {"recorded": 0, "replayed": 0, "in_pipeline": 0, "eager": 0}

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind as a function in a class binds."""
        return self if instance is None else types.MethodType(self, instance)

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
            """Call the function, or compute what it computed before for such arguments."""
            raise NotImplementedError

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        try:
            arguments = Arguments.of(args, kwargs)
        except RecursionError:
            arguments = None
        if arguments is None:
            reason = "a list or dict among the arguments is given twice, too deep or too long"
            self._refuse(None, reason)
            return self._eager(args, kwargs)
        leaves = arguments.leaves
        mode = _core._fuse_mode(list(leaves))
        if mode == "replay":
            known = () if arguments.is_plain else self._recorded.get(arguments.key(), ())
            for one in known:
                if not one.may_be_given(arguments, (args, kwargs)):
                    continue
                outputs = one.recording.replay(leaves)
                if outputs is not None:
                    self._counts["replayed"] += 1
                    return cast(R, one.results.put(outputs, leaves))
            form = arguments.form()
            if form not in self._refused:
                return self._first(args, kwargs, arguments, form)
        elif mode == "pipeline":
            self._counts["in_pipeline"] += 1
            with pipeline():
                result = self._f(*args, **kwargs)
            return cast(R, replaced(result, _for_numpy)) if arguments.are_numpy() else result
        elif mode == "eager":
            self._refuse(None, "an argument is another library's array, or a number of NumPy's")
        return self._eager(args, kwargs)

    def _eager(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        self._counts["eager"] += 1
        return self._f(*args, **kwargs)

    def _first(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], arguments: Arguments, form: Any
    ) -> R:
        """Record the function and compute the recording; or run it, where it can't be recorded."""
        if self._rest > 0:
            self._rest -= 1
            return self._eager(args, kwargs)
        reads = watched(self._f, arguments.leaves)
        reason = self._unrecordable(arguments, (args, kwargs), reads)
        if reason is not None:
            self._refuse(form, reason)
            return self._eager(args, kwargs)
        recorder = _core._Recorder()
        try:
            given = Given(arguments, recorder, (args, kwargs))
            before = snapshot(reads.state)
            attempt = Attempt(arguments, form, recorder, given, reads, before)
            if attempt.writes_unseen():
                raise Error("it reads a NumPy array that shares memory with a tensor")
        except Error as error:
            self._refuse(form, str(error))
            recorder.close(True)
            return self._eager(args, kwargs)
        try:
            try:
                with recorder.guard():
                    result = self._f(*given.args, **given.kwargs)
            except BaseException as error:
                if (reason := attempt.again_after(error)) is None:
                    self._counts["eager"] += 1
                    if isinstance(error, GradientError):
                        self._refuse(form, "it writes to an argument what requires gradients")
                    raise
            if reason is None:
                results = self._arranged(attempt, result)
                if not isinstance(results, str):
                    del result
                    return self._computed(attempt, results)
                is_again = attempt.again_for(result)
                attempt.run_instead(results)
                if not is_again:
                    self._counts["eager"] += 1
                    return cast(R, given.result(result, attempt.held()))
            else:
                self._refuse(form, reason)
        finally:
            # Also where an interrupt came in between.
            given.forget()
            recorder.close(True)
        return self._eager(args, kwargs)

    def _unrecordable(self, arguments: Arguments, call: Any, reads: Reads) -> str | None:
        """Why a call can't be recorded, as far as that is known before."""
        f = self._f.func if isinstance(self._f, functools.partial) else self._f
        called = getattr(type(f), "__call__", None)  # noqa: B004 - its value, not a test
        if inspect.iscoroutinefunction(f) or inspect.iscoroutinefunction(called):
            return "it is a coroutine function"
        if inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f):
            return "it is a generator function"
        reason = arguments.unrecordable() or reads.reason
        if reason is None and any(id(one) in reads.reached for one in arguments.holders(call)):
            reason = "it reads an argument otherwise than as an argument, too"
        return reason

    def _arranged(self, attempt: Attempt, result: Any) -> Results | str:
        """The results of a function that returned; the reason if it can't be recorded."""
        form, given, recorder = attempt.form, attempt.given, attempt.recorder
        reason = "it changes a list or dict among its arguments" if given.hand_back() else None
        reason = reason or recorder.refused()
        change = None if reason is not None else changed(attempt.before)
        if change == WRITES_ARRAY:
            self._drop(math.inf)
        if change is None and reason is None and not recorder.watch(attempt.reads.guards):
            change = "it changes what it reads"
        if change is not None and form not in self._changed:
            # It may have filled a cache, and change nothing from now on.
            self._changed.add(form)
            form = None
        reason = reason or change
        if reason is None and recorder.mixes():
            reason = "it writes to an argument that shares its memory"
        if reason is None and recorder.has_outdated():
            reason = "it writes to an array that an operation has read"
        results = reason or Results.of(result, recorder, given, attempt.reached())
        if isinstance(results, str):
            self._refuse(form, results)
        return results

    def _computed(self, attempt: Attempt, results: Results) -> R:
        """Compute the results by a recording that is kept, or without, if it keeps a tensor."""
        arguments, recorder = attempt.arguments, attempt.recorder
        attempt.given.forget()
        if attempt.escapes():
            reason = "it keeps a tensor, or something else does"
            self._refuse(attempt.form, reason)
            self._counts["eager"] += 1
            attempt.run_instead(reason)
            made = recorder.results(arguments.are_numpy())
            return cast(R, results.put(made, arguments.leaves))
        reached = attempt.reads.reached
        arrays = [key for key, one in reached.items() if is_array(one)]
        recording = recorder.finish(arguments.leaves, arrays)
        made = recording.compute(arguments.leaves)
        trees = {key for key, one in reached.items() if type(one) in (list, dict)}
        self._keep(Recorded(recording, results, arguments.key(), trees))
        self._counts["recorded"] += 1
        self._counts["replayed"] += 1
        return cast(R, results.put(made, arguments.leaves))

    def _refuse(self, form: Any, reason: str) -> None:
        """Remember a form of arguments, or without one the reason alone."""
        if len(self._refused) >= _MAX_REFUSED:
            self._refused.clear()
            self._changed.clear()
        self._refused[form] = reason

    def _keep(self, made: Recorded) -> None:
        """Add a recording, and drop those that aren't current, and the oldest above the limit."""
        # The first call of a recording counts as a replay, too.
        replays = self.stats()["replayed"] - self._counts["recorded"]
        self._fruitless = self._fruitless + 1 if replays == self._seen else 0
        self._seen = replays
        if self._fruitless >= _MAX_FRUITLESS:
            self._rest = _REST
        # Without the lock, since it may run Python's code, as dropping recordings may.
        outdated = {one for one in self._kept if not one.recording.is_current()}
        with self._lock:
            if self._rest == math.inf:  # another thread has seen a write
                return
            old = self._kept, self._recorded
            kept = [one for one in self._kept if one not in outdated]
            self._kept = [*kept, made][-self._capacity :]
            # Other threads may go through the lists: they are replaced, not changed.
            groups: dict[Any, tuple[Recorded, ...]] = {}
            for one in self._kept:
                groups[one.key] = (*groups.get(one.key, ()), one)
            self._recorded = groups
            self._set_plain(
                [
                    (one.recording, None if one.results.is_one else one.results.put)
                    for one in groups.get(None, ())
                ]
            )
        del old

    def stats(self) -> dict[str, int]:
        """Count the calls.

        Returns:
            `recorded`: recordings made; `replayed`: calls that a recording computed; `in_pipeline`:
            calls of the function in a pipeline, since a layer was at work; `eager`: calls of the
            function as it is.
        """
        return self._counts | {"replayed": self._counts["replayed"] + self._replayed}

    def explain(self) -> str:
        """Say what was recorded, and why calls weren't."""
        recordings = self._kept
        s = "" if len(recordings) == 1 else "s"
        lines = [f"{len(recordings)} recording{s}, {self.stats()['replayed']} replays"]
        for one in recordings:
            operations, steps = one.recording.counts()
            s = "" if steps == 1 else "s"
            concurrent = one.recording.concurrent()
            rest = f", {concurrent} of them concurrently" if concurrent else ""
            lines.append(f"  {operations} operations in {steps} step{s}{rest}")
        for reason in dict.fromkeys(self._refused.values()):
            lines.append(f"not recorded: {reason}")
        return "\n".join(lines)

    def clear(self) -> None:
        """Drop all recordings, and what is known of calls that can't be recorded."""
        self._drop(0)

    def _drop(self, rest: float) -> None:
        """Drop all recordings; the next `rest` calls aren't recorded."""
        with self._lock:
            old = self._kept, self._recorded
            self._kept, self._recorded = [], {}
            self._set_plain([])
            self._refused.clear()
            self._changed.clear()
            self._fruitless, self._rest = 0, rest
        # Without the lock: what they held may run Python's code when it is dropped.
        del old

    def __copy__(self) -> fuse[P, R]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> fuse[P, R]:
        """Copy as functions are: as the same object; that of a method belongs to the copied one."""
        if not isinstance(self._f, types.MethodType):
            return self
        return fuse(copy.deepcopy(self._f, memo), recordings=self._capacity)

    def __reduce__(self) -> Any:
        """Pickle as functions are: by name; that of a method as the method is."""
        if isinstance(self._f, types.MethodType):
            return functools.partial(fuse, recordings=self._capacity), (self._f,)
        return getattr(self, "__qualname__", repr(self))

    def __repr__(self) -> str:
        name = getattr(self._f, "__qualname__", repr(self._f))
        return f"<fuse of {name}>"

    __signature__ = _Signature()


def _for_numpy(value: Any) -> Any:
    """What a pipeline has computed, as NumPy's array."""
    is_computed = isinstance(value, _core.Tensor) and "Deferred" in value.keys
    return _core._for_numpy(value) if is_computed else value
