"""Programs that pipelines recognise call by call: the numbers of eager calls in every case."""

import contextvars
import signal
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyfold as kf
from tests.helpers.programs import STEPS, flush_or_read, run, same

# Programs with random numbers or writes in place aren't recognised; "add in place" stands for both.
PURE = sorted(set(STEPS) - {"random", "dropout", "assign a number", "assign a tensor"})

step = st.tuples(st.sampled_from(PURE), st.integers(0, 50), st.integers(0, 50), st.booleans())


def times_recognised(steps, eager=None):
    """Run a program in a pipeline, compare it with an eager run, and count what was recognised."""
    eager, errors = eager or run(steps, None)
    with kf.pipeline() as pipe:
        deferred, found = run(steps, flush_or_read)
    assert found == errors
    assert pipe.pending_count() == 0
    assert pipe.stats()["failed"] == 0
    for at, (a, b) in enumerate(zip(eager, deferred, strict=True)):
        assert same(a, b), at
    return pipe.stats()["recognised"]


def test_programs_that_repeat_and_then_go_another_way_compute_the_bits_of_eager_calls():
    recognised = 0

    @settings(max_examples=150, deadline=None)
    @given(st.lists(step, min_size=1, max_size=30), step, st.integers(0, 50))
    def check(steps, other, place):
        nonlocal recognised
        eager = run(steps, None)
        recognised += sum(times_recognised(steps, eager) for _ in range(4))
        place %= len(steps)
        for changed in (
            [*steps[:place], other, *steps[place + 1 :]],
            steps[:place],
            [*steps, other],
        ):
            if changed:
                times_recognised(changed)
        recognised += times_recognised(steps, eager)

    check()
    assert recognised > 500


def learned(function, *arguments, times=3):
    """Call a function in pipelines until its program is known; return what it gives eagerly."""
    for _ in range(times):
        with kf.pipeline():
            result = function(*arguments)
        del result
    return function(*arguments)


def test_arrays_of_numpy_are_read_as_they_were_when_the_call_was_made():
    a = np.arange(6.0).reshape(2, 3)

    def program(x):
        return kf.exp(kf.asarray(x) * 0.5) + x

    expected = np.array(learned(program, a))
    with kf.pipeline() as pipe:
        y = program(a)
        a[:] = 7.0
    assert pipe.stats()["recognised"] == 1
    assert np.array_equal(y.numpy(), expected)
    with kf.pipeline() as pipe:
        y = kf.exp(kf.asarray(a) * 0.5)
        a[:] = 1.0
        z = y + a
    assert np.array_equal(z.numpy(), np.exp(np.full((2, 3), 7.0) * 0.5) + 1.0)


def test_gradients_of_a_training_step_are_recognised():
    rng = np.random.default_rng(0)
    x, w = (kf.asarray(rng.standard_normal(s), copy=True) for s in ((5, 3), (3, 2)))
    w.requires_grad_()

    def gradient():
        w.grad = None
        loss = kf.mean(kf.tanh(x @ w) ** 2)
        loss.backward()
        return loss, w.grad

    expected = [kf.Tensor.numpy(t.detach()).copy() for t in gradient()]
    counts = []
    for _ in range(5):
        with kf.pipeline() as pipe:
            found = gradient()
        counts.append(pipe.stats()["recognised"])
        assert [t.detach().numpy().tolist() for t in found] == [t.tolist() for t in expected]
    assert counts == [0, 0, 1, 1, 1]


def test_the_plan_of_a_recognised_program_shows_its_calls_and_lines():
    x = kf.asarray(np.ones((4, 9)), copy=True)

    def program():
        return kf.exp(x) * 2.0

    learned(program)
    with kf.pipeline() as pipe:
        y = program()
        shown = str(pipe.explain())
    assert "aten::exp" in shown
    assert "test_pipeline_recognised.py" in shown
    assert y.numpy()[0, 0] == np.exp(1.0) * 2.0


def test_a_failure_names_the_line_of_this_time():
    def program(x):
        return kf.linalg.cholesky(x + 0.0) * 2.0

    regular, singular = kf.asarray(np.eye(3), copy=True), kf.zeros((3, 3), dtype="float64")
    learned(program, regular)
    with kf.pipeline() as pipe:
        result = program(regular)
    assert pipe.stats()["recognised"] == 1
    with pytest.raises(kf.Error, match="cholesky") as caught, kf.pipeline():
        result = program(singular)
    assert not result.is_pending
    assert "test_pipeline_recognised.py" in str(caught.value)


def test_a_profile_shows_the_steps_of_a_recognised_program():
    x = kf.asarray(np.ones((4, 10)), copy=True)

    def program():
        return kf.exp(x) * 2.0

    learned(program)
    with kf.profile() as profile, kf.pipeline():
        program_result = program()
    assert program_result.shape == (4, 10)
    assert "in one pass" in str(profile.table())


def test_threads_with_pipelines_of_their_own_recognise_one_program():
    inputs = [kf.asarray(np.full((3, 8), float(at)), copy=True) for at in range(8)]

    def program(x):
        y = x
        for _ in range(5):
            y = kf.tanh(y + x) * 0.5
        return y

    expected = [program(x).numpy().copy() for x in inputs]
    wrong = []

    def work(at):
        for _ in range(50):
            with kf.pipeline():
                y = program(inputs[at])
            if not np.array_equal(y.numpy(), expected[at]):
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def products(x, count=40):
    """Products that take some tens of milliseconds, and a result that is computed beside them."""
    y = x
    for _ in range(count):
        y = y @ x
    return y, x + 1.0


def large():
    rng = np.random.default_rng(0)
    return kf.asarray(rng.standard_normal((300, 300)) / 20.0, copy=True)


def test_a_write_during_a_replay_on_the_timer_s_thread_is_read():
    x = large()
    learned(products, x)
    for _ in range(3):
        with kf.pipeline(max_wait=0.002):
            y, z = products(x)
            time.sleep(0.004)
            z += 1000.0
            found = float(z[0, 0])
        assert found == float(x[0, 0]) + 1.0 + 1000.0
        assert not y.is_pending


def during_a_flush(handler, program):
    """Call a handler of a signal while a pipeline computes a program; return its result."""
    old = signal.signal(signal.SIGALRM, handler)
    try:
        with kf.pipeline() as pipe:
            result = program()
            signal.setitimer(signal.ITIMER_REAL, 0.03)
            pipe.flush()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, old)
    return result, pipe


def test_a_signal_handler_reads_and_writes_what_is_replayed():
    x = large()
    learned(products, x, 200)
    z, seen = None, []

    def program():
        nonlocal z
        y, z = products(x, 200)
        return y

    def read(*_):
        seen.append(float(z[0, 0]))

    def write(*_):
        nonlocal z
        z += 5.0
        seen.append(float(z[0, 0]))

    expected = products(x, 200)[0].numpy()
    for handler in (read, write):
        y, pipe = during_a_flush(handler, program)
        assert np.array_equal(y.numpy(), expected)
        assert pipe.stats()["failed"] == 0
    assert seen == [float(x[0, 0]) + 1.0, float(x[0, 0]) + 1.0 + 5.0]


def test_an_interrupt_stops_a_replay_between_operations():
    x = large()
    learned(products, x, 400)

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        during_a_flush(interrupt, lambda: products(x, 400))


def test_a_write_of_another_thread_during_an_interrupted_replay_comes_after_what_reads():
    x = large()
    three = kf.full(x.shape, 3.0, dtype=x.dtype)

    def program():
        first = x + 1.0
        last, _ = products(x, 200)
        return first, last, first * 2.0 + last * 0.0

    learned(program)
    expected = program()[2].numpy()

    def write_and_stop(*_):
        context = contextvars.copy_context()
        writer = threading.Thread(target=context.run, args=(results[0].copy_, three))
        writer.start()
        writer.join()
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, write_and_stop)
    try:
        with kf.pipeline() as pipe:
            results = program()
            signal.setitimer(signal.ITIMER_REAL, 0.03)
            with pytest.raises(KeyboardInterrupt):
                pipe.flush()
            # This runs what reads it: a part of what waits.
            three.numpy()
            assert np.array_equal(results[2].numpy(), expected)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, old)
    assert same(results[0], three)


def test_memory_that_no_call_uses_is_given_away_without_leaving_the_program():
    x = kf.asarray(np.linspace(0.0, 1.0, 61), copy=True)
    others = [kf.asarray([1.0, 2.0]) * 1.0 for _ in range(6)]
    counts = []
    for other in others:
        with kf.pipeline() as pipe:
            y = kf.tanh(x)
            other.numpy()
            y = kf.exp(y) + x
        counts.append(pipe.stats()["recognised"])
    assert counts == [0, 0, 1, 1, 1, 1]
    expected = kf.exp(kf.tanh(x))
    with kf.pipeline():
        y = kf.tanh(x)
        x.numpy()[:] = 0.0
        y = kf.exp(y) + x
    assert same(y, expected)


def test_one_tensor_in_the_place_of_two_is_another_program():
    a, b = (kf.asarray(np.full((3, 12), at), copy=True) for at in (0.5, 0.25))

    def program(x, y):
        return kf.exp(x) + kf.exp(y)

    learned(program, a, b)
    for _ in range(3):
        with kf.pipeline() as pipe:
            result = program(a, a)
        assert pipe.stats()["merged"] == 1
        assert result.numpy()[0, 0] == 2 * np.exp(0.5)


def test_equal_calls_behind_the_place_where_a_program_was_looked_at_are_merged():
    x = kf.asarray(np.full((3, 13), 0.5), copy=True)

    def program(pipe):
        a = kf.exp(x)
        pipe.explain()
        b = kf.exp(x)
        return a + b

    for _ in range(5):
        with kf.pipeline() as pipe:
            result = program(pipe)
        assert result.shape == (3, 13)
        assert pipe.stats()["merged"] == 1


def test_equal_calls_are_merged_if_their_form_was_forgotten_between_them():
    x = kf.asarray(np.full((3, 13), 0.5), copy=True)
    others = [kf.asarray(np.full((size,), 0.5), copy=True) for size in range(1, 400)]
    with kf.pipeline() as pipe:
        a = kf.exp(x)
        # A kernel keeps fewer forms than these.
        kept = [kf.exp(other) for other in others]
        b = kf.exp(x)
        result = a + b
        del a, b
    assert len(kept) == 399
    assert same(result, 2 * kf.exp(x))
    assert pipe.stats()["merged"] == 1


def test_copies_are_counted_where_a_program_is_left():
    array = np.full(1000, 0.5)
    counts = []

    def program():
        y = kf.exp(kf.asarray(array))
        array[0] += 1.0
        return y + kf.asarray(array)

    for _ in range(5):
        with kf.pipeline() as pipe:
            result = program()
            counts.append(pipe.pending_bytes())
        assert result.shape == (1000,)
    assert counts == [32_000] * 5


def test_a_profile_isn_t_kept_alive_by_a_program():
    x = kf.asarray(np.full((3, 14), 0.5), copy=True)
    for _ in range(4):
        with kf.profile(), kf.pipeline() as pipe:
            result = kf.exp(x) * 2.0
        assert result.shape == (3, 14)
        assert pipe.stats()["recognised"] == 0
