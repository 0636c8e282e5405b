"""What a pipeline leaves behind when something goes wrong: errors where they belong."""

import asyncio
import contextvars
import gc
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

import keyfold as kf


@pytest.fixture
def x():
    return kf.asarray(np.array([1.0, 2.0, 3.0]), copy=True)


class Mine(Exception):
    """An exception of the user's own."""


@pytest.fixture
def failing(operator):
    def kernel(x):
        raise Mine("on purpose")

    return operator("failing", kernel)


def test_a_failure_reaches_what_depends_on_it_and_nothing_else(x, failing):
    with pytest.raises(Mine, match="on purpose") as raised, kf.pipeline() as pipe:  # noqa: PT012 - the block's end raises
        bad = failing(x)
        after = bad + 1.0
        good = x + 1.0
        later = good * 2.0
    for tensor in (bad, after, after):
        assert not tensor.is_pending
        with pytest.raises(Mine) as again:
            tensor.tolist()
        assert again.value is raised.value
    assert good.tolist() == [2.0, 3.0, 4.0]
    assert later.tolist() == [4.0, 6.0, 8.0]
    assert pipe.pending_count() == 0
    counts = pipe.stats()
    assert (counts["failed"], counts["skipped"], counts["ran"]) == (1, 1, 3)


def test_the_error_says_which_line_recorded_the_operation(x, failing):
    pipe = kf.pipeline()
    with pytest.raises(Mine) as raised, pipe:  # noqa: PT012 - the block's end raises
        y = x + 1.0
        bad = failing(y)  # this line
    line = next(
        number
        for number, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if text.endswith("# this line")
    )
    notes = "\n".join(raised.value.__notes__)
    assert f"operation 1 of a pipeline, {failing.name}" in notes
    assert f"test_pipeline_failures.py:{line}" in notes
    failure = pipe.last_error()
    assert (failure.index, failure.operator, failure.after) == (1, failing.name, [0])
    assert failure.line.endswith(f"test_pipeline_failures.py:{line}")
    assert failure.error is raised.value
    assert f"{failing.name}(float64[3])" in failure.call
    assert "recorded at" in str(failure)
    del bad


def test_errors_of_keyfold_name_the_operation_and_the_line(x):
    index = kf.asarray([7])
    with pytest.raises(kf.IndexOutOfRange) as raised, kf.pipeline() as pipe:
        taken = kf.ops.aten.index_select(x, 0, index)
    text = str(raised.value)
    assert "operation 0 of a pipeline, aten::index_select" in text
    assert "test_pipeline_failures.py:" in text
    with pytest.raises(kf.IndexOutOfRange, match="operation 0"):
        taken.numpy()
    assert pipe.last_error().operator == "aten::index_select"


def test_shape_errors_are_the_call_s_own(x):
    with kf.pipeline() as pipe:
        with pytest.raises(kf.ShapeError):
            x + np.ones(2)
        with pytest.raises(kf.IndexOutOfRange):
            x[7]
        assert pipe.pending_count() == 0


def test_a_failure_that_was_raised_by_reading_isn_t_raised_at_the_end(x, failing):
    with kf.pipeline() as pipe:
        bad, good = failing(x), x + 1.0
        assert good.tolist() == [2.0, 3.0, 4.0]
        with pytest.raises(Mine):
            bad.tolist()
    assert pipe.last_error().operator == failing.name


def test_each_failure_is_told_once(x, failing):
    with kf.pipeline() as pipe:
        bad = failing(x)
        with pytest.raises(Mine):
            pipe.flush()
        pipe.flush()
        with pytest.raises(Mine):
            bad.numpy()


def test_the_body_s_own_exception_is_the_one_that_leaves_the_block(x, failing):
    with pytest.raises(ZeroDivisionError) as raised, kf.pipeline():  # noqa: PT012 - the block's end raises
        bad, good = failing(x), x + 1.0
        1 / 0
    assert any("on purpose" in note for note in raised.value.__notes__)
    assert good.tolist() == [2.0, 3.0, 4.0]
    with pytest.raises(Mine):
        bad.tolist()
    assert not (x + 1.0).is_pending, "the pipeline isn't open any more"


def test_a_failure_at_the_end_leaves_nothing_open(x, failing):
    pipe = kf.pipeline()
    with pytest.raises(Mine), pipe:
        bad = failing(x)
    assert not pipe.is_open
    assert not (x + 1.0).is_pending
    with pipe:
        good = x + 1.0
    assert good.tolist() == [2.0, 3.0, 4.0]
    del bad


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_stops_the_program_gives_up_what_waits(x, stop):
    with pytest.raises(stop), kf.pipeline() as pipe:  # noqa: PT012 - the block's end raises
        y = x + 1.0
        raise stop
    assert not y.is_pending
    assert pipe.stats()["ran"] == 0
    with pytest.raises(kf.PipelineError, match="block was left before"):
        y.tolist()
    with pytest.raises(kf.PipelineError, match="block was left before"):
        (y * 2.0).tolist()


def test_ctrl_c_in_a_kernel_stops_the_flush_and_the_rest_can_run_later(x, operator):
    raises = [KeyboardInterrupt()]

    def kernel(x):
        if raises:
            raise raises.pop()
        return x * 2.0

    op = operator("interrupted", kernel)
    with kf.pipeline() as pipe:
        y, z = op(x), x + 1.0
        with pytest.raises(KeyboardInterrupt):
            pipe.flush()
        assert y.is_pending
        assert pipe.pending_count() == 2
        assert y.tolist() == [2.0, 4.0, 6.0]
        assert z.tolist() == [2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("how", "error"), [("kf.sum(y)", "KeyboardInterrupt"), ("kf.sum(y, axis=1)", "TimeoutError")]
)
def test_a_signal_ends_a_long_run_of_tiles_and_it_can_run_later(how, error):
    program = f"""
        import os, signal, threading, time
        import keyfold as kf

        def stop(*_):
            raise {error}

        signal.signal(signal.SIGINT, stop)
        x = kf.ones((2000, 5000), dtype="float32")

        def chain():
            y = x
            for _ in range(40):
                y = kf.tanh(kf.exp(y))
            return {how}

        with kf.pipeline(max_pending_bytes=1 << 40) as pipe:
            total = chain()
            assert [group["tiles"] for group in pipe.explain().groups] == [True]
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                pipe.flush()
                time.sleep(5)
            except {error}:
                print("interrupted" if total.is_pending else "late")
            print(pipe.pending_count())
        print((total.numpy() == chain().numpy()).all())
        replayed = kf.fuse(chain)
        replayed()
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            replayed()
            time.sleep(5)
            print("late")
        except {error}:
            print("interrupted")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=os.environ | {"KEYFOLD_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    expected = ["interrupted", "81", "True", "interrupted"]
    assert done.stdout.split() == expected, done.stderr


def test_a_generator_that_is_closed_gives_up_and_closes(x):
    made = []

    def generate():
        with kf.pipeline():
            made.append(x + 1.0)
            yield
            made.append(x + 2.0)

    generator = generate()
    next(generator)
    assert made[0].is_pending
    generator.close()
    assert len(made) == 1
    assert not made[0].is_pending
    with pytest.raises(kf.PipelineError):
        made[0].tolist()
    assert not (x + 1.0).is_pending


def test_a_cancelled_task_gives_up_what_waits(x):
    made = []

    async def task():
        with kf.pipeline():
            made.append(x + 1.0)
            await asyncio.sleep(60)

    async def main():
        running = asyncio.create_task(task())
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not (x + 1.0).is_pending

    asyncio.run(main())
    with pytest.raises(kf.PipelineError):
        made[0].tolist()


def test_a_tensor_outlives_a_pipeline_that_was_never_closed(x):
    pipe = kf.pipeline()
    context = contextvars.copy_context()
    context.run(pipe.__enter__)
    y = context.run(lambda: x + 1.0)
    assert y.is_pending
    del pipe, context
    gc.collect()
    with pytest.raises(kf.PipelineError, match="pipeline"):
        y.tolist()


def test_the_key_without_a_pipeline_is_an_error(x):
    with kf.include_keys("Pipeline"), pytest.raises(kf.PipelineError, match="no pipeline is open"):
        x + 1.0
    with kf.include_keys("Deferred"):
        assert (x + 1.0).tolist() == [2.0, 3.0, 4.0]


def test_keys_taken_away_inside_a_pipeline_compute_at_once(x):
    with kf.pipeline() as pipe:
        y = x + 1.0
        with kf.exclude_keys("Pipeline"):
            z = y * 2.0
            assert not z.is_pending
            assert not y.is_pending
        with kf.exclude_keys("Pipeline", "Deferred"):
            assert (x + 1.0).tolist() == [2.0, 3.0, 4.0]
        assert pipe.pending_count() == 0
    assert z.tolist() == [4.0, 6.0, 8.0]


def test_a_kernel_may_read_what_waits(x, operator):
    held = {}
    op = operator("reading", lambda x: x * held["other"].sum().item())
    with kf.pipeline():
        y = op(x)
        held["other"] = kf.exp(x * 0.0)
        assert y.tolist() == [3.0, 6.0, 9.0]


def test_a_kernel_that_reads_its_own_result_is_an_error(x, operator):
    held = {}
    op = operator("circular", lambda x: x * held["own"].sum().item())
    with pytest.raises(kf.PipelineError, match="its own result"), kf.pipeline():
        held["own"] = op(x) + 1.0
    held.clear()


def test_a_kernel_may_flush_and_open_a_pipeline(x, operator):
    def kernel(x):
        kf.flush()
        with kf.pipeline():
            y = x + 1.0
        return y * 2.0

    op = operator("flushing", kernel)
    with kf.pipeline() as pipe:
        y, z = op(x), x + 5.0
        pipe.flush()
        assert not z.is_pending
    assert y.tolist() == [4.0, 6.0, 8.0]


def test_an_operator_removed_or_registered_anew_before_the_flush(x, lib):
    lib.define("changing(Tensor x) -> Tensor")
    lib.impl("changing", lambda x: kf.empty_like(x), "Meta")
    first = lib.impl("changing", lambda x: x * 2.0, "CPU")
    op = getattr(kf.ops, lib.ns).changing
    with kf.pipeline():
        y = op(x)
        first.remove()
        lib.impl("changing", lambda x: x * 10.0, "CPU")
    assert y.tolist() == [10.0, 20.0, 30.0], "what is registered when it runs"
    with pytest.raises(kf.OperatorRemoved), kf.pipeline():  # noqa: PT012 - the block's end raises
        y = op(x)
        lib.close()
    with pytest.raises(kf.OperatorRemoved):
        y.tolist()


def test_a_kernel_that_returns_another_form_than_it_said(x, lib):
    lib.define("lying(Tensor x) -> Tensor")
    lib.impl("lying", lambda x: kf.empty_like(x), "Meta")
    lib.impl("lying", lambda x: x[1:], "CPU")
    with pytest.raises(kf.KernelReturnError, match="kernel for Meta"), kf.pipeline():
        y = getattr(kf.ops, lib.ns).lying(x)
    with pytest.raises(kf.KernelReturnError):
        y.tolist()


def test_an_input_changed_where_nobody_sees_it_is_an_error(x):
    with pytest.raises(kf.PipelineError, match="changed in place"), kf.pipeline():  # noqa: PT012 - the block's end raises
        y = x * 2.0
        thread = threading.Thread(target=lambda: x.fill_(100.0))
        thread.start()
        thread.join()
    with pytest.raises(kf.PipelineError):
        y.tolist()


def test_failures_on_the_thread_that_waits_are_told_later(x, failing):
    with pytest.raises(Mine), kf.pipeline(max_wait=0.01):  # noqa: PT012 - the block's end raises
        y = failing(x)
        while y.is_pending:
            pass
    with pytest.raises(Mine):
        y.tolist()


def test_no_memory_at_the_flush(x):
    with pytest.raises(kf.OutOfMemory), kf.pipeline():  # noqa: PT012 - the block's end raises
        huge = kf.zeros(2**46)
        good = x + 1.0
    assert good.tolist() == [2.0, 3.0, 4.0]
    with pytest.raises(kf.OutOfMemory):
        huge.numpy()


def test_nothing_is_kept_alive(x, operator):
    freed = []

    class Token:
        def __del__(self):
            freed.append(1)

    def kernel(x):
        return x * 2.0

    op = operator("kept", kernel)
    for _ in range(3):
        array = np.ones(3).view(Held)
        array.token = Token()
        tensor = kf.asarray(np.asarray(array))
        with kf.pipeline() as pipe:
            y = op(tensor + 1.0) + 1.0
            z = op(tensor)
            y[0] = 1.0
            pipe.flush()
            w = z + 1.0
        del array, tensor, y, z, w, pipe
    gc.collect()
    assert freed == [1, 1, 1]


class Held(np.ndarray):
    """An array with attributes."""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_of_fork_computes_what_waited():
    program = """
import os, sys
import keyfold as kf
x = kf.asarray([1.0, 2.0, 3.0])
with kf.pipeline() as pipe:
    y = kf.exp(x * 0.0) + x
    child = os.fork()
    if child == 0:
        ok = y.is_pending and y.tolist() == [2.0, 3.0, 4.0]
        z = y + 1.0
        ok = ok and z.is_pending and z.tolist() == [3.0, 4.0, 5.0]
        os._exit(0 if ok else 1)
    status = os.waitpid(child, 0)[1]
    assert y.is_pending
assert y.tolist() == [2.0, 3.0, 4.0]
sys.exit(status)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=120).returncode == 0


def test_the_interpreter_ends_with_work_pending():
    program = """
import keyfold as kf, threading, time
x = kf.asarray([1.0, 2.0, 3.0])
pipe = kf.pipeline(max_wait=30)
pipe.__enter__()
y = x + 1.0
def forever():
    with kf.pipeline(max_wait=0.001):
        while True:
            z = x + 1.0
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.05)
print("ends")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], timeout=120, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")
