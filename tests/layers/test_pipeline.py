"""Deferred execution: what waits, what computes it, and what it has in common with other layers."""

import asyncio
import contextvars
import copy
import inspect
import pickle
import re
import threading
import time

import numpy as np
import pytest

import keyfold as kf
from keyfold import DispatchKey, DispatchKeySet

X = np.array([1.0, 2.0, 3.0])


@pytest.fixture
def x():
    return kf.asarray(X, copy=True)


def test_pipeline_defers_execution(x):
    with kf.pipeline() as pipe:
        y = x * 2.0
        assert y._pending
        assert y.is_pending
        assert pipe.pending_count() == 1
        assert (y.shape, y.dtype, y.device) == ((3,), kf.float64, "cpu")
        pipe.flush()
        assert not y._pending
        assert pipe.pending_count() == 0
    assert y.tolist() == [2.0, 4.0, 6.0]


def test_pipeline_flushes_on_backward(x):
    x.requires_grad_()
    with kf.pipeline(flush_on_backward=True) as pipe:
        loss = kf.sum(x * x)
        assert loss._pending
        loss.backward()
        assert not loss._pending
        assert pipe.pending_count() == 0
        assert not x.grad._pending
    assert x.grad.tolist() == [2.0, 4.0, 6.0]


def test_keyset_includes_pipeline_when_enabled(x):
    keys = DispatchKeySet.from_tensors([x], pipeline_enabled=True)
    assert DispatchKey.Pipeline in keys
    assert DispatchKey.CPU in keys
    assert DispatchKey.Pipeline not in DispatchKeySet.from_tensors([x])
    with kf.pipeline():
        keys = DispatchKeySet.from_tensors([x * 2.0], pipeline_enabled=True)
    assert keys == DispatchKeySet("Pipeline", "Deferred", "CPU")


READS = {
    "numpy()": lambda t: t.numpy(),
    "np.asarray": np.asarray,
    "tolist": lambda t: t.tolist(),
    "repr": repr,
    "str": str,
    "DLPack": np.from_dlpack,
    "kf.from_dlpack": lambda t: kf.from_dlpack(t).tolist(),
    "pickle": lambda t: pickle.loads(pickle.dumps(t)).tolist(),
    "deepcopy": lambda t: copy.deepcopy(t).tolist(),
    "iteration": lambda t: [float(item) for item in t],
    "data_ptr": lambda t: t.data_ptr(),
    "float": lambda t: float(t[0]),
    "int": lambda t: int(t[0]),
    "bool": lambda t: bool(t[0]),
    "complex": lambda t: complex(t[0]),
    "item": lambda t: t[0].item(),
    "cpu": lambda t: t.cpu().tolist(),
    "NumPy's function": lambda t: np.concatenate([t, t]),
    "an array of tensors": lambda t: np.array([t, t]),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_each_way_to_read_computes_once(x, read):
    with kf.pipeline() as pipe:
        y = kf.exp(x) * 2.0
        read(y)
        flushes = pipe.stats()["flushes"]
        assert not y.is_pending
        assert flushes == 1
        assert np.array_equal(y.numpy(), np.exp(X) * 2.0)
        assert pipe.stats()["flushes"] == flushes


def test_a_pending_tensor_has_an_address_only_when_it_is_computed(x):
    with kf.pipeline():
        y = x + 1.0
        assert y.data_ptr() != 0
        array = (x + 2.0).numpy()
        assert array.ctypes.data != 0
        assert array.tolist() == [3.0, 4.0, 5.0]


def test_flush_without_a_pipeline_does_nothing(x):
    kf.flush()
    with kf.pipeline() as pipe:
        y = x + 1.0
        kf.flush()
        assert not y.is_pending
        assert pipe.pending_count() == 0


def test_arrays_of_other_libraries_are_constants_and_results_are_tensors():
    a = X.copy()
    with kf.pipeline() as pipe:
        y = kf.exp(a)
        assert type(y) is kf.Tensor
        assert y.is_pending
        assert pipe.pending_bytes() == 2 * a.nbytes
        a[:] = 100.0
        assert np.array_equal(y.numpy(), np.exp(X))
    assert type(kf.exp(a)) is np.ndarray


def test_an_array_is_copied_again_only_after_it_changed():
    a = X.copy()
    x = kf.asarray(a)
    with kf.pipeline() as pipe:
        y = kf.exp(a) * a + x
        assert pipe.pending_bytes() == (1 + 3) * a.nbytes
        a[1] = -5.0
        z = x * 2.0
        assert pipe.pending_bytes() == (2 + 4) * a.nbytes
        assert (x * 2.0).tolist() == [2.0, -10.0, 6.0]
        a[1] = X[1]
        w = kf.stack([x, x, kf.asarray(a[::2].repeat(2)[:3])])
        part = x[1:] + a[1:]
        assert pipe.pending_bytes() == (1 + 1 + 3) * a.nbytes + (1 + 1) * a[1:].nbytes
    assert np.array_equal(y.numpy(), np.exp(X) * X + X)
    assert z.tolist() == [2.0, -10.0, 6.0]
    assert w.tolist() == [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 1.0, 3.0]]
    assert part.tolist() == [4.0, 6.0]


def test_copies_go_with_the_operations_that_read_them(x):
    arrays = [np.full(250_000, float(number)) for number in range(8)]
    with kf.pipeline(max_pending_bytes=1 << 40) as pipe:
        waits = kf.exp(x)
        before = kf.memory_stats()["live"]
        for array in arrays:
            y = kf.dropout(kf.sum(kf.multiply(array, 2.0)), 0.5)
            # It runs what draws, and what that needs, and nothing else.
            kf.get_rng_state()
            assert not y.is_pending
        assert waits.is_pending
        assert pipe.pending_count() == 1
        assert kf.memory_stats()["live"] - before < array.nbytes


@pytest.mark.parametrize("give", [lambda t: t.numpy(), np.from_dlpack, np.asarray])
def test_memory_that_another_library_is_given_was_read_before(give):
    x = kf.asarray(np.full(3, 0.5), copy=True)
    with kf.pipeline() as pipe:
        y = kf.sin(x) * 2.0
        shared = give(x)
        # The sine has run, and what reads it still waits.
        assert pipe.pending_count() == 1
        z = kf.cos(x)
        if shared.flags.writeable:
            shared[:] = 0.0
        assert pipe.pending_count() == 2
    assert np.array_equal(y.numpy(), np.full(3, np.sin(0.5) * 2.0))
    assert np.array_equal(z.numpy(), np.full(3, np.cos(0.5)))


def test_memory_that_numpy_may_write_is_copied(x):
    shared = x.numpy()
    with kf.pipeline():
        y = x * 2.0
        shared[:] = 100.0
    assert y.tolist() == [2.0, 4.0, 6.0]


def test_an_input_written_in_place_keeps_its_old_value_for_calls_before(x):
    with kf.pipeline() as pipe:
        y = x * 2.0
        x[0] = 100.0
        z = x * 2.0
        assert pipe.pending_count() == 1
    assert y.tolist() == [2.0, 4.0, 6.0]
    assert z.tolist() == [200.0, 4.0, 6.0]


def test_writes_to_pending_tensors_wait_in_order(x):
    with kf.pipeline() as pipe:
        y = x * 2.0
        before = y + 0.0
        y[1] = -1.0
        y += 1.0
        after = y + 0.0
        part = y[1:]
        part[1] = 50.0
        assert pipe.stats()["at_once"] == 0, pipe.explain()
        assert before.is_pending
        assert y.is_pending
    assert before.tolist() == [2.0, 4.0, 6.0]
    assert after.tolist() == [3.0, 0.0, 7.0]
    assert y.tolist() == [3.0, 0.0, 50.0]


def test_results_that_nobody_holds_are_left_out(x):
    with kf.pipeline() as pipe:
        kf.exp(kf.exp(x))
        y = x + 1.0
        assert [one["dead"] for one in pipe.explain().operations] == [True, True, False]
    assert y.tolist() == [2.0, 3.0, 4.0]
    assert pipe.stats()["dead"] == 2
    assert pipe.stats()["ran"] == 1


def test_random_numbers_are_those_of_the_program_without_a_pipeline():
    def draw():
        kf.manual_seed(3)
        a = kf.randn(5)
        kf.rand(7)
        state = kf.get_rng_state()
        b = kf.dropout(kf.ones(20), 0.5)
        kf.set_rng_state(state)
        c = kf.rand(3)
        kf.manual_seed(4)
        return [a, b, c, kf.rand(2)]

    eager = [t.tolist() for t in draw()]
    with kf.pipeline():
        deferred = draw()
    assert [t.tolist() for t in deferred] == eager


def test_calls_that_can_t_wait_run_at_once_and_say_why(x, define):
    op = define("nometa(Tensor x) -> Tensor", lambda x: x * 2.0)
    with kf.pipeline() as pipe:
        y = x + 1.0
        assert not op(y).is_pending
        assert (y[y > 2.0]).tolist() == [3.0, 4.0]
        reasons = {one["operator"]: one["reason"] for one in pipe.explain().at_once}
        assert reasons[op.name] == "it has no kernel for Meta"
        assert "ran at once: it has no kernel for Meta" in str(pipe.explain())


def test_a_kernel_in_python_waits_too_if_its_shape_is_known(x):
    seen = []

    @kf.custom_op("pipelinetests::scaled", mutates_args=())
    def scaled(x: kf.Tensor, k: float) -> kf.Tensor:
        seen.append(x.is_pending)
        return x * k

    scaled.register_fake(lambda x, k: kf.empty_like(x))
    with kf.pipeline() as pipe:
        y = scaled(x + 1.0, 3.0)
        assert y.is_pending
        assert seen == []
        assert pipe.pending_count() == 2
    assert seen == [False]
    assert y.tolist() == [6.0, 9.0, 12.0]


def test_the_plan_shows_calls_lines_and_what_waits(x):
    with kf.pipeline() as pipe:
        y = kf.exp(x * 2.0)
        plan = pipe.explain()
        assert pipe.pending_count() == 2, "looking runs nothing"
    first, second = plan.operations
    assert first["call"].startswith("%0: float64[3] = aten::mul.Scalar(float64[3], 2.0")
    assert second["call"] == "%1: float64[3] = aten::exp(%0)"
    assert second["after"] == [0]
    assert re.fullmatch(r".*test_pipeline\.py:\d+", first["line"])
    assert "2 operations wait, 48 bytes" in str(plan)
    assert "aten::exp" in plan._repr_html_()
    assert y.shape == (3,)


@pytest.mark.parametrize(
    "view",
    [
        *(np.s_[6:62, 1:57], np.s_[::2, ::2], np.s_[:, :1], np.s_[::-1, 3:], np.s_[:, 5], np.s_[7]),
        *(np.s_[1:63:3, 2::5], np.s_[::-4, ::9], np.s_[:, ::16], np.s_[::31, 1:3]),
    ],
)
def test_views_of_other_libraries_arrays_have_the_bits_of_eager_calls(view):
    array = np.random.default_rng(3).standard_normal((64, 64))
    x = kf.asarray(array)[view]
    with kf.pipeline():
        deferred = [kf.sum(x, axis=0), kf.mean(x), kf.softmax(x, axis=-1) if x.ndim > 1 else x * 2]
    eager = [kf.sum(x, axis=0), kf.mean(x), kf.softmax(x, axis=-1) if x.ndim > 1 else x * 2]
    for own, expected in zip(deferred, eager, strict=True):
        assert own.numpy().tobytes() == expected.numpy().tobytes()


def test_the_limits_hold_over_everything_that_waits(x):
    with kf.pipeline(max_ops=2):
        y, z = x + 1.0, x + 2.0
        assert not y.is_pending
        assert not z.is_pending
    with kf.pipeline(max_pending_bytes=70):
        kept = [x + 1.0, x + 2.0]
        assert all(t.is_pending for t in kept)
        kept.append(x + 3.0)
        assert not any(t.is_pending for t in kept)
    for limits in [{"max_ops": 0}, {"max_pending_bytes": 0}, {"max_wait": 0}, {"max_wait": -1}]:
        with pytest.raises(kf.InvalidValue, match=next(iter(limits))):
            kf.pipeline(**limits)


def test_what_waited_too_long_runs_on_its_own(x):
    with kf.pipeline(max_wait=0.01):
        y = x + 1.0
        while y.is_pending:
            time.sleep(0.001)
        assert y.tolist() == [2.0, 3.0, 4.0]


def test_a_pipeline_inside_another_joins_it(x):
    with kf.pipeline() as outer:
        y = x + 1.0
        with kf.pipeline(max_ops=1) as inner:
            assert inner.is_joined
            assert not outer.is_joined
            z = y * 2.0
            assert z.is_pending
            assert inner.pending_count() == outer.pending_count() == 2
        assert not z.is_pending
        assert not y.is_pending
        assert (x * 3.0).is_pending
    assert z.tolist() == [4.0, 6.0, 8.0]


def test_a_pipeline_can_be_opened_again(x):
    pipe = kf.pipeline()
    for _ in range(2):
        with pipe:
            assert pipe.is_open
            y = x + 1.0
            assert y.is_pending
        assert not pipe.is_open
        assert y.tolist() == [2.0, 3.0, 4.0]
    with pytest.raises(kf.GuardError, match="without being open"):
        pipe.__exit__(None, None, None)


def test_gradients_join_the_record(x):
    x.requires_grad_()
    eager = kf.grad(lambda x: kf.sum(kf.exp(x) * x))(x).tolist()
    with kf.pipeline() as pipe:
        loss = kf.sum(kf.exp(x) * x)
        loss.backward()
        assert loss.is_pending
        assert x.grad.is_pending
        assert pipe.stats()["flushes"] == 0
    assert x.grad.tolist() == eager


def test_a_saved_result_written_in_place_is_still_an_error(x):
    x.requires_grad_()
    with kf.pipeline():
        y = kf.exp(x)
        with kf.no_grad():
            y.detach().fill_(0.0)
        with pytest.raises(kf.GradientError, match=r"changed|written"):
            kf.sum(y).backward()


def test_vmap_autocast_and_the_profiler_work_around_and_inside(x):
    matrix = kf.asarray(np.arange(6.0, dtype=np.float32).reshape(2, 3))

    def f(row):
        return kf.sum(kf.exp(row) * 2.0)

    eager = kf.vmap(f)(matrix).tolist()
    with kf.profile() as profile, kf.pipeline() as pipe:
        y = kf.vmap(f)(matrix)
        assert y.is_pending
        assert pipe.stats()["at_once"] == 0
        with kf.autocast("bfloat16"):
            product = matrix @ matrix.T
        assert product.dtype == kf.bfloat16
        assert product.is_pending
    assert y.tolist() == eager
    with kf.autocast("bfloat16"):
        assert (matrix @ matrix.T).tolist() == product.tolist()
    names = {event["name"] for event in profile.events}
    assert {"aten::exp", "aten::matmul"} <= names
    # The flush, too: which operations it computed together.
    assert "pipeline: aten::matmul" in names
    assert any(name.startswith("pipeline: aten::exp, aten::mul") for name in names), names


def test_a_trace_inside_a_pipeline_is_the_same_graph(x):
    def f(x):
        y = x * 2.0
        y = y.reshape(3, 1)
        return kf.exp(y[1:]) + y[1:]

    eager = str(kf.trace(f, x))
    with kf.pipeline():
        assert str(kf.trace(f, x)) == eager
        assert str(kf.trace(f, x + 0.0)) == eager
    with kf.pipeline(max_ops=1):
        assert str(kf.trace(f, x)) == eager


def test_views_of_pending_tensors_wait_without_an_operation(x):
    with kf.pipeline() as pipe:
        y = x + 1.0
        parts = [y[1:], y.reshape(3, 1), y[::-1], kf.broadcast_to(y, (2, 3))]
        assert pipe.pending_count() == 1
        assert all(part.is_pending for part in parts)
    assert [part.tolist() for part in parts] == [
        [3.0, 4.0],
        [[2.0], [3.0], [4.0]],
        [4.0, 3.0, 2.0],
        [[2.0, 3.0, 4.0]] * 2,
    ]


def test_pending_tensors_are_the_same_objects_after_in_place_operators(x):
    with kf.pipeline():
        y = x + 1.0
        same = y
        y *= 2.0
        assert y is same
        assert y.fill_(7.0) is y
        assert kf.exp(y) is not y
    assert y.tolist() == [7.0, 7.0, 7.0]


def test_other_threads_compute_and_read(x):
    results = []
    with kf.pipeline():
        y = kf.exp(x)

        def work():
            results.append((y * 2.0).tolist())

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [(np.exp(X) * 2.0).tolist()] * 8


def test_threads_have_pipelines_of_their_own(x):
    def work(number, out):
        with kf.pipeline(max_ops=5):
            y = x
            for _ in range(100):
                y = y * 1.5 + number - y * 0.5
        out[number] = y.tolist()

    def eager(number):
        y = x
        for _ in range(100):
            y = y * 1.5 + number - y * 0.5
        return y.tolist()

    out = {}
    threads = [threading.Thread(target=work, args=(n, out)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert out == {number: eager(number) for number in range(8)}


def test_a_thread_with_the_context_records_in_the_same_pipeline(x):
    with kf.pipeline() as pipe:
        context = contextvars.copy_context()
        made = []
        thread = threading.Thread(target=lambda: made.append(context.run(lambda: x + 1.0)))
        thread.start()
        thread.join()
        assert made[0].is_pending
        assert pipe.pending_count() == 1
    assert made[0].tolist() == [2.0, 3.0, 4.0]


def test_tasks_have_pipelines_of_their_own(x):
    async def task(number):
        with kf.pipeline() as pipe:
            y = x
            for step in range(5):
                y = y * 2.0 + number
                await asyncio.sleep(0)
                assert pipe.pending_count() == 2 * (step + 1)
            assert y.is_pending
        return y.tolist()

    async def main():
        assert not (x + 1.0).is_pending
        return await asyncio.gather(*[task(number) for number in range(4)])

    def eager(number):
        y = x
        for _ in range(5):
            y = y * 2.0 + number
        return y.tolist()

    assert asyncio.run(main()) == [eager(number) for number in range(4)]


def test_a_task_that_outlives_the_block_computes_at_once(x):
    async def later(event):
        await event.wait()
        return x + 1.0

    async def main():
        event = asyncio.Event()
        with kf.pipeline():
            task = asyncio.create_task(later(event))
            await asyncio.sleep(0)
        event.set()
        return await task

    assert not asyncio.run(main()).is_pending


def test_optimizers_and_parameters_work_inside(x):
    def steps():
        w = kf.asarray(np.array([0.5, -1.0, 2.0]), copy=True).requires_grad_()
        optimizer = kf.optim.SGD([w], lr=0.1, momentum=0.9)
        losses = []
        for _ in range(5):
            loss = kf.sum((w * x - 1.0) * (w * x - 1.0))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss)
        return losses, w

    losses, w = steps()
    eager = [loss.tolist() for loss in losses], w.tolist()
    with kf.pipeline():
        losses, w = steps()
    assert ([loss.tolist() for loss in losses], w.tolist()) == eager


def test_devices_that_work_late(x):
    from keyfold.testing import delayed_device

    with delayed_device("late") as device:
        there = x.to(device.name)
        with kf.pipeline() as pipe:
            y = kf.exp(there) * 2.0
            assert y.is_pending
            assert y.device == there.device
            y += 1.0
            part = y[1:]
            assert pipe.stats()["at_once"] == 0, pipe.explain()
            z = part.cpu()
            assert not y.is_pending
        assert np.allclose(z.numpy(), np.exp(X)[1:] * 2.0 + 1.0)
        with kf.pipeline():
            y = there + 1.0
            assert y[0].item() == 2.0
            w = y * 2.0
        assert (w + y).cpu().tolist() == [6.0, 9.0, 12.0]
        del there, y, z, part, w


def test_draws_of_two_pipelines_run_in_the_order_of_opening():
    first, second = kf.pipeline(), kf.pipeline()
    kf.manual_seed(5)
    expected = [kf.rand(2).tolist() for _ in range(2)]
    kf.manual_seed(5)
    opened = [(pipe, contextvars.Context()) for pipe in (second, first)]
    for pipe, context in opened:
        context.run(pipe.__enter__)
    drawn = [context.run(kf.rand, 2) for _, context in opened]
    assert all(tensor.is_pending for tensor in drawn)
    kf.get_rng_state()
    assert [tensor.tolist() for tensor in drawn] == expected
    for pipe, context in opened:
        context.run(pipe.__exit__, None, None, None)


def test_the_limits_of_a_pipeline_are_those_of_its_signature():
    shown = {name: one.default for name, one in inspect.signature(kf.pipeline).parameters.items()}
    names = ["max_ops", "max_pending_bytes", "max_wait", "flush_on_backward", "check"]
    assert list(shown) == names
    assert kf.pipeline()._limits == tuple(shown.values())
    with pytest.raises(TypeError, match=r"^pipeline\.__new__\(\) got an unexpected keyword"):
        kf.pipeline(max_op=3)
