"""How a pipeline's blocks begin and end beside threads, tasks, timers and gradients."""

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
import time

import pytest

import keyfold as kf


@pytest.fixture
def x():
    return kf.asarray([1.0, 2.0, 3.0], copy=True)


def sums(w):
    total = kf.zeros(3) * 1.0
    for factor in range(3):
        total += w * float(factor)
    return total


def parts(w):
    whole = kf.zeros(3) * 2.0
    whole[:2] = w[:2]
    return whole * w


def read_and_written(w):
    total = kf.zeros(3) * 1.0
    doubled = total * 2.0
    total += w
    return total + doubled


WRITES = [sums, parts, read_and_written]


def test_gradients_of_a_pipeline_are_not_copied_unless_somebody_else_holds_them():
    x = kf.asarray([1.0, 2.0, 3.0], copy=True).requires_grad_()
    other = kf.asarray([3.0, 4.0, 5.0], copy=True).requires_grad_()
    weight = kf.asarray([1.0, 2.0, 3.0], copy=True)
    # The gradients of a sum are one tensor: the first copy of it waits to read it.
    for function, copies in ((kf.multiply, 0), (kf.add, 2)):
        x.grad = other.grad = None
        with kf.pipeline() as pipe:
            kf.sum(function(x, other) * weight).backward()
            assert str(pipe.explain()).count("aten::clone") == copies
            x.grad.fill_(7.0)
        expected = weight.numpy() * (1.0 if function is kf.add else x.detach().numpy())
        assert other.grad.tolist() == expected.tolist()


@pytest.mark.parametrize("function", WRITES)
def test_gradients_of_writes_to_what_waiting_calls_read_are_the_eager_ones(function):
    def gradient():
        w = kf.asarray([1.0, 2.0, 3.0], copy=True)
        w.requires_grad_()
        result = function(w)
        kf.sum(result).backward()
        return result.tolist(), w.grad.tolist()

    eager = gradient()
    for _ in range(4):
        with kf.pipeline():
            assert gradient() == eager


@pytest.mark.parametrize("function", WRITES)
def test_fused_functions_and_transforms_write_to_what_waiting_calls_read(x, function):
    one = kf.ones(3)
    expected = kf.jvp(function, (x,), (one,)), kf.grad(lambda w: kf.sum(function(w)))(x)
    fused = kf.fuse(function)
    w = x.clone()
    w.requires_grad_()
    for _ in range(4):
        with kf.pipeline():
            found = kf.jvp(function, (x,), (one,)), kf.grad(lambda w: kf.sum(function(w)))(x)
        assert str(found) == str(expected)
        assert fused(w).tolist() == expected[0][0].tolist()


def test_a_write_that_other_tensors_would_miss_is_an_error_in_a_pipeline_too(x):
    x.requires_grad_()
    for _ in range(4):
        with kf.pipeline():
            whole = kf.zeros(3) * 2.0
            view = whole[:2]
            with pytest.raises(kf.GradientError, match="shares its memory"):
                whole += x
            assert view.tolist() == [0, 0]


def test_a_failed_call_keeps_its_argument_without_being_a_reader(x):
    target, far = kf.zeros(3), kf.asarray([7])
    x.requires_grad_()
    with pytest.raises(kf.IndexOutOfRange), kf.pipeline() as pipe:
        y = kf.take(target, far)
    assert pipe.last_error() is not None
    del y
    target += x
    kf.sum(target).backward()
    assert x.grad.tolist() == [1, 1, 1]


def until(condition):
    """Wait until a condition holds."""
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.001)


def test_an_interrupt_gives_up_what_was_recorded_while_the_timer_s_thread_computes(x, operator):
    began, goes_on = threading.Event(), threading.Event()

    def kernel(x):
        began.set()
        assert goes_on.wait(60)
        return x + 1.0

    slow = operator("slow", kernel)
    pipe = kf.pipeline(max_wait=0.001)
    with pytest.raises(KeyboardInterrupt), pipe:  # noqa: PT012 - what waits is made in the block
        y = slow(x)
        assert began.wait(60)
        z = kf.exp(x)
        raise KeyboardInterrupt
    goes_on.set()
    until(lambda: pipe.pending_count() == 0)
    assert pipe.pending_bytes() == 0
    assert y.tolist() == [2, 3, 4]
    with pytest.raises(kf.PipelineError, match="left before"):
        z.tolist()
    with pipe:
        again = x + 1.0
    assert again.tolist() == [2, 3, 4]


def test_what_another_thread_records_while_the_block_ends_is_computed(x, operator):
    made = []

    def kernel(x):
        # The thread has the block's context, in which it is recorded.
        record = threading.Thread(target=context.run, args=(lambda: made.append(x + 1.0),))
        record.start()
        record.join(60)
        return x * 1.0

    slow = operator("slow", kernel)
    with kf.pipeline() as pipe:
        context = contextvars.copy_context()
        y = slow(x)
    assert (y.tolist(), made[0].tolist()) == ([1, 2, 3], [2, 3, 4])
    assert pipe.pending_count() == 0
    assert not context.run(lambda: x + 1.0).is_pending


def test_one_pipeline_may_be_open_in_several_tasks(x):
    pipe = kf.pipeline()

    async def task(begins, lasts):
        await asyncio.sleep(begins)
        with pipe:
            y = x + 1.0
            await asyncio.sleep(lasts)
            z = x * 2.0
            assert z.is_pending
        assert not (x + 1.0).is_pending
        return y.tolist(), z.tolist()

    async def both():
        return await asyncio.gather(task(0, 0.02), task(0.01, 0.03), task(0, 0))

    assert asyncio.run(both()) == [([2, 3, 4], [2, 4, 6])] * 3
    assert not pipe.is_open


def test_one_pipeline_may_be_open_in_several_threads(x):
    pipe, inside = kf.pipeline(), threading.Barrier(3)
    found = []

    def run(leaves):
        with pipe:
            y = x + 1.0
            inside.wait(60)
            until(lambda: len(found) == leaves)
        found.append((leaves, y.tolist(), (x + 1.0).is_pending))

    threads = [threading.Thread(target=run, args=(leaves,)) for leaves in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [(leaves, [2, 3, 4], False) for leaves in range(3)]


def test_blocks_that_end_with_the_interpreter_are_quiet():
    program = """
import contextvars
import keyfold as kf
def block():
    with kf.pipeline():
        yield kf.ones(3) + 1.0
blocks = block(), block()
for one in blocks:
    next(one)
other = block()
contextvars.copy_context().run(next, other)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], timeout=120, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "panic" not in done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_children_of_fork_open_pipelines_while_other_threads_of_the_parent_do():
    program = """
import os, signal, threading, time
import keyfold as kf
x, stop = kf.asarray([1.0, 2.0, 3.0]), threading.Event()
# First calls before the threads begin: a child can't end what another thread had begun to make.
for _ in range(4):
    with kf.pipeline(max_wait=0.0003):
        y = x + 1.0
        while y.is_pending:
            time.sleep(0.001)
    y.tolist()
def forever():
    while not stop.is_set():
        with kf.pipeline(max_wait=0.0003):
            y = x + 1.0
threads = [threading.Thread(target=forever) for _ in range(2)]
for thread in threads:
    thread.start()
statuses = []
for _ in range(30):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        with kf.pipeline(max_wait=0.001):
            y = x + 1.0
            while y.is_pending:
                time.sleep(0.001)
        os._exit(0 if y.tolist() == [2.0, 3.0, 4.0] else 1)
    statuses.append(os.waitpid(child, 0)[1])
stop.set()
for thread in threads:
    thread.join()
print(statuses == [0] * 30)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], timeout=300, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
