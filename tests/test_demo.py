"""`python -m keyfold demo`, run as a user runs it."""

import os
import pty
import re
import subprocess
import sys

import pytest


def run_demo(*options, **environment):
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "keyfold", "demo", *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.fixture(scope="module")
def shown():
    done = run_demo()
    assert done.returncode == 0, done.stderr
    return done


def accuracy_in(text):
    return float(re.search(r"test accuracy (0\.\d{4})$", text, re.MULTILINE)[1])


def test_demo_reaches_its_accuracy(shown):
    assert 0.96 <= accuracy_in(shown.stdout) < 1


def test_demo_gives_the_same_accuracy_every_time(shown):
    assert accuracy_in(run_demo("--quiet").stdout) == accuracy_in(shown.stdout)


def test_demo_prints_the_time_per_operator_sorted_with_shares_that_add_up(shown):
    rows = re.findall(r"^  (\w+::[\w.]+) +([\d,]+) +([\d.]+) +([\d.]+) %", shown.stdout, re.M)
    assert {"demo::linear", "demo::cross_entropy", "demo::descend_"} <= {row[0] for row in rows}
    shares = [float(row[3]) for row in rows]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(100, abs=0.5)
    assert {row[0]: row[1] for row in rows}["demo::descend_"] == "8,800"


def test_demo_prints_the_table_and_the_explanation_of_descend(shown):
    assert re.search(r"^  CPU +descend +libdescend\.so +CPU$", shown.stdout, re.MULTILINE)
    assert re.search(r"^  AuditCPU +audit .*Audit \(fallback\)$", shown.stdout, re.MULTILINE)
    assert re.search(r"^  chosen key +Audit$", shown.stdout, re.MULTILINE)
    assert "a redispatch goes to  CPU: descend (C, libdescend.so)" in shown.stdout


def test_demo_infers_shapes_on_the_meta_device(shown):
    assert "on the device meta: (64, 10)" in shown.stdout


def test_piped_demo_is_plain_and_at_most_100_wide(shown):
    assert "\x1b" not in shown.stdout + shown.stderr
    assert "\r" not in shown.stderr
    assert shown.stderr.count("\n") == 4
    assert "training 100 %  epoch 200/200" in shown.stderr
    assert max(map(len, shown.stdout.splitlines())) <= 100


def test_quiet_demo_prints_the_accuracy_alone():
    done = run_demo("--quiet", "--epochs", "60")
    assert re.fullmatch(r"  test accuracy 0\.\d{4}\n", done.stdout)
    assert done.stderr == ""


def test_demo_below_its_goal_says_so_and_exits_with_1():
    done = run_demo("--epochs", "1")
    assert done.returncode == 1
    assert accuracy_in(done.stdout) < 0.94
    assert "below 0.94" in done.stdout


def test_demo_without_a_compiler_uses_the_python_kernel(tmp_path):
    done = run_demo(PATH=str(tmp_path), CC="no-such-compiler")
    assert done.returncode == 0, done.stderr
    assert "no C compiler found" in done.stdout
    assert re.search(r"^  CPU +descend +\S*tutorial\.py:\d+ +CPU$", done.stdout, re.MULTILINE)


def test_demo_with_a_broken_compiler_says_why_and_goes_on():
    done = run_demo("--epochs", "100", CC="false")
    assert done.returncode == 0, done.stderr
    assert "false can't compile descend.c, the Python kernel stays" in done.stdout


def on_a_terminal(width, **environment):
    """Run the demo on a pseudo-terminal and return all that it wrote there."""
    leader, follower = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **environment}
    environment.pop("COLUMNS", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "keyfold", "demo"],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=environment,
    )
    os.close(follower)
    written = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not piece:
            break
        written += piece
    os.close(leader)
    assert process.wait(timeout=60) == 0
    return written.decode().replace("\r\n", "\n")


def test_demo_on_a_narrow_terminal_stays_within_it_and_draws_its_bar_in_place():
    text = on_a_terminal(80, NO_COLOR="")
    assert "\x1b[32m" in text
    assert "\r\x1b[K" in text
    bare = re.sub(r"\x1b\[[\d;]*[mK]", "", text)
    assert "━" in bare
    assert max(len(line) for line in re.split(r"[\r\n]", bare)) <= 80


def test_demo_without_colour_on_a_terminal_keeps_the_bar():
    text = on_a_terminal(100, NO_COLOR="1")
    assert not re.search(r"\x1b\[[\d;]*m", text)
    assert "━" in text
