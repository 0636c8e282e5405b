"""Whether an operator works under the layers: `autograd`, `vmap`, `autocast` and `trace`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from keyfold import _core
from keyfold._autograd import grad, gradcheck
from keyfold._autograd._gradcheck import has_forward
from keyfold._errors import GradientError, NotSupported
from keyfold._opcheck._arrays import (
    arrays,
    copy_of,
    difference,
    dtype_name,
    has_data,
    is_array,
    map_arrays,
    numbers,
)
from keyfold._opcheck._subject import FLOATS, Failed, Skip, Subject, results_of, why

__all__ = ["autocast", "autograd", "trace", "vmap"]

# More elements than this and a gradient check takes minutes: it calls the operator twice for each.
_MOST_ELEMENTS = 2000


def _has_derivative(operator: _core.Operator) -> bool:
    """Whether something differentiates it: a derivative, or operators that it is made of."""
    kernels = operator.kernels
    return any(key.startswith(("Autograd", "CompositeImplicit")) for key in kernels)


def _is_symbolic(operator: _core.Operator) -> bool:
    """Whether its derivative and its rule for tangents are derived from its expression."""
    return " (expression, " in getattr(operator.kernels.get("Autograd"), "origin", "")


def autograd(subject: Subject) -> None:
    if subject.writes:
        raise Skip("it writes to an argument")
    floats = [
        place
        for place, value in enumerate(subject.values)
        if any(dtype_name(x) in FLOATS for x in arrays(value))
    ]
    if not floats:
        raise Skip("no argument is a floating tensor")
    backward = _has_derivative(subject.operator)
    if not backward and not _core._has_registered_jvp(subject.operator):
        raise Skip("no derivative registered")
    _, result = subject.example()
    outputs = [x for x in arrays(result) if dtype_name(x) in FLOATS]
    if not outputs:
        raise Skip("no result is floating")

    leaves: list[Any] = []
    template = list(subject.values)

    def to_leaf(x: Any) -> Any:
        if dtype_name(x) not in FLOATS:
            return x
        array = np.array(numbers(x), dtype=np.float64, order="C")
        leaves.append(_core.from_numpy(array).requires_grad_())
        return _Place(len(leaves) - 1)

    template = map_arrays(template, to_leaf)
    work = sum(x.size for x in leaves) + sum(x.size for x in outputs)
    if work > _MOST_ELEMENTS:
        raise Skip(
            f"{work} elements of arguments and results are too many for finite differences (at "
            f"most {_MOST_ELEMENTS}); give a smaller example"
        )

    def f(*variables: Any) -> Any:
        return subject.call_as_it_is(_fill(template, variables))

    _core.set_rng_state(subject.random_state)
    try:
        results = [x for x in arrays(f(*leaves)) if dtype_name(x) in FLOATS]
        recorded = any(isinstance(x, _core.Tensor) and x.requires_grad for x in results)
        if backward and not recorded:
            raise Skip("its results don't require grad: gradients end here")
        short = [x for x in results if dtype_name(x) != "float64"]
        if short:
            raise Skip(
                f"it gives {dtype_name(short[0])} for float64, too short for finite differences"
            )
        _core.set_rng_state(subject.random_state)
        forward = has_forward(f, leaves)
        _core.set_rng_state(subject.random_state)
        try:
            gradcheck(f, tuple(leaves), check_forward=forward, check_backward=backward)
        except (GradientError, NotSupported):
            refused = _refused(subject, f, leaves) if backward else {}
            if not refused:
                raise
            if len(refused) == len(leaves):
                own_tangent = _core._has_registered_jvp(subject.operator)
                if forward and (own_tangent or not _is_symbolic(subject.operator)):
                    _core.set_rng_state(subject.random_state)
                    gradcheck(f, tuple(leaves), check_forward=True, check_backward=False)
                    return
                raise Skip(f"no derivative: {next(iter(refused.values()))}") from None
            kept = [x.detach() if at in refused else x for at, x in enumerate(leaves)]
            _core.set_rng_state(subject.random_state)
            gradcheck(f, tuple(kept), check_forward=forward)
    except Skip:
        raise
    except GradientError as error:
        raise Failed(str(error)) from error
    except Exception as error:
        raise Failed(f"the call or its derivative raised {why(error)}") from error


def _refused(
    subject: Subject, f: Callable[..., Any], leaves: Sequence[_core.Tensor]
) -> dict[int, Exception]:
    """The leaves that the operator has no derivative for by design, and what it says.

    That is what raises NotSupported; and the derivative of an expression, which is right for every
    input that it has one for, so that an error of it means that it has none.
    """
    symbolic = _is_symbolic(subject.operator)
    refused: dict[int, Exception] = {}
    for at, leaf in enumerate(leaves):
        alone = [x if x is leaf else x.detach() for x in leaves]
        _core.set_rng_state(subject.random_state)
        results = [x for x in arrays(f(*alone)) if dtype_name(x) in FLOATS]
        try:
            for result in results:
                if result.requires_grad:
                    grad(result.sum(), [leaf])
        except (GradientError, NotSupported) as error:
            if symbolic or isinstance(error, NotSupported):
                refused[at] = error
    return refused


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


def _draws_random_numbers(subject: Subject) -> bool:
    _core.set_rng_state(subject.random_state)
    subject.call_as_it_is(map_arrays(subject.values, copy_of))
    return _core.get_rng_state() != subject.random_state


_BATCH = 3


def vmap(subject: Subject) -> None:
    from keyfold import stack
    from keyfold import vmap as batched

    subject.needs_tensors()
    if subject.writes:
        raise Skip("it writes to an argument")
    _, result = subject.example()
    outputs = results_of(subject, result)
    if not outputs or not all(is_array(x) for output in outputs for x in _leaves(output)):
        raise Skip("a result that is no tensor can't be batched")
    if _draws_random_numbers(subject):
        raise Skip("it draws random numbers, which a loop draws in another order")
    batches: list[Any] = []

    def examples_of(x: Any) -> Any:
        # Other examples than the first have its elements in another order.
        array = np.array(numbers(x), order="C")
        rolled = [np.roll(array.reshape(-1), n).reshape(array.shape) for n in range(_BATCH)]
        examples = [_core.from_numpy(example).to(x.dtype) for example in rolled]
        batches.append(examples)
        return _Place(len(batches) - 1)

    template = map_arrays(list(subject.values), lambda x: examples_of(x) if has_data(x) else x)

    def f(*variables: Any) -> Any:
        return subject.call_as_it_is(_fill(template, variables))

    try:
        each = [f(*[examples[n] for examples in batches]) for n in range(_BATCH)]
    except Exception as error:
        raise Skip(f"the example with its elements in another order raised {why(error)}") from None
    flat = [list(arrays(one)) for one in each]
    if len({tuple((dtype_name(x), tuple(x.shape)) for x in one) for one in flat}) > 1:
        raise Skip("the shape of its results depends on the values of its arguments")
    try:
        found = batched(f)(*[stack(examples) for examples in batches])
    except NotSupported as error:
        raise Skip(f"vmap doesn't take it: {error}") from None
    except Exception as error:
        raise Failed(f"vmap raised {why(error)}") from error
    for place, (whole, *singles) in enumerate(zip(list(arrays(found)), *flat, strict=True)):
        loop = np.stack([numbers(single) for single in singles])
        problem = difference(numbers(whole), loop, subject.rtol, subject.atol)
        if problem:
            raise Failed(f"vmap and a loop differ in result {place}: {problem}")


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def autocast(subject: Subject) -> None:
    from keyfold._layers._autocast import autocast as scope

    if not any(dtype_name(x) in FLOATS for _, x in subject.tensors(subject.values)):
        raise Skip("no argument is a floating tensor")
    _, plain = subject.example()
    ruled = "Autocast" in subject.operator.kernels
    fallthrough = "Autocast" in subject.operator.fallthrough
    for dtype in ("float16", "bfloat16"):
        values = map_arrays(subject.values, lambda x: copy_of(x) if has_data(x) else x)
        try:
            with scope(dtype):
                found = subject.call(values)
        except Exception as error:
            raise Failed(f"under autocast({dtype}) the call raised {why(error)}") from error
        shapes = [[list(x.shape) for x in arrays(result)] for result in (found, plain)]
        if shapes[0] != shapes[1]:
            raise Failed(
                f"under autocast({dtype}) the results have shapes {shapes[0]} instead of "
                f"{shapes[1]}"
            )
        if not ruled or fallthrough:
            subject.compare(found, plain, f"without a category, autocast({dtype}) changed it")


def trace(subject: Subject) -> None:
    from keyfold import trace as record

    subject.needs_tensors()
    if subject.writes:
        raise Skip("it writes to an argument")
    _, wanted = subject.example()
    leaves: list[Any] = []

    def to_input(x: Any) -> Any:
        leaves.append(copy_of(x))
        return _Place(len(leaves) - 1)

    template = map_arrays(list(subject.values), to_input)

    def f(*variables: Any) -> Any:
        return subject.call_as_it_is(_fill(template, variables))

    try:
        _core.set_rng_state(subject.random_state)
        graph = record(f, *leaves)
    except NotSupported as error:
        raise Skip(f"trace doesn't take it: {error}") from None
    except Exception as error:
        raise Failed(f"trace raised {why(error)}") from error
    try:
        _core.set_rng_state(subject.random_state)
        found = graph(*[copy_of(x) for x in leaves])
    except Exception as error:
        raise Failed(f"running the trace again raised {why(error)}") from error
    subject.compare(found, wanted, "running the trace again")
