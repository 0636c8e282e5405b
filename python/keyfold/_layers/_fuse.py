"""`fuse`: functions whose calls are recorded once and computed again without them."""

from __future__ import annotations

import functools
import gc
import inspect
import threading
import types
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence, MutableSet
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

import numpy as np

from keyfold import _core
from keyfold._errors import InvalidValue
from keyfold._layers._pipeline import pipeline
from keyfold._layers._watched import containers, take_back, watched
from keyfold._trace._structure import Spec, put_together, take_apart

__all__ = ["fuse"]

P = ParamSpec("P")
R = TypeVar("R")

# The most forms of arguments that are remembered as not recordable.
_MAX_REFUSED = 256

# Results besides arrays: each call gives the recorded one.
_CONSTANTS = frozenset(
    {type(None), bool, int, float, complex, str, bytes, _core.DType, _core.Device}
)


# Arguments that one recording can't stand for: what they hold isn't seen.
_CHANGING = (Iterator, MutableMapping, MutableSequence, MutableSet)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, _core.Tensor | np.ndarray)


def _key(spec: Spec) -> Any:
    """A structure of arguments as something to compare and hash; its leaves are left out."""
    if "tuple" in spec:
        return ("tuple", spec["class"], *map(_key, spec["tuple"]))
    if "list" in spec:
        return ("list", *map(_key, spec["list"]))
    if "dict" in spec:
        return ("dict", *((type(key), key, _key(item)) for key, item in spec["dict"]))
    return None


def _statics(spec: Spec) -> Iterator[Any]:
    if "static" in spec:
        yield spec["static"]
    for item in spec.get("tuple") or spec.get("list") or ():
        yield from _statics(item)
    for _, item in spec.get("dict", ()):
        yield from _statics(item)


def _is_as_given(tree: Any, spec: Spec, given: list[Any]) -> bool:
    """Whether arguments still have the structure and the objects that were put together."""
    found: list[tuple[str, Any]] = []
    now = take_apart(tree, "", found, lambda leaf: not _is_tree(leaf), "input")
    same = len(found) == len(given) and _key(now) == _key(spec)
    return same and all(one is leaf for (_, one), leaf in zip(found, given, strict=True))


class _Recorded:
    """A recording, and how its results are arranged."""

    def __init__(self, recording: _core._Recording, result: Spec) -> None:
        self.recording = recording
        self.key: Any = None
        self.result = result
        self.is_one = "output" in result

    def results(self, outputs: list[Any]) -> Any:
        return outputs[0] if self.is_one else put_together(self.result, "output", outputs)


class fuse(_core._Fused, Generic[P, R]):  # noqa: N801 - used as a decorator
    """Record a function's operations once, and compute them as one plan from then on.

    The first call with arguments of certain forms (structure, shapes, strides, dtypes, devices, and
    the values of numbers and other arguments) records the operators that the function calls,
    without computing anything; the plan computes pointwise operations that read each other's
    results in one pass over memory. Later calls with such arguments don't run the function's Python
    code. Results are those of the function, bit for bit.

    A recording is made anew when a kernel is registered or removed, when a global or enclosing
    variable that the function reads is another object, and when a tensor that it uses besides its
    arguments is held by nobody else any more, or is made to require gradients. Attributes of
    objects and items of containers aren't watched, nor are functions that the function reaches
    through them or through operators: give what changes as an argument. keyfold's operators read
    arrays besides the arguments at each call; what is computed otherwise, as by NumPy or Python,
    stays as it was recorded.

    While the function is recorded, NumPy arrays among its arguments are `keyfold.Tensor`s, so that
    `x ** 2` is keyfold's power. Results are NumPy arrays if all arrays among the arguments are.

    Where a layer is at work, as for gradients, `vmap`, autocast or a profile, the function runs in
    a `pipeline` each time; inside a pipeline or a trace it is called as it is. A function that
    can't be recorded, since it reads elements, branches on them, writes to memory that it wasn't
    given, assigns attributes, globals or enclosing variables, changes a list or dict that it was
    given, keeps a tensor in another one, or returns objects other than arrays and numbers, runs as
    it is; `explain()` says so. So does one that is given an iterator, a set or another collection
    that may change, besides lists and dicts.

    Args:
        f: the function. Its arguments and results are arrays (keyfold's or NumPy's) and other
            objects, also in lists, tuples and dicts.
        recordings: the most recordings that are kept, the latest ones. A recording keeps alive the
            arguments that aren't arrays, as a method's object.

    Raises:
        InvalidValue: `recordings` is 0.

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

    def __init__(self, f: Callable[P, R], /, *, recordings: int = 16) -> None:
        if recordings < 1:
            raise InvalidValue(f"fuse(): recordings is {recordings}; at least 1 is kept")
        functools.update_wrapper(self, f)
        self._f = f
        self._capacity = recordings
        self._lock = threading.Lock()
        # All recordings, the oldest first; by the structure of arguments. The class below has those
        # of calls with arrays alone, which it computes.
        self._kept: list[_Recorded] = []
        self._recorded: dict[Any, tuple[_Recorded, ...]] = {}
        self._refused: dict[Any, str] = {}
        self._counts = {"recorded": 0, "replayed": 0, "in_pipeline": 0, "eager": 0}

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind as a function in a class binds."""
        return self if instance is None else types.MethodType(self, instance)

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
            """Call the function, or compute what it computed before for such arguments."""
            raise NotImplementedError

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        found: list[tuple[str, Any]] = []
        spec = take_apart((args, kwargs), "", found, lambda leaf: not _is_tree(leaf), "input")
        leaves = tuple(leaf for _, leaf in found)
        is_plain = not kwargs and all("input" in one for one in spec["tuple"][0]["tuple"])
        key = None if is_plain else _key(spec)
        mode = _core._fuse_mode(list(leaves))
        if mode == "replay":
            known = self._recorded.get(key, ())
            for one in () if is_plain else known:
                outputs = one.recording.replay(leaves)
                if outputs is not None:
                    self._counts["replayed"] += 1
                    return cast(R, one.results(outputs))
            form = (key, _core.is_grad_enabled(), *map(_form, leaves))
            if form not in self._refused:
                made = self._record(spec, leaves)
                if not isinstance(made, str) and _escapes(made):
                    made = "it keeps a tensor, or something else does"
                if isinstance(made, str):
                    self._refuse(form, made)
                elif (outputs := made.recording.replay(leaves)) is not None:
                    self._keep(key, made)
                    self._counts["recorded"] += 1
                    self._counts["replayed"] += 1
                    return cast(R, made.results(outputs))
        elif mode == "pipeline":
            self._counts["in_pipeline"] += 1
            with pipeline():
                return self._f(*args, **kwargs)
        self._counts["eager"] += 1
        return self._f(*args, **kwargs)

    def _record(self, spec: Spec, leaves: tuple[Any, ...]) -> _Recorded | str:
        """Record the function; the reason if it can't be recorded."""
        recorder = _core._Recorder()
        outputs: list[tuple[str, Any]] = []
        arguments = [*leaves, getattr(self._f, "__self__", None)]
        reads, effect = watched(self._f, arguments)
        if effect is not None:
            return effect
        if inspect.iscoroutinefunction(self._f):
            return "it is a coroutine function"
        if any(isinstance(leaf, _CHANGING) and not _is_array(leaf) for leaf in leaves):
            return "an argument is an iterator, or a collection that may change"
        if any(isinstance(leaf, tuple) for leaf in leaves):
            return "an argument is of a class of its own that is a tuple"
        read = [value for _, _, value in reads]
        before = [(one, one.copy()) for one in containers([*read, *arguments])]
        placeholders: list[_core.Tensor] = []
        try:
            given = []
            for leaf in leaves:
                placeholder = recorder.placeholder(leaf)
                if placeholder is not None:
                    placeholders.append(placeholder)
                given.append(leaf if placeholder is None else placeholder)
            args, kwargs = put_together(spec, "input", given)
            with recorder.guard():
                result = self._f(*args, **kwargs)
            if take_back(before, recorder):
                return "it keeps a tensor in a list or dict"
            if not _is_as_given((args, kwargs), spec, given):
                return "it changes a list or dict among its arguments"
            if _has_other_tuples(result):
                return "a result is of a class of its own that is a tuple"
            arranged = take_apart(result, "", outputs, _is_array, "output")
            tensors = [output for _, output in outputs]
            if not all(isinstance(output, _core.Tensor) for output in tensors):
                return "a result is another library's array"
            other = next(
                (leaf for leaf in _statics(arranged) if type(leaf) not in _CONSTANTS), None
            )
            if other is not None:
                return f"a result is a {type(other).__name__}"
            if any(output.requires_grad for output in tensors):
                return "a result requires gradients"
            if any(placeholder.requires_grad for placeholder in placeholders):
                return "an argument that it writes to requires gradients"
            del result
            recording = recorder.finish(leaves, placeholders, tensors, reads)
        except Exception as error:
            # A call without the recording raises the function's own errors.
            take_back(before, recorder)
            return recorder.refused() or f"it raised {type(error).__name__}"
        return _Recorded(recording, arranged)

    def _refuse(self, form: Any, reason: str) -> None:
        if len(self._refused) >= _MAX_REFUSED:
            self._refused.clear()
        self._refused[form] = reason

    def _keep(self, key: Any, made: _Recorded) -> None:
        """Add a recording, and drop those that aren't current, and the oldest above the limit."""
        with self._lock:
            kept = [one for one in self._kept if one.recording.is_current()]
            self._kept = [*kept, made][-self._capacity :]
            made.key = key
            # Other threads may go through the lists: they are replaced, not changed.
            groups: dict[Any, tuple[_Recorded, ...]] = {}
            for one in self._kept:
                groups[one.key] = (*groups.get(one.key, ()), one)
            self._recorded = groups
            self._set_plain(
                [
                    (one.recording, None if one.is_one else one.results)
                    for one in groups.get(None, ())
                ]
            )

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
        with self._lock:
            self._kept, self._recorded = [], {}
            self._set_plain([])
            self._refused.clear()

    def __reduce__(self) -> str:
        """Pickle and copy as functions are: by name, and as the same object."""
        return getattr(self, "__qualname__", repr(self))

    def __repr__(self) -> str:
        name = getattr(self._f, "__qualname__", repr(self._f))
        return f"<fuse of {name}>"

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._f)


def _escapes(made: _Recorded) -> bool:
    if not made.recording.escapes():
        return False
    # Objects that refer to each other may keep it.
    gc.collect()
    return made.recording.escapes()


def _is_tree(value: Any) -> bool:
    return type(value) in (list, dict, tuple) or _is_named_tuple(value)


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _has_other_tuples(tree: Any) -> bool:
    """Whether a result has tuples that can't be put together from their items alone."""
    if isinstance(tree, tuple) and not _is_tree(tree):
        return True
    items = tree.values() if type(tree) is dict else tree if _is_tree(tree) else ()
    return any(_has_other_tuples(item) for item in items)


def _form(leaf: Any) -> Any:
    """The form of an argument, to remember what can't be recorded."""
    if _is_array(leaf):
        return (str(leaf.dtype), leaf.shape, leaf.strides)
    return (type(leaf), leaf if type(leaf) in (int, float, str, bool, complex) else id(leaf))
