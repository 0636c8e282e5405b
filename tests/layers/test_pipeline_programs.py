"""Random programs, eagerly and in a pipeline: the same numbers and errors, nothing pending."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyfold as kf

SHAPES = [(3,), (2, 3), (3, 2), (2, 2), (1,), ()]


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


# A step is a function of the tensors so far and of a number, which returns new tensors.
def unary(f):
    return lambda ts, a, b: [f(ts[a % len(ts)])]


def binary(f):
    return lambda ts, a, b: [f(ts[a % len(ts)], ts[b % len(ts)])]


def assign(ts, a, b):
    x = ts[a % len(ts)]
    if x.ndim:
        x[0] = float(b)
    return []


def add_in_place(ts, a, b):
    ts[a % len(ts)] += float(b % 3)
    return []


def assign_tensor(ts, a, b):
    ts[a % len(ts)][...] = ts[b % len(ts)]
    return []


STEPS = {
    "add": binary(lambda x, y: x + y),
    "mul": binary(lambda x, y: x * y),
    "sub": binary(lambda x, y: x - y),
    "maximum": binary(kf.maximum),
    "less": binary(lambda x, y: kf.astype(x < y, "float64")),
    "matmul": binary(lambda x, y: x @ y),
    "tanh": unary(kf.tanh),
    "exp of tanh": unary(lambda x: kf.exp(kf.tanh(x))),
    "sum": unary(kf.sum),
    "mean of rows": unary(lambda x: kf.mean(x, axis=-1) if x.ndim else x),
    "max": unary(kf.max),
    "softmax": unary(lambda x: kf.softmax(x, axis=-1) if x.ndim else x),
    "float32": unary(lambda x: kf.astype(kf.astype(x, "float32"), "float64")),
    "transpose": unary(lambda x: x.T if x.ndim == 2 else x),
    "first": unary(lambda x: x[0] if x.ndim else x),
    "rest": unary(lambda x: x[1:] if x.ndim else x),
    "reversed": unary(lambda x: x[::-1] if x.ndim else x),
    "reshape": unary(lambda x: x.reshape(-1)),
    "positive ones": unary(lambda x: x[x > 0.0]),
    "split": lambda ts, a, b: list(kf.unstack(ts[a % len(ts)])) if ts[a % len(ts)].ndim else [],
    "several results": lambda ts, a, b: (
        list(kf.ops.aten.native_layer_norm(x, [x.shape[-1]], None, None, 1e-5))
        if (x := ts[a % len(ts)]).ndim
        else []
    ),
    "random": lambda ts, a, b: [kf.rand(3, dtype="float64")],
    "dropout": unary(lambda x: kf.dropout(x, 0.5)),
    "zeros": lambda ts, a, b: [kf.zeros(SHAPES[b % len(SHAPES)], dtype="float64")],
    "assign a number": assign,
    "assign a tensor": assign_tensor,
    "add in place": add_in_place,
    "concat": lambda ts, a, b: [
        kf.concat([ts[a % len(ts)].reshape(-1), ts[b % len(ts)].reshape(-1)])
    ],
    "forget": lambda ts, a, b: [] if len(ts) < 2 else [ts.pop(a % len(ts))][:0],
}

program = st.lists(
    st.tuples(
        st.sampled_from(sorted(STEPS)), st.integers(0, 50), st.integers(0, 50), st.booleans()
    ),
    min_size=1,
    max_size=50,
)


def test_a_step_of_several_results_makes_them():
    assert len(STEPS["several results"]([kf.ones((2, 3), dtype="float64")], 0, 0)) == 3


def run(steps, failing, flush):
    """Run a program; returns its tensors, and the kinds of errors that calls raised."""
    kf.manual_seed(7)
    rng = np.random.default_rng(3)
    tensors = [kf.asarray(rng.standard_normal(shape), copy=True) for shape in SHAPES[:4]]
    errors = []
    for at, (name, a, b, flushes) in enumerate(steps):
        try:
            made = (
                STEPS[name](tensors, a, b)
                if name in STEPS
                else [failing(tensors[a % len(tensors)], b / 25)]
            )
            tensors.extend(made)
        except (kf.Error, Injected) as error:
            errors.append((at, type(error)))
        if flush is not None and flushes:
            flush(tensors, a)
    return tensors, errors


def same(a, b):
    x, y = np.asarray(a), np.asarray(b)
    return x.shape == y.shape and x.dtype == y.dtype and x.tobytes() == y.tobytes()


def flush_or_read(tensors, a):
    if a % 2:
        kf.flush()
    else:
        tensors[a % len(tensors)].tolist()


@settings(max_examples=150, deadline=None)
@given(program)
def test_a_program_computes_the_same_bits_in_a_pipeline(steps):
    eager, errors = run(steps, None, None)
    with kf.pipeline() as pipe:
        deferred, found = run(steps, None, flush_or_read)
    assert found == errors
    assert len(eager) == len(deferred)
    assert not any(t.is_pending for t in deferred)
    assert pipe.pending_count() == 0
    for at, (a, b) in enumerate(zip(eager, deferred, strict=True)):
        assert same(a, b), at


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
