"""Local key sets: they follow the thread, the task and the copied context, and nothing else."""

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import keyfold as kf

X = np.ones(1)


def local():
    """The names of the keys that calls here gain and lose."""
    explanation = kf.explain("aten::neg", X)
    return names(explanation.included), names(explanation.excluded)


def names(keys):
    return {str(key) for key in keys}


NOTHING = (set(), set())


@pytest.fixture(autouse=True)
def clean():
    """Each test leaves nothing open."""
    assert local() == NOTHING
    yield
    assert local() == NOTHING


def test_include_and_exclude():
    with kf.include_keys("Tracer", kf.DispatchKey.Profiler):
        assert local() == ({"Tracer", "Profiler"}, set())
        with kf.exclude_keys(kf.DispatchKeySet("Tracer", "CPU")):
            assert local() == ({"Tracer", "Profiler"}, {"Tracer", "CPU"})
        assert local() == ({"Tracer", "Profiler"}, set())


def test_exclusion_beats_inclusion(d, word):
    d.define("f(Tensor x) -> Tensor")
    d.impl("f", "CPU", lambda x: word("cpu"))
    d.impl("f", "Tracer", lambda x: word("tracer"))
    with kf.include_keys("Tracer"):
        assert d.call("f", word("x")).text == "tracer"
        with kf.exclude_keys("Tracer"):
            assert d.call("f", word("x")).text == "cpu"
            with kf.include_keys("Tracer"):
                assert d.call("f", word("x")).text == "cpu"


def test_everything_excluded_is_an_empty_key_set(d, word, raises_saying):
    d.define("ns::f(Tensor x) -> Tensor")
    d.impl("ns::f", "CPU", lambda x: x)
    with kf.exclude_keys("CPU"), raises_saying(ValueError, "ns::f", "empty keyset", "CPU"):
        d.call("ns::f", word("x"))
    assert d.call("ns::f", word("x")).text == "x"


def test_a_guard_ends_with_an_exception():
    def fail():
        with kf.include_keys("Tracer"):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert local() == NOTHING


def test_a_guard_may_be_entered_again():
    guard = kf.include_keys("Tracer")
    with guard:
        assert local() == ({"Tracer"}, set())
        with guard:
            assert local() == ({"Tracer"}, set())
        assert local() == ({"Tracer"}, set())
    assert local() == NOTHING
    with guard:
        assert local() == ({"Tracer"}, set())


def test_an_unknown_key_is_refused_at_once():
    with pytest.raises(kf.UnknownKey, match="did you mean Tracer"):
        kf.include_keys("Trcer")
    with pytest.raises(kf.UnknownKey):
        kf.exclude_keys("CPU", "Nonsense")


def test_closing_out_of_order_is_an_error_and_takes_only_its_own_keys(raises_saying):
    first, second = kf.include_keys("Tracer"), kf.include_keys("Profiler")
    first.__enter__()
    second.__enter__()
    with raises_saying(RuntimeError, "include_keys", "Tracer", "out of order", "1") as raised:
        first.__exit__(None, None, None)
    assert isinstance(raised.value, kf.GuardError)
    assert local() == ({"Profiler"}, set())
    second.__exit__(None, None, None)


def test_closing_what_was_not_entered(raises_saying):
    with raises_saying(RuntimeError, "exclude_keys", "without being entered"):
        kf.exclude_keys("CPU").__exit__(None, None, None)


def test_closing_twice(raises_saying):
    guard = kf.include_keys("Tracer")
    with guard:
        pass
    with raises_saying(RuntimeError, "Tracer"):
        guard.__exit__(None, None, None)


def in_a_thread(function):
    """Runs a function on a new thread with an empty context; gives its result or exception."""
    result = []

    def run():
        try:
            result.append(function())
        except BaseException as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return result[0]


def test_another_thread_begins_without_guards():
    with kf.include_keys("Tracer"):
        assert in_a_thread(local) == NOTHING
        assert local() == ({"Tracer"}, set())


def test_closing_on_another_thread_is_an_error():
    with kf.include_keys("Tracer") as guard:
        error = in_a_thread(lambda: guard.__exit__(None, None, None))
        assert isinstance(error, kf.GuardError)
        assert "another thread" in str(error)
        assert local() == ({"Tracer"}, set()), "still open where it was entered"


def test_an_error_on_a_thread_leaves_its_calls_working():
    def on_the_thread():
        with kf.exclude_keys("Tracer"):
            return kf.ops.aten.neg(X)[0]

    with kf.include_keys("Tracer") as guard:
        in_a_thread(lambda: guard.__exit__(None, None, None))
    assert in_a_thread(on_the_thread) == -1


def test_a_task_keeps_its_guards_across_await():
    async def task(key, barrier):
        with kf.include_keys(key):
            for _ in range(3):
                await barrier.wait()
                assert local() == ({key}, set())
        return local()

    async def main():
        barrier = asyncio.Barrier(3)
        return await asyncio.gather(*(task(k, barrier) for k in ["Tracer", "Profiler", "Autograd"]))

    assert asyncio.run(main()) == [NOTHING] * 3


def test_a_task_begins_with_its_creators_guards():
    async def child():
        seen = local()
        with kf.exclude_keys("CPU"):
            await asyncio.sleep(0)
        return seen

    async def main():
        with kf.include_keys("Tracer"):
            task = asyncio.create_task(child())
        assert local() == NOTHING
        return await task

    assert asyncio.run(main()) == ({"Tracer"}, set())


def test_to_thread_takes_the_guards_along():
    async def main():
        with kf.include_keys("Tracer"):
            return await asyncio.to_thread(local)

    assert asyncio.run(main()) == ({"Tracer"}, set())


def test_run_in_executor_takes_a_copied_context():
    async def main():
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as pool, kf.exclude_keys("Profiler"):
            context = contextvars.copy_context()
            copied = await loop.run_in_executor(pool, context.run, local)
            bare = await loop.run_in_executor(pool, local)
            return copied, bare

    assert asyncio.run(main()) == ((set(), {"Profiler"}), NOTHING)


def test_closing_in_another_task_is_an_error():
    async def close(guard):
        with pytest.raises(kf.GuardError, match="context"):
            guard.__exit__(None, None, None)

    async def main():
        guard = kf.include_keys("Tracer")

        async def opener():
            guard.__enter__()

        await asyncio.create_task(opener())
        await asyncio.create_task(close(guard))
        assert local() == NOTHING

    asyncio.run(main())


def test_a_copied_context_keeps_what_was_open():
    with kf.include_keys("Tracer"):
        context = contextvars.copy_context()
    assert local() == NOTHING
    assert context.run(local) == ({"Tracer"}, set())


def test_changes_in_a_copied_context_stay_there():
    context = contextvars.copy_context()
    guard = kf.include_keys("Tracer")
    context.run(guard.__enter__)
    assert local() == NOTHING
    assert context.run(local) == ({"Tracer"}, set())
    context.run(guard.__exit__, None, None, None)
    assert context.run(local) == NOTHING


def test_a_generator_that_suspends_inside_a_guard():
    def generator():
        with kf.include_keys("Tracer"):
            yield local()
        yield local()

    steps = generator()
    assert next(steps) == ({"Tracer"}, set())
    # A generator shares its caller's context, as with every context variable.
    assert local() == ({"Tracer"}, set())
    assert next(steps) == NOTHING
    assert local() == NOTHING


def test_interleaved_generators_are_reported():
    def generator(key):
        with kf.include_keys(key):
            yield

    first, second = generator("Tracer"), generator("Profiler")
    next(first)
    next(second)
    with pytest.raises(kf.GuardError, match="out of order"):
        next(first)
    assert local() == ({"Profiler"}, set())
    with pytest.raises(StopIteration):
        next(second)


def test_guards_reach_calls_inside_kernels(d, word):
    d.define("inner(Tensor x) -> Tensor")
    d.define("outer(Tensor x) -> Tensor")
    d.impl("inner", "CPU", lambda x: word("cpu"))
    d.impl("inner", "Tracer", lambda x: word("tracer"))
    d.impl("outer", "CPU", lambda x: d.call("inner", x))
    assert d.call("outer", word("x")).text == "cpu"
    with kf.include_keys("Tracer"):
        assert d.call("outer", word("x")).text == "tracer"


def test_a_guard_opened_by_a_kernel_ends_with_it(d, word):
    def kernel(x):
        with kf.exclude_keys("Tracer"):
            return word(repr(sorted(local()[1])))

    d.define("f(Tensor x) -> Tensor")
    d.impl("f", "CPU", kernel)
    assert d.call("f", word("x")).text == "['Tracer']"
    assert local() == NOTHING


def test_one_guard_object_serves_several_threads():
    """As `no_tracing = kf.exclude_keys(...)` in a module, used by all its threads."""
    guard = kf.exclude_keys("Tracer")
    opened, closed = threading.Barrier(2), threading.Barrier(2)
    seen = []

    def other():
        with guard:
            opened.wait()
            closed.wait()
            seen.append(local())
        seen.append(local())

    def here():
        with guard:
            thread.start()
            opened.wait()
        return local()

    thread = threading.Thread(target=other)
    try:
        assert contextvars.copy_context().run(here) == NOTHING
    finally:
        closed.wait()
        thread.join()
    assert seen == [(set(), {"Tracer"}), NOTHING]


def test_one_guard_object_serves_several_tasks():
    guard = kf.exclude_keys("Tracer")

    async def task(rounds):
        with guard:
            for _ in range(rounds):
                await asyncio.sleep(0)
                assert local() == (set(), {"Tracer"})
        return local()

    async def main():
        return await asyncio.gather(task(1), task(3), task(2))

    assert asyncio.run(main()) == [NOTHING] * 3


def test_many_nested_guards():
    keys = ["Tracer", "Profiler", "Pipeline", "Autograd", "Autocast"] * 40
    guards = [kf.include_keys(key) for key in keys]
    for guard in guards:
        guard.__enter__()
    assert local() == (set(keys), set())
    for guard in reversed(guards):
        guard.__exit__(None, None, None)


def test_a_foreign_value_in_the_context_variable_is_an_error_and_no_more(d):
    import contextvars

    with kf.exclude_keys("Tracer"):
        pass

    def spoil():
        name = "keyfold_local_keys"
        (variable,) = [v for v in contextvars.copy_context() if v.name == name]
        variable.set(3.5)
        return kf.ops.aten.neg(np.ones(1))

    with pytest.raises(TypeError, match="float"):
        contextvars.copy_context().run(spoil)
    assert kf.ops.aten.neg(np.ones(1))[0] == -1
