"""Operations that don't depend on each other run concurrently, with the results of one by one."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import keyfold as kf

SIZE = 96


@pytest.fixture(autouse=True)
def two_threads():
    before = kf.get_num_threads()
    kf.set_num_threads(2)
    yield
    kf.set_num_threads(before)


def matrices(count: int, size: int = SIZE) -> list[kf.Tensor]:
    """Random matrices in memory of keyfold's own."""
    rng = np.random.default_rng(3)
    return [kf.asarray(rng.normal(size=(size, size)), copy=True) for _ in range(count)]


def branches(*all_: kf.Tensor) -> list[kf.Tensor]:
    """One chain of operations for each input."""
    return [kf.tanh(kf.matmul(x, x) + 1.0) @ x for x in all_]


def same_bits(a: kf.Tensor, b: kf.Tensor) -> bool:
    return a.numpy().tobytes() == b.numpy().tobytes()


def test_explain_and_stats_tell_what_runs_concurrently():
    inputs = matrices(4)
    with kf.pipeline() as pipe:
        results = branches(*inputs)
        plan = pipe.explain()
    assert plan.concurrent == [[[0], [4], [8], [12]], [[3], [7], [11], [15]]]
    assert "concurrently: %0; %4; %8; %12" in str(plan)
    assert "alone, concurrently with others of level 1" in plan._repr_html_()
    assert (pipe.stats()["concurrent"], pipe.stats()["ran"], pipe.stats()["groups"]) == (8, 16, 4)
    assert all(map(same_bits, results, branches(*inputs)))


def test_one_thread_runs_one_by_one():
    kf.set_num_threads(1)
    inputs = matrices(4)
    with kf.pipeline() as pipe:
        results = branches(*inputs)
        plan = pipe.explain()
    assert plan.concurrent == []
    assert "concurrently" not in str(plan)
    assert pipe.stats()["concurrent"] == 0
    kf.set_num_threads(2)
    assert all(map(same_bits, results, branches(*inputs)))


def test_a_fused_function_runs_concurrently_with_and_without_the_gil():
    fused = kf.fuse(branches)
    for size in (SIZE, 128, SIZE):
        inputs = matrices(4, size)
        assert all(map(same_bits, fused(*inputs), branches(*inputs)))
    assert fused.explain().splitlines()[1] == "  16 operations in 12 steps, 8 of them concurrently"
    arrays = [x.numpy() for x in matrices(4)]
    for found, expected in zip(fused(*arrays), branches(*matrices(4)), strict=True):
        assert isinstance(found, np.ndarray)
        assert same_bits(kf.asarray(found), expected)


def test_a_failure_names_its_operation_and_the_others_are_computed():
    good = kf.asarray(np.eye(SIZE), copy=True)
    bad, others = -good, matrices(4)
    with pytest.raises(kf.InvalidValue) as raised, kf.pipeline() as pipe:  # noqa: PT012 - at its end
        results = [kf.linalg.cholesky(x) for x in (good, bad, good, bad)]
        products = [kf.matmul(x, x) for x in results]
        systems = [kf.linalg.qr(x).R for x in others]
        steps = [step for one in pipe.explain().concurrent for step in one]
    assert sorted(steps) == [[at] for at in range(12)]
    assert "operation 1 of a pipeline, aten::linalg_cholesky, recorded at" in str(raised.value)
    assert pipe.last_error().index == 3
    assert not any(x.is_pending for x in (*results, *products, *systems))
    for at in (0, 2):
        assert same_bits(products[at], good)
    for at in (1, 3):
        with pytest.raises(kf.InvalidValue, match=f"operation {at} of a pipeline"):
            products[at].tolist()
    assert all(map(same_bits, systems, [kf.linalg.qr(x).R for x in others]))


def test_ctrl_c_ends_the_flush_and_the_rest_can_run_later():
    inputs = matrices(24, 200)
    main = threading.main_thread().ident
    with kf.pipeline() as pipe:
        results = [kf.linalg.svdvals(x) for x in inputs]
        assert len(pipe.explain().concurrent) == 1
        timer = threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come late
            pipe.flush()
            timer.join()
        ran = pipe.stats()["ran"]
        assert pipe.pending_count() == 24 - ran
        pipe.flush()
        assert pipe.stats()["ran"] == 24
    assert all(map(same_bits, results, [kf.linalg.svdvals(x) for x in inputs]))


def test_ctrl_c_ends_a_replay():
    inputs = matrices(24, 200)
    fused = kf.fuse(lambda *all_: [kf.linalg.svdvals(x) for x in all_])
    expected = fused(*inputs)
    main = threading.main_thread().ident
    timer = threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come late
        fused(*inputs)
        timer.join()
    assert all(map(same_bits, fused(*inputs), expected))


# In a process of its own: threads that wait for each other's lock never end.
REPLAYS_OVER_NUMPY = """
import threading
import numpy as np
import keyfold as kf

kf.set_num_threads(2)
rng = np.random.default_rng(3)
concurrent = kf.fuse(lambda *all_: [kf.linalg.qr(x.T).R + kf.linalg.det(x) for x in all_])
tiled = kf.fuse(lambda a, b: kf.sum(kf.tanh(a * b), axis=1))
square = [rng.normal(size=(48, 48)) for _ in range(8)]
long = [rng.normal(size=(1500, 1)), rng.normal(size=(1, 1500))]
expected = [np.array(concurrent(*square)), np.array(tiled(*long))]
assert "concurrently" in concurrent.explain()

def replay():
    for _ in range(25):
        # Dropping the copies takes the GIL.
        np.testing.assert_array_equal(concurrent(*map(np.array, square)), expected[0])
        np.testing.assert_array_equal(tiled(*map(np.array, long)), expected[1])
    ended.append(True)

ended = []
threads = [threading.Thread(target=replay) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(ended) == 8
"""


def test_replays_over_small_arrays_of_numpy_release_the_gil_for_the_threads_that_take_references():
    assert subprocess.run([sys.executable, "-c", REPLAYS_OVER_NUMPY], timeout=300).returncode == 0


def test_the_check_looks_at_them():
    inputs = matrices(4)
    with kf.pipeline(check="eager") as pipe:
        results = branches(*inputs)
    assert (pipe.stats()["checked"], pipe.stats()["concurrent"]) == (12, 8)
    assert all(map(same_bits, results, branches(*inputs)))


def test_threads_replay_at_once():
    fused = kf.fuse(branches)
    inputs = matrices(4)
    expected = branches(*inputs)
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: fused(*inputs), range(40)):
            assert all(map(same_bits, found, expected))


def test_a_profile_has_their_ranges_inside_one_for_all():
    inputs = matrices(4)
    with kf.profile() as profile, kf.pipeline():
        results = [kf.linalg.qr(x) for x in inputs]
    assert all(same_bits(own.R, kf.linalg.qr(x).R) for own, x in zip(results, inputs, strict=True))
    own = [event for event in profile.events if event["name"] == "pipeline: aten::linalg_qr"]
    assert len(own) == 4
    around = "pipeline: " + ", ".join(["aten::linalg_qr"] * 4) + " concurrently"
    assert {profile.events[event["parent"]]["name"] for event in own} == {around}
