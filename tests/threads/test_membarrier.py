"""membarrier(2) denied after the import, as a sandbox does that is set up late: every change of a
registration happens, with its handle, and what it retires is freed once no reader can have it.
"""

import os
import platform
import subprocess
import sys
import textwrap

import pytest

SETUP = '''
import ctypes, struct, threading, time, weakref
import numpy as np
import keyfold as kf

# membarrier(2) and seccomp(2)
NUMBERS = {"x86_64": (324, 317), "aarch64": (283, 277)}

libc = ctypes.CDLL(None, use_errno=True)
libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


def deny(errno, machine, everywhere=True):
    """From now on, membarrier fails with this error, on all threads or on the calling one."""
    membarrier, seccomp = NUMBERS[machine]
    program = b"".join(
        struct.pack("HBBI", *line)
        for line in [
            (0x20, 0, 0, 0),  # the system call's number
            (0x15, 0, 1, membarrier),  # another one: skip a line
            (0x06, 0, 0, 0x00050000 | errno),  # fails
            (0x06, 0, 0, 0x7FFF0000),  # is allowed
        ]
    )
    lines = ctypes.create_string_buffer(program)
    filter = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 4, ctypes.addressof(lines)))
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    # SECCOMP_SET_MODE_FILTER, and SECCOMP_FILTER_FLAG_TSYNC for all threads.
    where = ctypes.c_void_p(ctypes.addressof(filter))
    assert libc.syscall(seccomp, 1, int(everywhere), where) == 0, ctypes.get_errno()
    assert libc.syscall(membarrier, 0, 0, 0) == -1 and ctypes.get_errno() == errno


class Kernel:
    def __call__(self, x):
        return x


class Reader:
    """A thread that calls operators when it is told to."""

    def __init__(self):
        self.tasks, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.task = None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while True:
            self.tasks.acquire()
            if self.task is None:
                return
            self.task()
            self.done.release()

    def does(self, task):
        self.task = task
        self.tasks.release()
        self.done.acquire()

    def ends(self):
        self.task = None
        self.tasks.release()
        self.thread.join()


d = kf.Dispatcher()
d.define("ns::f(Tensor x) -> Tensor")
op = d.get_op("ns::f")
x = np.ones(3)


def settles(condition):
    """Waits for what follows from other threads' ends, which come some time after `join`."""
    for _ in range(60_000):
        if condition():
            return True
        time.sleep(0.001)
        registered("CUDA")[0].remove()
    return False


def registered(key="CPU"):
    """A kernel's handle, and whether it is still there."""
    kernel = Kernel()
    return d.impl("ns::f", key, kernel), weakref.ref(kernel)
'''


def run(script, errno):
    code = SETUP + textwrap.dedent(script)
    env = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    command = [sys.executable, "-c", code.replace("ERRNO", str(errno))]
    command[-1] = command[-1].replace("MACHINE", repr(platform.machine()))
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# Filters answer with EPERM, EINVAL or ENOSYS.
@pytest.mark.parametrize("errno", [1, 22, 38])
def test_every_change_happens_with_its_handle(errno):
    out = run(
        """
        handle, alive = registered()
        assert op(x) is x
        deny(ERRNO, MACHINE)
        other, _ = registered("CUDA")
        assert other.active
        assert handle.remove() and alive() is None
        assert other.remove()
        definition = d.define("ns::g(Tensor x) -> Tensor")
        assert definition.remove()
        fallback = d.fallback("Tracer", lambda op, keys, args, kwargs: None)
        assert fallback.remove()
        with kf.Library("denied") as library:
            library.define("h(Tensor x) -> Tensor")
            library.impl("h", lambda x: x, "CPU")
        assert kf.ops.denied.h(x) is x
        handle, alive = registered()
        assert op(x) is x
        assert handle.remove() and alive() is None
        print("all done")
        """,
        errno,
    )
    assert out == "all done\n"


def test_memory_waits_for_threads_that_read_before_and_no_longer():
    """A thread that read without a fence may hold anything until it is seen to have passed on."""
    run(
        """
        readers = [Reader(), Reader()]
        handle, alive = registered()
        for reader in readers:
            reader.does(lambda: op(x))
        deny(ERRNO, MACHINE)
        assert handle.remove()
        assert alive() is not None, "nobody knows what the readers do"
        again, _ = registered()
        readers[0].does(lambda: op(x))
        again.remove()
        assert alive() is not None, "one reader is left"
        readers[1].ends()
        # A later change frees it; from now on every thread fences for itself.
        assert settles(lambda: alive() is None)
        for _ in range(3):
            handle, alive = registered()
            readers[0].does(lambda: op(x))
            assert handle.remove() and alive() is None
        readers[0].ends()
        """,
        1,
    )


def test_the_next_change_frees_what_waited_for_the_last_reader():
    run(
        """
        handle, alive = registered()
        keep, _ = registered("CUDA")
        d.define("ns::other(Tensor x) -> Tensor")
        d.impl("ns::other", "CPU", lambda x: x)
        other = d.get_op("ns::other")
        reader = Reader()
        reader.does(lambda: op(x))
        deny(ERRNO, MACHINE)
        assert handle.remove()
        assert alive() is not None
        reader.does(lambda: other(x))
        assert keep.remove() and alive() is None
        reader.ends()
        """,
        38,
    )


def test_a_filter_of_one_thread_leaves_the_others_their_barrier():
    run(
        """
        idle = Reader()
        idle.does(lambda: op.name)
        handle, alive = registered()
        idle.does(lambda: op(x))

        seen = []

        def denied():
            deny(ERRNO, MACHINE, everywhere=False)
            assert handle.remove()
            seen.append(alive() is not None)

        thread = threading.Thread(target=denied)
        thread.start()
        thread.join()
        assert seen == [True]
        # This thread has its barrier, which orders the idle one's reads, too.
        registered()[0].remove()
        assert alive() is None
        idle.ends()
        """,
        1,
    )


def test_readers_and_a_writer_when_it_is_denied():
    """Calls go on while kernels are swapped and the process turns to fences."""
    run(
        """
        import sys

        sys.setswitchinterval(1e-5)
        stop = threading.Event()
        live = weakref.WeakSet()
        wrong = []

        class Counted(Kernel):
            def __init__(self):
                live.add(self)

        d.impl("ns::f", "CPU", Counted())

        def read():
            try:
                while not stop.is_set():
                    assert op(x) is x
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=read, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        for i in range(600):
            if i == 200:
                deny(ERRNO, MACHINE)
            d.impl("ns::f", "CPU", Counted(), override="replace")
        stop.set()
        for thread in threads:
            thread.join()
        d.impl("ns::f", "CPU", Counted(), override="replace")
        assert not wrong, wrong
        assert settles(lambda: len(live) == 1), len(live)
        """,
        1,
    )
