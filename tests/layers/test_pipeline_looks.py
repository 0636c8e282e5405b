"""What looks at a pipeline while it works: explanations, threads, kernels that lend memory."""

import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import keyfold as kf


@pytest.fixture
def x():
    return kf.asarray(np.array([1.0, 2.0, 3.0]), copy=True)


ON_TWO_THREADS = """
import threading

def on_two_threads(work):
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def ran(source, seconds=60):
    """What a program prints in a process of its own, which is ended if it hangs."""
    command = [sys.executable, "-c", ON_TWO_THREADS + textwrap.dedent(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "give", [lambda y: np.asarray(y), lambda y: y.__iadd__(1.0), lambda y: None]
)
def test_an_explanation_changes_nothing(x, give):
    with kf.pipeline() as pipe:
        y = x * 4.0
        first, second = kf.exp(x), kf.exp(x)
        product = second * y
        del second
        text = str(pipe.explain())
        assert pipe.stats()["merged"] == 0
        assert text == str(pipe.explain())
        first += 1.0
        give(y)
        assert product.tolist() == (np.exp(x.numpy()) * x.numpy() * 4.0).tolist()
        assert first.tolist() == (np.exp(x.numpy()) + 1.0).tolist()


def test_a_flush_that_merged_calls_and_was_interrupted_runs_in_parts(x, lib):
    stops = [KeyboardInterrupt]

    def stop(x):
        if stops:
            raise stops.pop()
        return x + 0.0

    lib.define("stops(Tensor x) -> Tensor")
    lib.impl("stops", stop, "CPU")
    lib.impl("stops", lambda x: kf.empty_like(x), "Meta")
    y = x * 4.0
    with kf.pipeline() as pipe:
        stopped = getattr(kf.ops, lib.ns).stops(x)
        first, second = kf.exp(x), kf.exp(x)
        product = second * y
        del second
        with pytest.raises(KeyboardInterrupt):
            pipe.flush()
        assert pipe.stats()["merged"] == 1
        first += 1.0
        y.numpy()
        assert product.tolist() == (np.exp(x.numpy()) * x.numpy() * 4.0).tolist()
    assert first.tolist() == (np.exp(x.numpy()) + 1.0).tolist()
    assert stopped.tolist() == x.tolist()


def test_an_explanation_on_another_thread_keeps_no_plan_of_a_moment(x):
    random = np.random.default_rng(0)
    stop, go = threading.Event(), threading.Semaphore(0)
    pipes = []

    def explain():
        while go.acquire() and not stop.is_set():
            calls = [operation["call"] for operation in pipes[-1].explain().operations]
            assert not any(call.endswith("()") for call in calls)

    def program(number):
        first = kf.tanh(x * number)
        near, far = first + x, x
        for at in range(200):
            far = far + x if at % 2 else far * number
        return [kf.cumulative_sum(first, axis=0), near, far]

    thread = threading.Thread(target=explain)
    thread.start()
    try:
        for _ in range(60):
            number = float(random.uniform())
            expected = [tensor.tolist() for tensor in program(number)]
            for round_ in range(3):
                with kf.pipeline() as pipe:
                    results = program(number)
                    if round_ == 0:
                        pipes.append(pipe)
                        go.release()
                    pipe.flush()
                assert [tensor.tolist() for tensor in results] == expected
    finally:
        stop.set()
        go.release()
        thread.join()


@pytest.mark.parametrize("give", [lambda x: x.numpy(), np.asarray, np.from_dlpack])
def test_a_kernel_may_give_its_input_away(x, give, lib):
    lib.define("given(Tensor x, float by) -> Tensor")
    lib.impl("given", lambda x, by: kf.asarray(give(x) * by, copy=True), "CPU")
    lib.impl("given", lambda x, by: kf.empty_like(x), "Meta")
    given = getattr(kf.ops, lib.ns).given
    with kf.pipeline():
        y = x + 1.0
        earlier, results = y * 10.0, [given(y, 2.0), given(y, 3.0), given(x, 2.0)]
        later = results[0] + y
    assert [result.tolist() for result in results] == [[4, 6, 8], [6, 9, 12], [2, 4, 6]]
    assert (earlier.tolist(), later.tolist()) == ([20, 30, 40], [6, 9, 12])


def test_a_failure_is_noted_while_other_threads_ask():
    ran(
        """
        import sys, threading, time
        import keyfold as kf

        sys.setswitchinterval(1e-5)

        @kf.custom_op("looks::fails", mutates_args=())
        def fails(x: kf.Tensor) -> kf.Tensor:
            raise ValueError("no")

        fails.register_fake(lambda x: kf.empty_like(x))
        x, pipes, stop = kf.asarray([1.0]), [], False

        def ask():
            while not stop:
                for pipe in pipes[-1:]:
                    pipe.stats()

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            try:
                with kf.pipeline() as pipe:
                    pipes[:] = [pipe]
                    fails(x)
                    y = fails(x)
            except ValueError:
                pass
        stop = True
        """
    )


def test_kernels_of_two_pipelines_give_away_what_is_their_own():
    printed = ran(
        """
        import time
        import keyfold as kf

        @kf.custom_op("looks::through", mutates_args=())
        def through(x: kf.Tensor) -> kf.Tensor:
            own = kf.asarray([1.0, 2.0]) * 2.0
            time.sleep(0.001)
            return kf.asarray(own.numpy() * 2.0)

        through.register_fake(lambda x: kf.empty_like(x))
        x, done = kf.asarray([1.0, 2.0]), []

        def work():
            for _ in range(200):
                with kf.pipeline():
                    y = through(x + 1.0)
                done.append(y.tolist())

        on_two_threads(work)
        print(len(done), done[0])
        """
    )
    assert printed == "400 [4.0, 8.0]\n"


def test_kernels_of_two_pipelines_give_away_what_both_read():
    printed = ran(
        """
        import threading, time
        import keyfold as kf

        @kf.custom_op("looks::scaled", mutates_args=())
        def scaled(x: kf.Tensor, by: kf.Tensor) -> kf.Tensor:
            time.sleep(0.002)
            return kf.asarray(x.numpy() * by.numpy(), copy=True)

        scaled.register_fake(lambda x, by: kf.empty_like(x))
        x, done, barrier = kf.asarray([1.0, 1.0]), [], threading.Barrier(2)
        weights = [kf.asarray([1.0, 2.0]).clone() for _ in range(40)]

        def work():
            for weight in weights:
                barrier.wait()
                with kf.pipeline():
                    y = scaled(x + 1.0, weight)
                done.append(y.tolist())

        on_two_threads(work)
        print(len(done), all(one == [2.0, 4.0] for one in done))
        """
    )
    assert printed == "80 True\n"


def test_a_kernel_in_a_part_of_what_waits_gives_nothing_away_that_later_calls_read(x, lib):
    given = []

    def keep(y, x):
        given.append(y.numpy())
        return y * 1.0

    lib.define("keeps(Tensor y, Tensor x) -> Tensor")
    lib.impl("keeps", keep, "CPU")
    lib.impl("keeps", lambda y, x: kf.empty_like(y), "Meta")
    keeps = getattr(kf.ops, lib.ns).keeps

    def program():
        with kf.pipeline():
            y = x + 1.0
            kept, later = keeps(y, x), y * 2.0
            # This runs what reads x.
            x.numpy()
            assert given == []
            assert later.tolist() == [4, 6, 8]
            assert not kept.is_pending

    with pytest.raises(kf.PipelineError, match="computed from its own result"):
        program()


@pytest.mark.parametrize("write", [lambda x: x.fill_(5.0), lambda x: np.asarray(x).fill(5.0)])
def test_a_signal_handler_cant_write_what_tiles_read(write):
    values = np.random.default_rng(0).uniform(size=(8000, 1000)).astype(np.float32)

    def program(x):
        y = x
        # Signals are looked for each 20 ms: some times as long on the fastest processors.
        for _ in range(24):
            y = kf.softmax(y * 3.0 + x, -1)
        return y

    errors = []

    def handler(*_):
        try:
            write(x)
        except kf.PipelineError as error:
            errors.append(str(error))

    old = signal.signal(signal.SIGALRM, handler)
    try:
        # It may come before the tiles, or behind them. Other sizes are other programs, which aren't
        # recognised: what is replayed would wait again, and come first.
        for at in range(40):
            x = kf.asarray(values[:, at:], copy=True)
            expected = program(x).numpy()
            with kf.pipeline() as pipe:
                y = program(x)
                signal.setitimer(signal.ITIMER_REAL, 0.004 + 0.002 * at)
                pipe.flush()
                signal.setitimer(signal.ITIMER_REAL, 0.0)
            assert np.array_equal(y.numpy(), expected)
            if errors:
                break
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, old)
    assert pipe.stats()["groups"] > 0
    assert len(errors) == 1
    assert "a signal handler reads what is being computed" in errors[0]


def test_a_write_in_place_waits_for_nothing_that_was_computed_meanwhile():
    a, b = kf.asarray([1.0, 2.0]).clone(), kf.asarray([10.0, 20.0]).clone()
    wrong = []
    for _ in range(100):
        with kf.pipeline(max_wait=5e-5):
            for _ in range(100):
                y = a + b
                y += b
                if (found := y.tolist()) != [21.0, 42.0]:
                    wrong.append(found)
    assert wrong == []
