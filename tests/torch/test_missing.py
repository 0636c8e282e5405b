"""keyfold without PyTorch: not imported unasked, and missed in words where it is asked for."""

import subprocess
import sys

BLOCKED = "import sys; sys.modules['torch'] = None\n"


def run(code):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_importing_keyfold_imports_no_torch():
    code = "import sys, keyfold; from keyfold import *\n"
    code += "print('torch' in sys.modules, 'keyfold.torch' in sys.modules, 'torch' in dir(keyfold))"
    assert run(code) == ["False False False"]


def test_without_torch_its_module_says_what_to_install():
    code = BLOCKED + (
        "import keyfold as kf\n"
        "for get in (lambda: kf.torch, lambda: __import__('keyfold.torch'), lambda: kf.torch):\n"
        "    try: get()\n"
        "    except ImportError as error: print(error.name, error)\n"
    )
    lines = run(code)
    assert len(lines) == 3
    for line in lines:
        assert line.startswith("torch keyfold.torch needs PyTorch")
        assert "pip install torch" in line


def test_without_torch_everything_else_works():
    code = BLOCKED + (
        "import numpy as np, keyfold as kf\n"
        "from keyfold import *\n"
        "print(kf.ops.aten.add(np.ones(2), np.ones(2)).tolist())\n"
    )
    assert run(code) == ["[2.0, 2.0]"]


def test_other_names_are_missing_as_ever():
    code = "import keyfold as kf\ntry: kf.tensorflow\nexcept AttributeError as error: print(error)"
    (line,) = run(code)
    assert line.startswith("module 'keyfold' has no attribute 'tensorflow'")
