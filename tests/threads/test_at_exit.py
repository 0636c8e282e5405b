"""Daemon threads inside Python code that keyfold called when the interpreter ends.

Up to CPython 3.13 such a thread ends where it next wants the GIL, by unwinding its stack, which
must not go through Rust's frames: the thread stops there, and the process ends as it would without
it.
"""

import subprocess
import sys

import pytest

# The main thread ends while the others are inside `pause`; `Late` gives them the GIL meanwhile,
# which is where CPython ends them.
BEGIN = """
import os, signal, sys, threading, time
import numpy as np
import keyfold as kf

def pause(*_):
    time.sleep(0.001)

class Late:
    def __del__(self, sleep=time.sleep):
        sleep(0.05)

late = Late()
a = np.ones(10)
t = kf.asarray(a, copy=True)
w = kf.asarray(a, copy=True).requires_grad_()
kf.define("exit::f(Tensor x) -> Tensor")

def slow(x):
    pause()
    return x
"""

# The way is tried in two children of fork at once, which needn't import keyfold again, and then in
# the process itself. One that doesn't end is ended by its alarm, which no child inherits.
END = """
def forever():
    while True:
        once()

children = [os.fork()]
if children[0]:
    children.append(os.fork())
if all(children):
    ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(ended):
        sys.exit(f"two children of fork ended with {ended}")
signal.alarm(100)

for _ in range(3):
    threading.Thread(target=forever, daemon=True).start()
time.sleep(0.03)
"""

# Each defines `once()`, which goes from Python through Rust into Python.
WAYS = {
    "a Python kernel": """
kf.impl("exit::f", "CPU", slow)
def once(): kf.ops.exit.f(a)
""",
    "a kernel that is a callable object": """
class Kernel:
    def __call__(self, x): return slow(x)
kf.impl("exit::f", "CPU", Kernel())
def once(): kf.ops.exit.f(a)
""",
    "impl, which reads a signature": """
class Signature:
    @property
    def __signature__(self):
        pause()
        raise AttributeError
    def __call__(self, x): return x
kernel = Signature()
def once(): kf.impl("exit::f", "CPU", kernel, override="shadow")
""",
    "a fallback": """
d = kf.Dispatcher()
d.define("f(Tensor x) -> Tensor")
d.impl("f", "CPU", lambda x: x)
def layer(op, keyset, args, kwargs):
    pause()
    return d.redispatch(op, keyset.remove("Tracer"), *args, **kwargs)
d.fallback("Tracer", layer)
def once():
    with kf.include_keys("Tracer"): d.call("f", a)
""",
    "a Python kernel below a native layer": """
kf.impl("exit::f", "CPU", slow)
def once():
    with kf.profile(): kf.ops.exit.f(a)
""",
    "grad": """
def once(): kf.grad(lambda x: (slow(x) * x).sum())(1.0)
""",
    "backward through a rule": """
kf.impl("exit::f", "CPU", slow)
kf.register_autograd("exit::f", lambda ctx, g: slow(g))
def once(): kf.ops.exit.f(w).sum().backward()
""",
    "setup_context of a rule": """
kf.impl("exit::f", "CPU", lambda x: x)
kf.register_autograd("exit::f", lambda ctx, g: g, setup_context=lambda ctx, inputs, output: pause())
def once(): kf.ops.exit.f(w)
""",
    "a hook": """
def once():
    y = w * 2.0
    y.register_hook(slow)
    y.sum().backward()
""",
    "checkpoint": """
def once(): kf.checkpoint(slow, w)
""",
    "the second run of a checkpoint": """
def part(x):
    y = kf.exp(x)
    pause()
    return kf.exp(y)
def once(): kf.checkpoint(part, w).sum().backward()
""",
    "vmap": """
def once(): kf.vmap(slow)(t)
""",
    "a rule for vmap": """
kf.impl("exit::f", "CPU", lambda x: x)
kf.register_vmap("exit::f", lambda info, dims, x: (slow(x), dims[0]))
def once(): kf.vmap(kf.ops.exit.f)(t)
""",
    "trace": """
def once(): kf.trace(slow, t)
""",
    "replay of a graph": """
kf.impl("exit::f", "CPU", slow)
graph = kf.trace(kf.ops.exit.f, t)
def once(): graph(t)
""",
    "a Meta kernel": """
kf.impl("exit::f", "Meta", slow)
m = kf.empty(3, device="meta")
def once(): kf.ops.exit.f(m)
""",
    "__dlpack__": """
class Lender:
    def __dlpack__(self, **options):
        pause()
        return a.__dlpack__()
    def __dlpack_device__(self):
        pause()
        return a.__dlpack_device__()
lender = Lender()
def once(): kf.from_dlpack(lender)
""",
    "__array__": """
class Lender:
    def __array__(self, dtype=None, copy=None):
        pause()
        return a
lender = Lender()
def once(): kf.asarray(lender)
""",
    "an array class's keys": """
class Mine: pass
def keys(x):
    pause()
    return kf.DispatchKeySet("CPU")
kf.register_array_type(Mine, keys)
kf.impl("exit::f", "CPU", lambda x: x)
mine = Mine()
def once(): kf.ops.exit.f(mine)
""",
    "a class's repr in an error": """
class Odd:
    def __repr__(self):
        pause()
        return "odd"
odd = Odd()
def once():
    try: kf.DispatchKey(odd)
    except Exception: pass
    try: kf.include_keys(odd)
    except Exception: pass
    try: kf.ops.aten.add(a, odd)
    except Exception: pass
""",
    "the destructor of memory": """
class Memory(np.ndarray):
    def __del__(self, sleep=time.sleep):
        sleep(0.001)
def once(): kf.from_numpy(np.ones(3).view(Memory))
""",
    "a kernel without the GIL": """
big = np.ones(1_000_000)
def once(): kf.ops.aten.add(big, big)
""",
    "backward without the GIL": """
def once(): (kf.exp(w) * w).sum().backward()
""",
    "a hook after work without the GIL": """
large = kf.ones(300_000).requires_grad_()
def once():
    y = large * 2.0
    y.register_hook(slow)
    (kf.exp(y) * y).sum().backward()
""",
    "custom_op": """
@kf.custom_op("exit::c", mutates_args=())
def custom(x: kf.Tensor) -> kf.Tensor:
    return slow(x) + 1.0
@custom.register_fake
def fake(x):
    return slow(x)
def once(): custom(t)
""",
    "a DispatchTable": """
table = kf.DispatchTable("table", dtype=["float64"])
@table.impl()
def body(x):
    pause()
def once(): table(a)
""",
    "an indexed tensor": """
class Index:
    def __index__(self):
        pause()
        return 0
index = Index()
def once(): t[index]
""",
    "an iterator": """
class Items:
    def __iter__(self): return self
    def __next__(self):
        pause()
        raise StopIteration
def once():
    try: t.sum(Items())
    except Exception: pass
    try: kf.asarray(Items())
    except Exception: pass
""",
    "explain": """
class Mine: pass
def keys(x):
    pause()
    return kf.DispatchKeySet("CPU")
kf.register_array_type(Mine, keys)
mine = Mine()
def once(): kf.explain("exit::f", mine)
""",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_daemon_thread_inside_python_code_ends_with_the_interpreter(way):
    done = subprocess.run(
        # From 3.12 on Python warns of a fork beside threads, such as those of NumPy's BLAS.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", BEGIN + WAYS[way] + END],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
