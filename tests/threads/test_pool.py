"""How many threads operators compute with; and that children of fork compute at all."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import keyfold as kf

MANY = 10_000_000


@pytest.fixture(autouse=True)
def threads():
    """Leaves the number of threads as it was."""
    before = kf.get_num_threads()
    yield
    kf.set_num_threads(before)


def run(code, **environment):
    """Return the output of a fresh process."""
    environment = {**os.environ, **environment}
    done = subprocess.run(
        [sys.executable, "-c", f"import keyfold as kf\n{code}"],
        env={name: value for name, value in environment.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def compute():
    """Work of 10 million elements, and whether the result is right."""
    x = kf.arange(MANY, dtype=kf.float32)
    y = kf.add(x, x)
    sample = np.asarray(y)[:: MANY // 7]
    return bool((sample == 2 * np.arange(MANY, dtype=np.float32)[:: MANY // 7]).all())


def test_the_number_of_threads_can_be_set():
    for n in (1, 2, 5):
        kf.set_num_threads(n)
        assert kf.get_num_threads() == n
        assert compute()


@pytest.mark.parametrize("n", [0, -1, 4097, 2**70])
def test_a_number_of_threads_out_of_range_is_an_error_that_names_it(n):
    before = kf.get_num_threads()
    with pytest.raises(kf.InvalidValue, match=f"set_num_threads.*'n' is {n};"):
        kf.set_num_threads(n)
    assert kf.get_num_threads() == before


@pytest.mark.parametrize("n", [1.0, "2", None, True])
def test_what_is_no_int_is_no_number_of_threads(n):
    with pytest.raises(kf.BindingError, match=f"'n' must be an int, not {type(n).__name__}"):
        kf.set_num_threads(n)


def test_the_environment_says_how_many_threads():
    assert run("print(kf.get_num_threads())", KEYFOLD_NUM_THREADS="3") == "3"


@pytest.mark.parametrize("text", ["many", "0", "-2", "1.5", "9999999", "1 2"])
def test_a_wrong_environment_is_an_error_that_quotes_it_until_a_number_is_set(text):
    code = """
try:
    kf.get_num_threads()
except kf.InvalidValue as error:
    print(error)
kf.set_num_threads(2)
print(kf.get_num_threads())
"""
    first, last = run(code, KEYFOLD_NUM_THREADS=text).splitlines()
    assert f"KEYFOLD_NUM_THREADS is '{text}'" in first
    assert last == "2"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no processor affinity here")
def test_without_a_number_affinity_decides():
    allowed = sorted(os.sched_getaffinity(0))
    for some in (allowed[:1], allowed):
        code = f"import os; os.sched_setaffinity(0, {some}); print(kf.get_num_threads())"
        assert run(code, KEYFOLD_NUM_THREADS=None) == str(len(some))


def in_child(results):
    kf.set_num_threads(kf.get_num_threads())
    results.put((compute(), kf.get_num_threads()))


def test_a_child_of_fork_computes_after_its_parent_did():
    kf.set_num_threads(4)
    assert compute()
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    children = [context.Process(target=in_child, args=(results,)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(timeout=120)
        assert child.exitcode == 0
        assert results.get() == (True, 4)
    assert compute()


def test_children_of_fork_compute_while_threads_of_the_parent_do():
    kf.set_num_threads(3)
    stop = threading.Event()

    def keep_computing():
        while not stop.is_set():
            kf.exp(kf.ones(50_000))

    callers = [threading.Thread(target=keep_computing, daemon=True) for _ in range(2)]
    for caller in callers:
        caller.start()
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    for _ in range(5):
        child = context.Process(target=in_child, args=(results,))
        child.start()
        child.join(timeout=120)
        assert child.exitcode == 0
        assert results.get() == (True, 3)
    stop.set()
    for caller in callers:
        caller.join()


def test_workers_never_keep_the_process_from_ending():
    code = "kf.set_num_threads(4); x = kf.ones(3_000_000); print(float((x + x)[7]))"
    assert run(code) == "2.0"
