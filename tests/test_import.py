"""What importing keyfold does, and where it refuses."""

import subprocess
import sys


def run(source):
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)


def test_nothing_but_numpy_is_imported():
    found = run(
        "import sys; import numpy; before = set(sys.modules); import keyfold\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(new - set(sys.stdlib_module_names)))"
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == ["keyfold"]


def test_a_subinterpreter_is_refused():
    source = """
import sys
import keyfold
import _xxsubinterpreters as interpreters
other = interpreters.create()
try:
    interpreters.run_string(other, "import keyfold._core")
except Exception as error:
    print(error)
interpreters.destroy(other)
"""
    if sys.version_info >= (3, 13):
        source = source.replace("_xxsubinterpreters", "_interpreters").replace(
            "except Exception", "except BaseException"
        )
        source = source.replace(
            'interpreters.run_string(other, "import keyfold._core")',
            'print(interpreters.run_string(other, "import keyfold._core"))',
        )
    refused = run(source)
    assert refused.returncode == 0, refused.stderr
    assert "ImportError" in refused.stdout


def test_calls_at_exit_do_no_harm():
    """A kernel called and removed while the interpreter shuts down."""
    done = run(
        "import atexit, numpy as np, keyfold as kf\n"
        "kf.define('exit::f(Tensor x) -> Tensor')\n"
        "handle = kf.impl('exit::f', 'CPU', lambda x: x)\n"
        "class Late:\n"
        "    def __del__(self):\n"
        "        handle.remove()\n"
        "late = Late()\n"
        "atexit.register(lambda: print(kf.ops.exit.f(np.ones(1))[0]))\n"
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "1.0", "")


def test_a_daemon_thread_that_calls_at_exit_does_no_harm():
    done = run(
        "import threading, time, numpy as np, keyfold as kf\n"
        "a = np.ones(10)\n"
        "def forever():\n"
        "    while True:\n"
        "        kf.ops.aten.add(a, a)\n"
        "for _ in range(3):\n"
        "    threading.Thread(target=forever, daemon=True).start()\n"
        "time.sleep(0.1)\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
