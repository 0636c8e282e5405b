"""Effects of importing keyfold, and systems on which the import is refused."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

import keyfold as kf


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


def test_modules_for_errors_pages_and_files_are_imported_by_those():
    """Each would make the import of keyfold slower by a part that can be measured."""
    found = run(
        "import sys; import numpy; before = set(sys.modules); import keyfold\n"
        "print(*sorted({'difflib', 'html', 'pathlib', 'urllib'} & (set(sys.modules) - before)))"
    )
    assert (found.stdout.strip(), found.stderr) == ("", "")


def test_a_subinterpreter_is_refused():
    source = """
import sys
import types
from pathlib import Path
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


@pytest.mark.one_python
@pytest.mark.parametrize("text", ["bogus", "AVX2", "avx-512", "3"])
def test_a_wrong_level_of_instructions_in_the_environment_is_an_error(text):
    code = (
        "try:\n    import keyfold\n"
        "except ValueError as error:\n    print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "KEYFOLD_SIMD": text},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"InvalidValue the environment variable KEYFOLD_SIMD is '{text}'" in done.stdout
    assert "baseline, avx2, avx512" in done.stdout


@pytest.mark.one_python
@pytest.mark.parametrize("text", ["baseline", "avx2", "avx512", ""])
def test_the_environment_names_the_level_of_instructions(text):
    code = "import keyfold as kf, numpy as np; print(kf.exp(np.zeros(2)).tolist())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "KEYFOLD_SIMD": text},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[1.0, 1.0]"


@pytest.mark.parametrize(
    ("pretend", "says"),
    [
        ("sys.implementation.name = 'pypy'", "keyfold needs CPython, and this is pypy"),
        ("sys.modules['keyfold._core'] = None", "extension module can't be loaded"),
    ],
)
def test_a_system_without_the_extension_is_told_where_keyfold_runs(pretend, says):
    refused = run(f"import sys\n{pretend}\nimport keyfold")
    last = refused.stderr.strip().splitlines()[-1]
    assert refused.returncode == 1
    assert last.startswith("ImportError: keyfold's extension module can't be loaded")
    assert says in last
    assert "CPython 3.11 or later on Linux, x86-64, with glibc 2.28 or later; this is" in last


def test_the_headers_for_c_are_where_get_include_says():
    folder = Path(kf.get_include())
    assert "TVMFFIAny" in (folder / "keyfold_abi.h").read_text()
    assert "KeyfoldDevice" in (folder / "keyfold_plugin.h").read_text()


def test_what_the_module_shows_is_public():
    shown = [name for name in dir(kf) if not name.startswith("__")]
    assert set(kf.__all__) - {"__version__"} <= set(shown)
    assert [name for name in shown if name.startswith("_")] == []
    # The modules among them are those that users import.
    modules = [name for name in shown if isinstance(getattr(kf, name), types.ModuleType)]
    assert set(modules) <= {"cudnn", "linalg", "optim", "random", "testing", "torch", "tvm_ffi"}


@pytest.mark.parametrize("name", sorted(kf.__all__))
def test_a_public_class_or_function_says_that_it_is_the_packages(name):
    public = getattr(kf, name)
    if isinstance(public, type | types.FunctionType):
        assert public.__module__ == "keyfold"


def test_a_traceback_names_an_error_by_the_package():
    failed = run("import keyfold as kf\nkf.get_op('no_such::operator')")
    assert failed.stderr.splitlines()[-1].startswith("keyfold.UnknownOperator: ")


def test_no_module_of_the_package_is_long():
    """400 lines are read in one sitting."""
    package = Path(kf.__file__).parent
    assert package.is_dir()
    long = {}
    for path in package.rglob("*.py"):
        lines = len(path.read_text().splitlines())
        if lines > 400:
            long[str(path.relative_to(package))] = lines
    assert long == {}
