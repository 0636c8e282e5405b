"""`opcheck`: whether an operator keeps what its schema promises, alone and under each layer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from keyfold import _core
from keyfold._errors import (
    Error,
    GradientError,
    KernelPanic,
    KernelReturnError,
    MissingKernel,
    NotSupported,
    OpCheckError,
)
from keyfold._gradcheck import gradcheck

__all__ = ["OpCheckReport", "opcheck"]

_Array = np.ndarray[Any, Any]

# More elements than this and a gradient check takes minutes: it calls the operator twice for each.
_MOST_ELEMENTS = 2000
_FLOATS = ("float16", "bfloat16", "float32", "float64")


class OpCheckReport(dict[str, str]):
    """What `opcheck` found: from a test's name to `"passed"`, `"skipped: why"` or the failure.

    Attributes:
        operator: the operator's name.
    """

    def __init__(self, operator: str, results: dict[str, str]) -> None:
        super().__init__(results)
        self.operator = operator

    @property
    def failures(self) -> dict[str, str]:
        """The tests that failed, and why."""
        return {
            name: text
            for name, text in self.items()
            if text != "passed" and not text.startswith("skipped: ")
        }

    def __str__(self) -> str:
        width = max(map(len, self), default=0)
        lines = [f"opcheck {self.operator}"]
        failures = self.failures
        for name, text in self.items():
            first, *rest = text.splitlines() or [""]
            failed = "FAILED: " if name in failures else ""
            lines.append(f"  {name.ljust(width)}  {failed}{first}")
            lines += [f"  {' ' * width}  {line}" for line in rest]
        return "\n".join(lines)

    __repr__ = __str__


def opcheck(
    op: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    *,
    tests: str | Iterable[str] | None = None,
    rtol: float = 1e-4,
    atol: float = 1e-6,
    raise_exception: bool = True,
) -> OpCheckReport:
    """Check that an operator does what its schema says, on example arguments.

    The arguments are copied, so the operator may write to them. The tests:

    - `schema`: it changes no argument that isn't marked `(a!)`, shares memory with arguments and
      among results only where the schema says so, gives a view where it says so, returns what it
      promises, and the same for the same arguments (random numbers are repeated);
    - `layouts`: it gives the same for other strides, and takes arguments without elements or
      dimensions, or refuses them with an error of its own;
    - `meta`: its Meta kernel (`register_fake`) tells shape, dtype and kind of each result;
    - `autograd`: its derivative agrees with finite differences in float64;
    - `vmap`: over a batch it gives what a loop gives;
    - `autocast`: it works under `autocast`, and isn't touched where it has no category;
    - `trace`: a trace of the call, run again, gives the same.

    Args:
        op: the operator, one of its packets, or its name.
        args: the arguments of an example call. Small ones do.
        kwargs: its keyword arguments.
        tests: the names of the tests to run; all of them by default.
        rtol: how far numbers may be apart, as a part of them,
        atol: and in addition.
        raise_exception: False to only report failures.

    Returns:
        A dict from each test's name to `"passed"`, `"skipped: why"` or what failed.

    Raises:
        OpCheckError: a test failed; its `report` has them all.
        UnknownOperator, BindingError: no such operator, or arguments that don't fit.
    """
    given = dict(kwargs or {})
    operator = _core._overload_for(op, tuple(args), given)
    names = list(_TESTS) if tests is None else [tests] if isinstance(tests, str) else list(tests)
    unknown = [name for name in names if name not in _TESTS]
    if unknown:
        raise ValueError(f"no such test: {', '.join(unknown)}; the tests are {', '.join(_TESTS)}")
    state = _core.get_rng_state()
    try:
        subject = _Subject(operator, args, given, rtol, atol, state)
        results = {name: _run(_TESTS[name], subject) for name in names}
    finally:
        _core.set_rng_state(state)
    report = OpCheckReport(operator.name, results)
    if report.failures and raise_exception:
        raise OpCheckError(str(report), report)
    return report


class _Skip(Exception):  # noqa: N818 - no error
    """A test has nothing to check here."""


class _Failed(Exception):  # noqa: N818 - what a test found
    """A test found something."""


def _run(test: Callable[[_Subject], None], subject: _Subject) -> str:
    try:
        test(subject)
    except _Skip as why:
        return f"skipped: {why}"
    except _Failed as failure:
        return str(failure)
    return "passed"


def _why(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


class _Subject:
    """The operator with its example arguments, in declaration order."""

    def __init__(
        self,
        operator: _core.Operator,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        rtol: float,
        atol: float,
        random_state: tuple[int, int],
    ) -> None:
        self.operator = operator
        self.rtol, self.atol = rtol, atol
        self.random_state = random_state
        self.arguments, self.returns = _core._schema_parts(operator)
        names = [name for name, _, _, _ in self.arguments]
        self.positional = len(args)
        self.names = [*names[: len(args)], *kwargs]
        self.values = [_detached(value) for value in (*args, *kwargs.values())]

    def alias_of(self, name: str) -> tuple[list[str], bool]:
        """The alias sets of an argument, and whether it is written to."""
        return next((sets, write) for n, _, sets, write in self.arguments if n == name)

    @property
    def writes(self) -> bool:
        return any(write for _, _, _, write in self.arguments)

    def call(self, values: Sequence[Any]) -> Any:
        """Call the operator with the same random numbers each time."""
        _core.set_rng_state(self.random_state)
        return self.call_as_it_is(values)

    def call_as_it_is(self, values: Sequence[Any]) -> Any:
        names = self.names[self.positional :]
        named = dict(zip(names, values[self.positional :], strict=True))
        return self.operator(*values[: self.positional], **named)

    def example(self) -> tuple[list[Any], Any]:
        """Copies of the arguments, and what the operator makes of them."""
        values = _map(self.values, _copy)
        try:
            return values, self.call(values)
        except Exception as error:
            raise _Failed(f"the call raised {_why(error)}") from error

    def tensors(self, values: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        """The arrays among the arguments, with the names of their arguments."""
        for name, value in zip(self.names, values, strict=True):
            for item in _arrays(value):
                yield name, item

    def needs_tensors(self) -> None:
        if not any(True for _ in self.tensors(self.values)):
            raise _Skip("it has no tensor arguments")

    def compare(self, found: Any, wanted: Any, what: str) -> None:
        """Fail unless two results are the same, as closely as numbers can be."""
        problem = _difference(found, wanted, self.rtol, self.atol)
        if problem:
            raise _Failed(f"{what}: {problem}")


# Arguments and results


def _is_array(value: Any) -> bool:
    return isinstance(value, (_core.Tensor, np.ndarray))


def _arrays(value: Any) -> Iterator[Any]:
    """The arrays in a value, however deep."""
    if _is_array(value):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _arrays(item)


def _map(value: Any, f: Callable[[Any], Any]) -> Any:
    """The same value with each array replaced."""
    if _is_array(value):
        return f(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_map(item, f) for item in value)
    return value


def _detached(value: Any) -> Any:
    return _map(value, lambda x: x.detach() if isinstance(x, _core.Tensor) else x)


def _dtype(x: Any) -> str:
    return str(x.dtype)


def _is_real(x: Any) -> bool:
    return _is_array(x) and (isinstance(x, np.ndarray) or x.device.type != "meta")


def _numbers(x: Any) -> _Array:
    """The elements as NumPy has them; it has no bfloat16."""
    if isinstance(x, np.ndarray):
        return x
    x = x.detach()
    if x.device.type != "cpu":
        x = x.to("cpu")
    return np.asarray((x.to("float32") if _dtype(x) == "bfloat16" else x).numpy())


def _copy(x: Any) -> Any:
    """A copy with the strides of the original."""
    if not _is_real(x):
        return x
    return _with_strides(x, tuple(np.argsort([-abs(s) for s in x.strides], kind="stable")), 1)


def _with_strides(x: Any, order: Sequence[int], step: int) -> Any:
    """A copy whose dimensions lie in memory in that order, each `step` elements apart."""
    if x.ndim == 0:
        return x.copy() if isinstance(x, np.ndarray) else x.clone()
    if isinstance(x, np.ndarray):
        sizes = [x.shape[d] for d in order]
        sizes[-1] *= step
        room = np.zeros(sizes, dtype=x.dtype)[..., ::step]
        copy = room.transpose(np.argsort(order))
        copy[...] = x
        return copy
    from keyfold._creation import empty

    sizes = [x.shape[d] for d in order]
    sizes[-1] *= step
    room = empty(sizes, dtype=x.dtype, device=x.device)[..., ::step]
    copy = room.permute([int(i) for i in np.argsort(order)])
    copy.copy_(x)
    return copy


def _bounds(x: Any) -> tuple[int, int] | None:
    """The first address and the one behind the last of an array's elements; None if it has none."""
    if isinstance(x, np.ndarray):
        if x.size == 0:
            return None
        low, high = np.lib.array_utils.byte_bounds(x)
        return int(low), int(high)
    if x.size == 0 or x.device.type == "meta":
        return None
    start, size = x.data_ptr(), x.itemsize
    reach = [(n - 1) * s * size for n, s in zip(x.shape, x.strides, strict=True)]
    return (
        start + sum(r for r in reach if r < 0),
        start + sum(r for r in reach if r > 0) + size,
    )


def _share(a: Any, b: Any) -> bool:
    """Whether two arrays have memory in common, gaps between elements included."""
    x, y = _bounds(a), _bounds(b)
    return x is not None and y is not None and x[0] < y[1] and y[0] < x[1]


def _describe(x: Any) -> str:
    if _is_array(x):
        where = "" if isinstance(x, np.ndarray) else f" on {x.device}"
        return f"{_dtype(x)}{list(x.shape)}{where}"
    return f"{type(x).__name__} {x!r}"


def _difference(found: Any, wanted: Any, rtol: float, atol: float) -> str | None:
    """How two results differ; None if they don't."""
    if isinstance(wanted, (tuple, list)):
        if not isinstance(found, (tuple, list)) or len(found) != len(wanted):
            count = len(found) if isinstance(found, (tuple, list)) else 1
            return f"{count} results instead of {len(wanted)}"
        for place, (a, b) in enumerate(zip(found, wanted, strict=True)):
            problem = _difference(a, b, rtol, atol)
            if problem:
                return f"result {place}: {problem}"
        return None
    if not (_is_array(found) and _is_array(wanted)):
        if isinstance(found, float) and isinstance(wanted, float):
            same = bool(np.isclose(found, wanted, rtol=rtol, atol=atol, equal_nan=True))
        else:
            same = bool(found == wanted)
        return None if same else f"{_describe(found)} instead of {_describe(wanted)}"
    if _dtype(found) != _dtype(wanted) or tuple(found.shape) != tuple(wanted.shape):
        return f"{_describe(found)} instead of {_describe(wanted)}"
    if not (_is_real(found) and _is_real(wanted)):
        return None
    a, b = _numbers(found), _numbers(wanted)
    if a.dtype.kind not in "fc":
        fine = a == b
    else:
        with np.errstate(invalid="ignore", over="ignore"):
            fine = np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
    if fine.all():
        return None
    at = tuple(int(i) for i in np.argwhere(~fine)[0])
    return (
        f"{int((~fine).sum())} of {a.size} elements differ: at {list(at)} {a[at]!s} instead of "
        f"{b[at]!s}"
    )


# The tests


def _schema(subject: _Subject) -> None:
    values, result = subject.example()
    before = _map(subject.values, _copy)
    for (name, now), (_, then) in zip(
        subject.tensors(values), subject.tensors(before), strict=True
    ):
        if subject.alias_of(name)[1] or not _is_real(now):
            continue
        problem = _difference(now, then, 0.0, 0.0)
        if problem:
            raise _Failed(
                f"argument '{name}' was changed, and the schema doesn't say so: mark it "
                f"Tensor(a!), or write to a copy ({problem})"
            )
    _aliases(subject, values, result)
    again_values, again = subject.example()
    problem = _difference(again, result, 0.0, 0.0) or _difference(again_values, values, 0.0, 0.0)
    if problem:
        raise _Failed(
            "two calls with the same arguments and the same random numbers gave different "
            f"results: {problem}; draw random numbers with keyfold's generator, and keep no state"
        )


def _results(subject: _Subject, result: Any) -> list[Any]:
    """One per return of the schema."""
    if not subject.returns:
        return []
    return [result] if len(subject.returns) == 1 else list(result)


def _aliases(subject: _Subject, values: Sequence[Any], result: Any) -> None:
    results = _results(subject, result)
    for place, (item, (_, _, sets, write)) in enumerate(zip(results, subject.returns, strict=True)):
        for array in _arrays(item):
            _alias_of_arguments(subject, values, array, (place, sets, write))
    for (i, a), (j, b) in itertools.combinations(enumerate(results), 2):
        together = _meet(subject.returns[i][2], subject.returns[j][2])
        if together or not any(_share(x, y) for x in _arrays(a) for y in _arrays(b)):
            continue
        raise _Failed(
            f"results {i} and {j} share memory, and the schema doesn't say so: give both the same "
            "alias annotation, or return a copy"
        )


def _meet(a: list[str], b: list[str]) -> bool:
    """Whether two alias annotations have a set in common; `*` is any set."""
    return bool(set(a) & set(b)) or bool(a and b and ("*" in a or "*" in b))


def _alias_of_arguments(
    subject: _Subject, values: Sequence[Any], array: Any, which: tuple[int, list[str], bool]
) -> None:
    place, sets, write = which
    candidates = []
    for name, argument in subject.tensors(values):
        allowed = _meet(sets, subject.alias_of(name)[0])
        if allowed:
            candidates.append((name, argument))
        elif _share(array, argument):
            raise _Failed(
                f"result {place} shares memory with argument '{name}', and the schema doesn't say "
                f"so: annotate both as Tensor(a), or return a copy"
            )
    named = [(name, argument) for name, argument in candidates if _bounds(argument)]
    if "*" in sets or not named or _bounds(array) is None:
        return
    if any(_share(array, argument) for _, argument in named):
        return
    # What is a view where strides allow it may be a copy where they don't: not of these.
    if not write and _is_view_of_contiguous(subject, place, [name for name, _ in named]):
        return
    mark = f"({'|'.join(sets)}{'!' if write else ''})"
    whose = " or ".join(f"'{name}'" for name, _ in named)
    raise _Failed(
        f"result {place} is annotated {mark}, as memory of argument {whose}, but has memory of its "
        "own: return the argument or a view of it, or take the annotation away"
    )


def _is_view_of_contiguous(subject: _Subject, place: int, names: list[str]) -> bool:
    values = _map(subject.values, _contiguous)
    result = _results(subject, subject.call(values))[place]
    arguments = [x for name, x in subject.tensors(values) if name in names]
    return any(_share(r, x) for r in _arrays(result) for x in arguments)


def _contiguous(x: Any) -> Any:
    return _with_strides(x, range(x.ndim), 1) if _is_real(x) else x


def _layouts(subject: _Subject) -> None:
    subject.needs_tensors()
    wanted_values = _map(subject.values, _contiguous)
    wanted = _attempt(subject, wanted_values, "contiguous arguments")
    variants: dict[str, Callable[[Any], Any]] = {
        "arguments with gaps between elements": lambda x: _with_strides(x, range(x.ndim), 2),
        "arguments in column-major order": lambda x: _with_strides(x, range(x.ndim)[::-1], 1),
        "arguments with negative strides": _reversed,
    }
    for what, change in variants.items():
        values = _map(subject.values, lambda x, c=change: c(x) if _is_real(x) else x)
        found = _attempt(subject, values, what)
        subject.compare(found, wanted, f"with {what}")
        subject.compare(values, wanted_values, f"with {what}, what was written")
    for what, change in {
        "arguments without elements": lambda x: x[:0] if x.ndim else x,
        "arguments without dimensions": lambda x: x.reshape(-1)[:1].reshape(()),
    }.items():
        values = _map(
            subject.values, lambda x, c=change: _copy(c(x)) if _is_real(x) and x.size else x
        )
        try:
            _attempt(subject, values, what)
        except _Refused:
            continue


class _Refused(_Failed):
    """The operator said that it doesn't take such arguments."""


def _reversed(x: Any) -> Any:
    if x.ndim == 0:
        return _copy(x)
    order = range(x.ndim)
    if isinstance(x, np.ndarray):
        return _with_strides(np.flip(x), order, 1)[(slice(None, None, -1),) * x.ndim]
    return _with_strides(x.flip(), order, 1).flip()


def _attempt(subject: _Subject, values: Sequence[Any], what: str) -> Any:
    try:
        return subject.call(values)
    except Exception as error:
        text = f"with {what} the call raised {_why(error)}"
        # An error that says what is wrong with the arguments is an answer.
        typed = isinstance(error, (Error, ValueError, TypeError, IndexError, NotImplementedError))
        broken = isinstance(error, (KernelPanic, KernelReturnError))
        if typed and not broken:
            raise _Refused(text) from error
        raise _Failed(text) from error


def _meta(subject: _Subject) -> None:
    values, result = subject.example()
    names = subject.names[subject.positional :]
    try:
        inferred = _core._infer_meta(
            subject.operator,
            tuple(subject.values[: subject.positional]),
            dict(zip(names, subject.values[subject.positional :], strict=True)),
        )
    except MissingKernel as error:
        if subject.operator.has_kernel("Meta"):
            raise _Failed(f"the Meta kernel raised {_why(error)}") from error
        raise _Skip(
            f'no Meta kernel; add one with @keyfold.register_fake("{subject.operator.name}")'
        ) from None
    except NotSupported as error:
        raise _Skip(f"the Meta kernel doesn't know: {error}") from None
    except Exception as error:
        raise _Failed(f"the Meta kernel raised {_why(error)}") from error
    real, meta = _results(subject, result), _results(subject, inferred)
    devices = {x.device.type for _, x in subject.tensors(values) if isinstance(x, _core.Tensor)}
    for place, (a, b) in enumerate(zip(real, meta, strict=True)):
        items, inferred_items = list(_arrays(a)), list(_arrays(b))
        if len(items) != len(inferred_items):
            raise _Failed(
                f"result {place} has {len(items)} tensors, the Meta kernel says "
                f"{len(inferred_items)}"
            )
        for x, y in zip(items, inferred_items, strict=True):
            _same_form(place, x, y)
            device = x.device.type if isinstance(x, _core.Tensor) else "cpu"
            if len(devices) == 1 and device not in devices:
                raise _Failed(
                    f"result {place} is on {device}, the arguments are on {devices.pop()}: a Meta "
                    "kernel can't tell that"
                )


def _same_form(place: int, real: Any, meta: Any) -> None:
    for what in ("shape", "dtype"):
        a, b = getattr(real, what), getattr(meta, what)
        a, b = (list(a), list(b)) if what == "shape" else (str(a), str(b))
        if a != b:
            raise _Failed(f"result {place} has {what} {a}, the Meta kernel says {b}")


def _has_derivative(operator: _core.Operator) -> bool:
    """Whether something differentiates it: a derivative, or operators that it is made of."""
    kernels = operator.kernels
    return any(key.startswith(("Autograd", "CompositeImplicit")) for key in kernels)


def _autograd(subject: _Subject) -> None:
    if subject.writes:
        raise _Skip("it writes to an argument")
    floats = [
        place
        for place, value in enumerate(subject.values)
        if any(_dtype(x) in _FLOATS for x in _arrays(value))
    ]
    if not floats:
        raise _Skip("no argument is a floating tensor")
    if not _has_derivative(subject.operator):
        raise _Skip("no derivative registered")
    _, result = subject.example()
    outputs = [x for x in _arrays(result) if _dtype(x) in _FLOATS]
    if not outputs:
        raise _Skip("no result is floating")

    leaves: list[Any] = []
    template = list(subject.values)

    def to_leaf(x: Any) -> Any:
        if _dtype(x) not in _FLOATS:
            return x
        array = np.array(_numbers(x), dtype=np.float64, order="C")
        leaves.append(_core.from_numpy(array).requires_grad_())
        return _Place(len(leaves) - 1)

    template = _map(template, to_leaf)
    work = sum(x.size for x in leaves) + sum(x.size for x in outputs)
    if work > _MOST_ELEMENTS:
        raise _Skip(
            f"{work} elements of arguments and results are too many for finite differences (at "
            f"most {_MOST_ELEMENTS}); give a smaller example"
        )

    def f(*variables: Any) -> Any:
        return subject.call_as_it_is(_fill(template, variables))

    _core.set_rng_state(subject.random_state)
    try:
        gradcheck(f, tuple(leaves))
    except GradientError as error:
        raise _Failed(str(error)) from error
    except Exception as error:
        raise _Failed(f"going forward or back raised {_why(error)}") from error


class _Place:
    """Where a variable goes in a call's arguments."""

    def __init__(self, number: int) -> None:
        self.number = number


def _fill(template: Any, variables: Sequence[Any]) -> Any:
    if isinstance(template, _Place):
        return variables[template.number]
    if isinstance(template, (tuple, list)):
        return type(template)(_fill(item, variables) for item in template)
    return template


def _draws_random_numbers(subject: _Subject) -> bool:
    _core.set_rng_state(subject.random_state)
    subject.call_as_it_is(_map(subject.values, _copy))
    return _core.get_rng_state() != subject.random_state


_BATCH = 3


def _vmap(subject: _Subject) -> None:
    from keyfold import stack, vmap

    subject.needs_tensors()
    if subject.writes:
        raise _Skip("it writes to an argument")
    _, result = subject.example()
    outputs = _results(subject, result)
    if not outputs or not all(_is_array(x) for output in outputs for x in _leaves(output)):
        raise _Skip("a result that is no tensor can't be batched")
    if _draws_random_numbers(subject):
        raise _Skip("it draws random numbers, which a loop draws in another order")
    batches: list[Any] = []

    def examples_of(x: Any) -> Any:
        # Other examples than the first have its elements in another order.
        array = np.array(_numbers(x), order="C")
        rolled = [np.roll(array.reshape(-1), n).reshape(array.shape) for n in range(_BATCH)]
        examples = [_core.from_numpy(example).to(x.dtype) for example in rolled]
        batches.append(examples)
        return _Place(len(batches) - 1)

    template = _map(list(subject.values), lambda x: examples_of(x) if _is_real(x) else x)

    def f(*variables: Any) -> Any:
        return subject.call_as_it_is(_fill(template, variables))

    try:
        each = [f(*[examples[n] for examples in batches]) for n in range(_BATCH)]
    except Exception as error:
        raise _Skip(
            f"the example with its elements in another order raised {_why(error)}"
        ) from None
    flat = [list(_arrays(one)) for one in each]
    if len({tuple((_dtype(x), tuple(x.shape)) for x in one) for one in flat}) > 1:
        raise _Skip("the shape of its results depends on the values of its arguments")
    try:
        found = vmap(f)(*[stack(examples) for examples in batches])
    except NotSupported as error:
        raise _Skip(f"vmap doesn't take it: {error}") from None
    except Exception as error:
        raise _Failed(f"vmap raised {_why(error)}") from error
    for place, (whole, *singles) in enumerate(zip(list(_arrays(found)), *flat, strict=True)):
        loop = np.stack([_numbers(single) for single in singles])
        problem = _difference(_numbers(whole), loop, subject.rtol, subject.atol)
        if problem:
            raise _Failed(f"vmap and a loop differ in result {place}: {problem}")


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _autocast(subject: _Subject) -> None:
    from keyfold._autocast import autocast

    if not any(_dtype(x) in _FLOATS for _, x in subject.tensors(subject.values)):
        raise _Skip("no argument is a floating tensor")
    _, plain = subject.example()
    ruled = "Autocast" in subject.operator.kernels
    fallthrough = "Autocast" in subject.operator.fallthrough
    for dtype in ("float16", "bfloat16"):
        values = _map(subject.values, lambda x: _copy(x) if _is_real(x) else x)
        try:
            with autocast(dtype):
                found = subject.call(values)
        except Exception as error:
            raise _Failed(f"under autocast({dtype}) the call raised {_why(error)}") from error
        shapes = [[list(x.shape) for x in _arrays(result)] for result in (found, plain)]
        if shapes[0] != shapes[1]:
            raise _Failed(
                f"under autocast({dtype}) the results have shapes {shapes[0]} instead of "
                f"{shapes[1]}"
            )
        if not ruled or fallthrough:
            subject.compare(found, plain, f"without a category, autocast({dtype}) changed it")


def _trace(subject: _Subject) -> None:
    from keyfold import trace

    subject.needs_tensors()
    if subject.writes:
        raise _Skip("it writes to an argument")
    _, wanted = subject.example()
    leaves: list[Any] = []

    def to_input(x: Any) -> Any:
        leaves.append(_copy(x))
        return _Place(len(leaves) - 1)

    template = _map(list(subject.values), to_input)

    def f(*variables: Any) -> Any:
        return subject.call_as_it_is(_fill(template, variables))

    try:
        _core.set_rng_state(subject.random_state)
        graph = trace(f, *leaves)
    except NotSupported as error:
        raise _Skip(f"trace doesn't take it: {error}") from None
    except Exception as error:
        raise _Failed(f"trace raised {_why(error)}") from error
    try:
        _core.set_rng_state(subject.random_state)
        found = graph(*[_copy(x) for x in leaves])
    except Exception as error:
        raise _Failed(f"running the trace again raised {_why(error)}") from error
    subject.compare(found, wanted, "running the trace again")


_TESTS: dict[str, Callable[[_Subject], None]] = {
    "schema": _schema,
    "layouts": _layouts,
    "meta": _meta,
    "autograd": _autograd,
    "vmap": _vmap,
    "autocast": _autocast,
    "trace": _trace,
}
