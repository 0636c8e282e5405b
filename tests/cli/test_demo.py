"""`python -m keyfold demo`, run as a user runs it."""

import json
import os
import pty
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import keyfold as kf
from keyfold._cli import _files, main


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
def written(tmp_path_factory):
    """The folder that the demo of `shown` wrote its files to."""
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def shown(written):
    done = run_demo("--save-trace", str(written / "trace.json"), "--draw", str(written / "g.json"))
    assert done.returncode == 0, done.stderr
    return done


def section(text, start):
    """The lines below the heading that begins so."""
    return re.search(rf"^{start}.*\n-+\n((?:.+\n|\n(?!.*\n--))*)", text, re.MULTILINE)[1]


def accuracy_in(text):
    return float(re.search(r"test accuracy (0\.\d{4})$", text, re.MULTILINE)[1])


def test_demo_reaches_its_accuracy(shown):
    assert 0.97 <= accuracy_in(shown.stdout) < 1


@pytest.fixture(scope="module")
def quiet(written):
    """A short demo that says its accuracy alone, and draws its graph."""
    return run_demo("--quiet", "--epochs", "1", "--draw", str(written / "g.dot"))


@pytest.mark.one_python
def test_demo_gives_the_same_accuracy_every_time(quiet):
    again = run_demo("--epochs", "1")
    assert accuracy_in(again.stdout) == accuracy_in(quiet.stdout)
    assert again.returncode == quiet.returncode == 1
    assert "below 0.97" in again.stdout


def test_demo_checks_its_own_derivative(shown):
    report = section(shown.stdout, "Operators of our own")
    for check in ("schema", "layouts", "meta", "autograd", "vmap", "autocast", "trace"):
        assert re.search(rf"^ +{check} +passed$", report, re.MULTILINE), check


def test_demo_profiles_its_last_epoch(shown, written):
    events = json.loads((written / "trace.json").read_text())["traceEvents"]
    counts = Counter(event["name"] for event in events if event["ph"] == "X")
    steps = 1437 // 64
    assert counts["demo::cross_entropy"] == counts["step"] == steps
    assert counts["demo::average_"] == 8 * steps
    # The table has the slowest rows, whichever those are on this machine, by their own time.
    table = section(shown.stdout, "The last epoch, profiled")
    rows = re.findall(r"^  (\S+) .* (\d+)  .* ([\d.]+) %", table, re.MULTILINE)
    assert len(rows) == 12
    for name, count, _ in rows:  # A long name goes on in the next line.
        assert int(count) <= max(n for known, n in counts.items() if known.startswith(name))
    shares = [float(share) for _, _, share in rows]
    assert shares == sorted(shares, reverse=True)


def test_demo_counts_every_call_in_its_own_layer(shown):
    table = section(shown.stdout, "What Audit counted")
    rows = dict(re.findall(r"^  (\w+::[\w.]+) +([\d,]+) ", table, re.MULTILINE))
    assert rows["demo::average_"] == "2,816"
    assert rows["demo::block"] == "704"
    assert rows["keyfold::adam_step_"] == "2,816"


def test_demo_prints_the_graph_and_replays_it(shown):
    text = section(shown.stdout, "The loss and its gradients as a graph")
    # demo::block is written in terms of other operators, whose values the gradients need.
    lines = " ".join(text.split())
    assert re.search(r"%\d+: float32\[64, 16, 8, 8\] = aten::convolution\(", lines)
    assert re.search(r"%\d+: float32\[\] = demo::cross_entropy\(", lines)
    replayed, computed = re.search(
        r"loss ([\d.]+); computed for them: ([\d.]+)$", text, re.M
    ).groups()
    assert replayed == computed


def test_demo_draws_the_hardest_digits(shown):
    lines = section(shown.stdout, "The hardest digits").splitlines()
    assert len(re.findall(r"a \d, read as \d", lines[0])) == 4
    assert len(lines) == 9


def test_save_trace_writes_a_chrome_trace(shown, written):
    trace = json.loads((written / "trace.json").read_text())
    names = [event["name"] for event in trace["traceEvents"]]
    assert names.count("demo::cross_entropy") == 1437 // 64
    assert f"The profile is in {written / 'trace.json'}: open it at " in shown.stdout


def test_draw_writes_the_graph(shown, written):
    graph = kf.Graph.load(written / "g.json")
    assert [node.operator for node in graph.nodes].count("demo::cross_entropy") == 1
    assert f"The graph is in {written / 'g.json'}." in shown.stdout


def test_draw_takes_its_form_from_the_ending(quiet, written, shown):
    assert (written / "g.dot").read_text(encoding="utf-8").startswith("digraph")
    graph = kf.Graph.load(written / "g.json")
    for name, start, end in (
        ("g.dot", "digraph", "}\n"),
        ("g.gv", "digraph", "}\n"),
        ("g.MMD", "flowchart TD\n", "\n"),
        ("g.md", "```mermaid\nflowchart TD\n", "\n```\n"),
    ):
        text = _files.graph_text(graph, Path(name))
        assert text.startswith(start)
        assert text.endswith(end)
        assert "demo::cross_entropy" in text


@pytest.mark.parametrize(
    ("option", "name", "message"),
    [
        ("--draw", "g.svg", "the ending '.svg' says nothing"),
        ("--draw", "g", "it has no ending"),
        ("--draw", "nowhere/g.dot", "can't be written: no such file or directory"),
        ("--draw", "folder.dot", "can't be written: it is a directory"),
        ("--save-trace", "nowhere/t.json", "can't be written: no such file or directory"),
        ("--save-trace", ".", "can't be written: it is a directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_one_line_before_the_training(
    tmp_path, capsys, option, name, message
):
    (tmp_path / "folder.dot").mkdir()
    assert main(["demo", option, str(tmp_path / name)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"keyfold: {option} ")
    assert message in err
    assert err.count("\n") == 1


def test_one_file_for_both_is_refused(tmp_path, capsys):
    path = str(tmp_path / "both.json")
    assert main(["demo", "--draw", path, "--save-trace", path]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "--save-trace writes there, too" in err


def test_a_file_is_left_as_it_is_when_the_other_option_is_wrong(tmp_path):
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text("mine")
    for path in (old, new):
        assert main(["demo", "--save-trace", str(path), "--draw", "g.svg"]) == 2
    assert old.read_text() == "mine"
    assert not new.exists()


def test_a_full_disk_is_one_line(tmp_path):
    (tmp_path / "g.dot").symlink_to("/dev/full")
    done = run_demo("--quiet", "--epochs", "1", "--draw", str(tmp_path / "g.dot"))
    assert done.returncode == 2
    assert "g.dot: can't be written: no space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


def test_demo_prints_the_table_of_average_and_explains_cross_entropy(shown):
    assert re.search(r"^  CPU +average +libaverage\.so$", shown.stdout, re.MULTILINE)
    assert re.search(r"^  Audit +audit .* fallback$", shown.stdout, re.MULTILINE)
    assert re.search(r"^  chosen key +Audit$", shown.stdout, re.MULTILINE)
    assert "a redispatch goes to  AutogradCPU: cross_entropy_backward (Python," in shown.stdout
    assert "a redispatch goes to  CPU: cross_entropy (Python," in shown.stdout


def test_demo_infers_shapes_on_the_meta_device(shown):
    assert "on the device meta: (64, 16, 4, 4)" in shown.stdout


def test_piped_demo_is_plain_and_at_most_80_wide(shown):
    assert "\x1b" not in shown.stdout + shown.stderr
    assert "\r" not in shown.stderr
    assert shown.stderr.count("\n") == 4
    assert "training 100 %  epoch 16/16" in shown.stderr
    # The names of the files are as long as they were given.
    lines = [line for line in shown.stdout.splitlines() if " is in /" not in line]
    assert max(map(len, lines)) <= 80


def test_quiet_demo_prints_the_accuracy_alone(quiet):
    assert re.fullmatch(r"  test accuracy 0\.\d{4}\n", quiet.stdout)
    assert quiet.stderr == ""


@pytest.mark.one_python
def test_demo_without_a_compiler_uses_the_python_kernel(tmp_path):
    done = run_demo("--epochs", "6", PATH=str(tmp_path), CC="no-such-compiler")
    assert done.returncode == 0, done.stderr
    assert "no C compiler found" in done.stdout
    assert re.search(r"^  CPU +average +\S*/\s+tutorial\.py:\d+$", done.stdout, re.MULTILINE)


@pytest.mark.one_python
def test_demo_with_a_broken_compiler_says_why_and_goes_on():
    done = run_demo("--epochs", "6", CC="false")
    assert done.returncode == 0, done.stderr
    assert "false can't compile average.c, the Python kernel stays" in done.stdout


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
        [sys.executable, "-m", "keyfold", "demo", "--epochs", "6"],
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
