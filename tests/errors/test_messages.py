"""The messages of the commonest mistakes, to the letter.

The call that raises it is in `tests/errors/mistakes.py`, by the same name. That program writes
`mistakes.txt`, too: `python mistakes.py > mistakes.txt` in that folder, and read what changed.
"""

import functools
import subprocess
import sys

import pytest

from tests.helpers.paths import ROOT

HERE = ROOT / "tests" / "errors"


def sections(text):
    """The messages by name: each follows a line `== name`."""
    return dict(part.rstrip("\n").split("\n", 1) for part in text.split("== ")[1:])


EXPECTED = sections((HERE / "mistakes.txt").read_text())


@functools.cache
def messages():
    program = [sys.executable, str(HERE / "mistakes.py")]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return sections(done.stdout)


def test_each_mistake_has_its_text():
    assert list(EXPECTED) == list(messages())


@pytest.mark.parametrize("mistake", EXPECTED)
def test_a_mistake_is_answered_with(mistake):
    assert messages()[mistake] == EXPECTED[mistake]


@pytest.mark.parametrize("mistake", EXPECTED)
def test_an_answer_is_public(mistake):
    """It is raised, and shows nobody a private module."""
    assert EXPECTED[mistake] != "nothing was raised"
    assert "keyfold._" not in EXPECTED[mistake]


def test_a_terminal_shows_the_public_name(tmp_path):
    script = tmp_path / "script.py"
    script.write_text('import keyfold as kf\nkf.zeros(3, device="cuda")\n')
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == EXPECTED["kernel missing on cuda"]


@pytest.mark.parametrize(
    ("mistake", "line"),
    [
        ("kf.tensro", "kf.tensro"),
        ("operator: none", "kf.ops.aten.softmaxx"),
        ("operator: namespace", "kf.ops.atn"),
        ("x.view", "kf.ones(2).view"),
        ("key: attribute", "kf.DispatchKey.GPU"),
    ],
)
def test_a_terminal_shows_one_suggestion(tmp_path, mistake, line):
    """CPython adds one of its own to an AttributeError: in terminals, from 3.12 on everywhere."""
    script = tmp_path / "script.py"
    script.write_text(f"import keyfold as kf\n{line}\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    said = done.stderr.splitlines()[-1]
    # Which operators there are differs: the program of mistakes has a namespace of its own.
    assert said.replace("aten, ", "aten, corner, ") == EXPECTED[mistake]


def test_the_line_that_a_missing_kernel_offers_can_be_pasted():
    line = EXPECTED["kernel missing"].rpartition("to add one: ")[2]
    source = (
        "import numpy as np\nimport keyfold as kf\n"
        "kf.define('corner::bare(Tensor x, *, int n=1) -> Tensor')\n"
        f"{line.replace('...', 'x * n')}\n"
        "print(kf.ops.corner.bare(np.ones(2), n=3))\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.stdout == "[3. 3.]\n", done.stderr


def test_public_names_are_the_packages():
    source = (
        "import keyfold as kf\n"
        "for name in kf.__all__:\n"
        "    module = getattr(getattr(kf, name), '__module__', None)\n"
        "    if module not in (None, 'keyfold') and name != 'ops': print(name, module)\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.stdout + done.stderr == ""


def test_advice_on_foreign_attributes_costs_and_shows_nothing():
    import keyfold as kf

    x = kf.ones(2)
    assert not hasattr(x, "view")
    assert "view" not in dir(x)
    assert getattr(x, "cuda", None) is None
    assert type(x).__getattribute__ is object.__getattribute__
