"""Calls from several threads while kernels are swapped: no error, no torn read, no growth.

The `soak` tests run short here; `make soak` lengthens them by KEYFOLD_SOAK_SECONDS and
KEYFOLD_SOAK_SWAPS.
"""

import contextlib
import gc
import os
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import keyfold as kf

SECONDS = float(os.environ.get("KEYFOLD_SOAK_SECONDS", "0.5"))
SWAPS = int(os.environ.get("KEYFOLD_SOAK_SWAPS", "5000"))
CALLERS = 3
# Memory may settle in the first rounds; a leak in every swap is far above this.
ALLOWED_GROWTH = 8 << 20


@pytest.fixture(autouse=True)
def often():
    """Threads take turns as often as Python allows."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def resident():
    """The process's resident memory in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Soak:
    """Threads that call until told to stop, and the errors they met."""

    def __init__(self, call):
        self.stop = threading.Event()
        self.errors = []
        self.calls = [0] * CALLERS
        self.threads = [
            threading.Thread(target=self._run, args=(call, i), daemon=True) for i in range(CALLERS)
        ]

    def _run(self, call, i):
        try:
            while not self.stop.is_set():
                for _ in range(20):
                    call()
                self.calls[i] += 20
        except BaseException as error:
            self.errors.append(error)
            raise

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *exception):
        self.stop.set()
        for thread in self.threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self.threads)
        assert self.errors == []
        assert all(self.calls), "each caller called"


class Growth:
    """Memory and live objects since a moment, and the checks that they stayed."""

    def __init__(self):
        gc.collect()
        self.memory, self.objects = resident(), len(gc.get_objects())

    def check(self, what):
        gc.collect()
        memory, objects = resident() - self.memory, len(gc.get_objects()) - self.objects
        print(f"{what}: memory {memory:+d} bytes, live objects {objects:+d}")
        assert memory < ALLOWED_GROWTH
        assert objects < 2000


def swap_for_the_time(swap):
    """Swaps for as long as asked; says how often. The first tenth of the time warms up."""
    done, growth = 0, None
    start = time.monotonic()
    while (passed := time.monotonic() - start) < SECONDS:
        if growth is None and passed > SECONDS / 10:
            growth = Growth()
        swap(done)
        done += 1
    growth.check(f"{done} swaps beside {CALLERS} callers")
    return done


class Counted:
    """A kernel that counts its living instances, and gives a pair that must belong together."""

    alive = weakref.WeakSet()

    def __init__(self, number):
        self.number = number
        self.alive.add(self)

    def __call__(self, x):
        return (self.number, self.number * 2)


def test_soak_callers_and_a_swapper(d, word):
    d.define("ns::f(Tensor x) -> (int, int)")
    op = d.get_op("ns::f")
    d.impl(op, "CPU", Counted(0))
    x = word("x")
    last_seen = [0]

    def call():
        number, double = op(x)
        assert double == number * 2, "a torn read"
        assert number >= 0
        last_seen[0] = number

    def swap(number):
        d.impl(op, "CPU", Counted(number + 1), override="replace")

    with Soak(call):
        done = swap_for_the_time(swap)
        living = len(Counted.alive)
    assert last_seen[0] > 0, "the callers saw swapped kernels"
    assert living < 200, f"{living} kernels of {done} are alive"
    # The rest of the number without callers, who would make it take many times as long.
    growth = Growth()
    for number in range(done, SWAPS):
        swap(number)
    growth.check(f"{max(0, SWAPS - done)} swaps more")
    assert op(x)[0] == max(done, SWAPS)
    d.define("ns::g(Tensor x) -> Tensor")
    gc.collect()
    assert len(Counted.alive) <= 2


def test_soak_layers_come_and_go(d, word):
    """A layer over a kernel is registered and removed: calls see it whole or not at all."""
    d.define("ns::f(Tensor x) -> (int, int)")
    op = d.get_op("ns::f")

    @d.impl(op, "CPU", with_keyset=True)
    def cpu(keyset, x):
        return (1, 1 + int("Tracer" in keyset))

    def layer(keyset, x):
        a, b = op.redispatch(keyset.remove("Tracer"), x)
        return (a + 10, b + 10)

    x = word("x", "CPU", "Tracer")

    def call():
        assert op(x) in [(1, 2), (11, 11)]

    def swap(number):
        handle = d.impl(op, "Tracer", layer, with_keyset=True)
        handle.remove()

    with Soak(call):
        swap_for_the_time(swap)


def test_soak_native_callers_without_the_gil(testing):
    """Native kernels that run without the GIL, shadowed and unshadowed meanwhile."""
    op = testing.identity_nogil.default
    x, y = np.ones(4), np.zeros(4)

    def call():
        assert op(x, y) in ANSWERS

    class Either:
        def __contains__(self, result):
            return result is x or result is y

    ANSWERS = Either()

    def swap(number):
        handle = kf.impl(op, "CPU", lambda x, y: y, override="shadow")
        handle.remove()

    with Soak(call):
        swap_for_the_time(swap)
    assert op(x, y) is x


def test_soak_operators_come_and_go(d, word):
    """Definition and removal beside calls: each call works, or says that it was removed."""
    x = word("x")
    current = [None]

    def define(number):
        handle = d.define("ns::f(Tensor x) -> Tensor")
        d.impl("ns::f", "CPU", lambda x: x)
        current[0] = d.get_op("ns::f")
        return handle

    def call():
        with contextlib.suppress(kf.OperatorRemoved, kf.MissingKernel):
            assert current[0](x) is x

    held = [define(0)]

    def swap(number):
        held[0].remove()
        held[0] = define(number)

    with Soak(call):
        swap_for_the_time(swap)


def test_soak_guards_of_threads_are_their_own(d, word):
    d.define("ns::f(Tensor x) -> str")
    for key in ["CPU", "Tracer", "Profiler"]:
        d.impl("ns::f", key, lambda x, key=key: key)
    op = d.get_op("ns::f")
    x = word("x")

    def call():
        assert op(x) == "CPU"
        with kf.include_keys("Tracer"):
            assert op(x) == "Tracer"
            with kf.exclude_keys("Tracer"):
                assert op(x) == "CPU"

    def swap(number):
        with kf.include_keys("Profiler"):
            assert op(x) == "Profiler"

    with Soak(call):
        swap_for_the_time(swap)


def test_registration_from_many_threads(d):
    d.define("ns::f(Tensor x) -> Tensor")
    errors = []

    def work(i):
        try:
            d.define(f"ns::g{i}(Tensor x) -> Tensor")
            for _ in range(50):
                handle = d.impl(f"ns::g{i}", "CPU", lambda x: x)
                shared = d.impl("ns::f", "CPU", lambda x: x, override="shadow")
                handle.remove()
                shared.remove()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert d.kernel_count() == 0
    assert len(d.operator_names()) == 7


def test_a_kernel_that_registers_while_it_runs(d, word):
    d.define("ns::f(Tensor x) -> Tensor")

    def kernel(x):
        d.define("ns::late(Tensor x) -> Tensor")
        d.impl("ns::late", "CPU", lambda x: word("late"), override="replace")
        return d.call("ns::late", x)

    d.impl("ns::f", "CPU", kernel)
    assert d.call("ns::f", word("x")).text == "late"


def test_a_destructor_that_registers(d, word):
    """A kernel's destructor may run anything, also where the engine drops it."""
    d.define("ns::f(Tensor x) -> Tensor")
    d.define("ns::g(Tensor x) -> Tensor")

    class Last:
        def __call__(self, x):
            return x

        def __del__(self):
            d.impl("ns::g", "CPU", lambda x: word("from the destructor"), override="replace")

    d.impl("ns::f", "CPU", Last())
    d.impl("ns::f", "CPU", lambda x: x, override="replace")
    d.define("ns::h(Tensor x) -> Tensor")
    gc.collect()
    assert d.call("ns::g", word("x")).text == "from the destructor"


def test_threads_that_end_leave_nothing_behind(d, word):
    d.define("ns::f(Tensor x) -> Tensor")
    d.impl("ns::f", "CPU", lambda x: x)
    op, x = d.get_op("ns::f"), word("x")

    def once():
        thread = threading.Thread(target=lambda: op(x))
        thread.start()
        thread.join()

    for _ in range(50):
        once()
    before = resident()
    for _ in range(500):
        once()
    assert resident() - before < ALLOWED_GROWTH


def test_soak_calls_leave_no_references(d, testing, word):
    """A million short calls keep nothing: reference counts and live objects stay."""
    d.define('ns::f(Tensor x, Tensor? y=None, int[] n=[1], *, str mode="m") -> Tensor')
    d.impl("ns::f", "CPU", lambda x, y, n, *, mode: x)
    op, x = d.get_op("ns::f"), np.ones(3)

    def fails():
        with contextlib.suppress(TypeError):
            op(x, "wrong")

    def run(times):
        for _ in range(times):
            op(x)
            op(x, x, mode="k")
            testing.identity(x, x)
            testing.fresh(x, x)
            op.redispatch("CPU", x)
            fails()

    run(500)
    gc.collect()
    counts = sys.getrefcount(x), sys.getrefcount(op), len(gc.get_objects()), resident()
    run(max(2000, SWAPS // 5))
    gc.collect()
    assert sys.getrefcount(x) == counts[0]
    assert sys.getrefcount(op) == counts[1]
    assert len(gc.get_objects()) - counts[2] < 200
    assert resident() - counts[3] < ALLOWED_GROWTH
