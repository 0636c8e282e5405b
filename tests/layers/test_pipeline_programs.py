"""Random programs, eagerly and in a pipeline: the same numbers and errors, nothing pending."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyfold as kf
from tests.helpers.programs import SHAPES, STEPS, check, program, same


class Injected(Exception):
    """What a kernel raises on purpose."""


@pytest.fixture(scope="module")
def failing():
    """An operator that fails where its first element is above a limit."""
    with kf.Library("pipelineprograms") as library:
        library.define("checked(Tensor x, float limit) -> Tensor")

        def kernel(x, limit):
            if x.size and float(x.reshape(-1)[0]) > limit:
                raise Injected(f"above {limit}")
            return x + 1.0

        library.impl("checked", kernel, "CPU")
        library.impl("checked", lambda x, limit: kf.empty_like(x), "Meta")
    yield kf.ops.pipelineprograms.checked
    library.close()


def test_a_step_of_several_results_makes_them():
    assert len(STEPS["several results"]([kf.ones((2, 3), dtype="float64")], 0, 0)) == 3


@pytest.mark.one_python
@settings(max_examples=200, deadline=None)
@given(program, st.sampled_from([None, "eager"]))
def test_a_program_computes_the_same_bits_in_a_pipeline(steps, how):
    check(steps, how=how)


failing_program = st.lists(
    st.tuples(
        st.sampled_from(
            ["checked", "add", "mul", "tanh", "sum", "reshape", "matmul", "transpose", "concat"]
        ),
        st.integers(0, 50),
        st.integers(0, 50),
        st.just(False),
    ),
    min_size=1,
    max_size=50,
)


class Failed:
    """What a failed step leaves: its error, and a tensor of the form that it would have had."""

    def __init__(self, error, like):
        self.error = error
        self.like = kf.zeros(like.shape, dtype=like.dtype)


def results_or_errors(steps, failing):
    """Run a program eagerly; a failed step's result, and what follows, is its error."""
    rng = np.random.default_rng(3)
    values = [kf.asarray(rng.standard_normal(shape), copy=True) for shape in SHAPES[:4]]
    for name, a, b, _ in steps:
        used = [values[a % len(values)], values[b % len(values)]]
        reads = used[: 2 if name in ("add", "mul", "matmul", "concat") else 1]
        bad = next((v for v in reads if isinstance(v, Failed)), None)
        tensors = [v.like if isinstance(v, Failed) else v for v in used]
        try:
            if name != "checked":
                made = STEPS[name](tensors, 0, 1)
            elif bad is None:
                made = [failing(tensors[0], b / 25)]
            else:
                made = [tensors[0]]
        except Injected as error:
            values.append(Failed(type(error), tensors[0]))
        except kf.Error:
            values.append(used[0])
        else:
            values.extend(made if bad is None else [Failed(bad.error, t) for t in made])
    return [v.error if isinstance(v, Failed) else v for v in values]


def deferred_results(steps, failing):
    rng = np.random.default_rng(3)
    values = [kf.asarray(rng.standard_normal(shape), copy=True) for shape in SHAPES[:4]]
    pipe = kf.pipeline()
    try:
        with pipe:
            for name, a, b, _ in steps:
                used = [values[a % len(values)], values[b % len(values)]]
                try:
                    if name == "checked":
                        values.append(failing(used[0], b / 25))
                    else:
                        values.extend(STEPS[name](used, 0, 1))
                except kf.Error:
                    values.append(used[0])
    except Injected:
        pass
    assert not any(v.is_pending for v in values)
    assert pipe.pending_count() == 0
    found = []
    for value in values:
        try:
            value.numpy()
            found.append(value)
        except Injected as error:
            found.append(type(error))
    return found


@settings(max_examples=150, deadline=None)
@given(failing_program)
def test_failures_reach_the_same_results_as_without_a_pipeline(failing, steps):
    eager, deferred = results_or_errors(steps, failing), deferred_results(steps, failing)
    assert len(eager) == len(deferred)
    for at, (a, b) in enumerate(zip(eager, deferred, strict=True)):
        assert a is b if isinstance(a, type) or isinstance(b, type) else same(a, b), at


@settings(max_examples=5, deadline=None)
@given(st.lists(failing_program, min_size=8, max_size=8))
def test_programs_on_eight_threads(failing, programs):
    wrong = []

    def work(steps):
        eager, deferred = results_or_errors(steps, failing), deferred_results(steps, failing)
        for a, b in zip(eager, deferred, strict=True):
            if not (a is b if isinstance(a, type) or isinstance(b, type) else same(a, b)):
                wrong.append(steps)

    threads = [threading.Thread(target=work, args=(steps,)) for steps in programs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
