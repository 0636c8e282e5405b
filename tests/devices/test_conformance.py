"""The conformance kit from Python and from the command line."""

import json
import subprocess
import sys

import pytest

import keyfold as kf
from keyfold.testing import delayed_device
from tests.helpers.compiler import compile_c
from tests.helpers.notebook import Reader
from tests.helpers.paths import ROOT

LOADER = """\
import keyfold as kf
{body}
"""


def run(*words, code=0, timeout=300):
    """What the command line prints; errors are on standard error."""
    command = [sys.executable, "-m", "keyfold", "conformance", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=ROOT)
    assert done.returncode == code, done.stderr or done.stdout
    return done.stdout if code < 2 else done.stderr


@pytest.fixture
def loader(tmp_path):
    """Writes a program that registers a backend, and returns its path."""

    def write(body):
        path = tmp_path / "backend_to_load.py"
        path.write_text(LOADER.format(body=body))
        return str(path)

    return write


def test_a_group_in_this_process():
    with delayed_device("late"):
        report = kf.conformance("late", groups=["linalg", "streams"])
    assert report.conforms
    assert [group["name"] for group in report.groups] == ["linalg", "streams"]
    assert report["cases"] == sum(group["cases"] for group in report.groups) > 80
    assert report.findings == []
    text = str(report)
    assert text.startswith("test of late (backend 'delayed'): 10% of the cases, seed 0\n")
    assert text.endswith("\nThe backend conforms.")
    assert max(map(len, text.splitlines())) <= 80


def test_a_report_is_json_and_another_version_is_refused(raises_saying):
    report = kf.conformance("cpu", only="aten::matmul", dtype="float16", processes=False)
    assert kf.ConformanceReport.from_json(report.to_json()) == report
    fields = json.loads(report.to_json())
    assert (fields["version"], fields["device"], fields["mode"]) == (1, "cpu", "test")
    fields["version"] = 99
    with raises_saying(kf.InvalidValue, "a report of version 99", "reads version 1"):
        kf.ConformanceReport.from_json(json.dumps(fields))
    with raises_saying(kf.InvalidValue, "no format 'keyfold conformance report'"):
        kf.ConformanceReport.from_json("{}")


def test_a_failure_is_shown_in_text_and_html():
    with delayed_device("late") as device:
        device.plant("waits_too_little")
        report = kf.conformance("late", groups="streams")
    assert not report.conforms
    (finding,) = report.findings
    assert finding["symptom"] == "race between streams"
    assert finding["operator"] == "order by an event"
    assert "race between streams: order by an event" in str(report)
    text = Reader(report._repr_html_()).text
    assert "race between streams" in text
    assert "fails" in text


def test_mistakes(raises_saying):
    with raises_saying(kf.DeviceError, "unknown device type"):
        kf.conformance("nowhere")
    with raises_saying(kf.DeviceError, "meta", "has no backend to test"):
        kf.conformance("meta")
    with raises_saying(kf.InvalidValue, "there is no group 'lines'", "pointwise"):
        kf.conformance("cpu", groups=["lines"], processes=False)
    with raises_saying(kf.InvalidValue, "there is no mode 'speed'", "test"):
        kf.conformance("cpu", mode="speed")


def test_the_command_line_runs_groups_in_processes(loader):
    path = loader("from keyfold.testing import delayed_device\nkept = delayed_device('late')")
    out = run("late", "--load", path, "--group", "linalg", "--group", "errors")
    assert "test of late (backend 'delayed')" in out
    assert out.endswith("The backend conforms.\n")
    fields = json.loads(run("late", "--load", path, "--only", "aten::matmul", "--json"))
    assert (fields["command"], fields["form"], fields["conforms"]) == ("conformance", 1, True)
    assert [group["name"] for group in fields["groups"]] == ["linalg"]


def test_a_fallback_would_hide_what_is_lacking(raises_saying):
    with delayed_device("late"):
        kf.allow_fallback("late", "cpu")
        parts = ["operators of late may fall back to cpu", "hide what late lacks"]
        with raises_saying(kf.DeviceError, *parts):
            kf.conformance("late", groups="linalg", processes=False)
        kf.allow_fallback("late", None)
        assert kf.conformance("late", groups="linalg", processes=False).conforms
    assert kf.fallbacks() == []


@pytest.mark.one_python
def test_an_abort_hides_nothing(loader):
    path = loader(
        "import os\n"
        "class Npu:\n"
        "    def matmul(self, a, b, out):\n"
        "        if a.dtype == 'int32':\n"
        "            os.abort()\n"
        "        out[...] = a @ b\n"
        "handle = kf.register_backend('npu', Npu())"
    )
    out = run("npu", "--load", path, "--only", "aten::matmul", code=1)
    assert out.count("aborted: ") == out.count("aborted: aten::matmul int32") == 1
    assert "the process was aborted (signal 6)" in " ".join(out.split())
    # The other dtypes were run: `linalg, cases, passed, failed, unclaimed, lacking, time`.
    row = next(line.split() for line in out.splitlines() if line.startswith("linalg"))
    assert (int(row[2]) >= 10, int(row[3])) == (True, 1), out
    assert "lacking: " in out
    assert "The backend doesn't conform." in out
    # So were the other operators: each that multiplies matrices ended a process of its own, for its
    # one case in so small a part.
    part = ("--group", "linalg", "--dtype", "int32", "--fraction", "0.01")
    out = run("npu", "--load", path, *part, code=1)
    row = next(line.split() for line in out.splitlines() if line.startswith("linalg"))
    assert int(row[3]) == out.count("aborted: ") >= 5, out


def board(folder, case):
    """A plugin's device in C with one thing wrong; of float32 it has sums, `add` and `mul`."""
    source = ROOT / "crates" / "ffi" / "tests" / "device.c"
    flags = [f"-DCASE={case}", '-DNAME="other"', '-DKEY="OTHER"']
    return compile_c(source, folder / "libdevice.so", *flags)


@pytest.mark.one_python
def test_a_plugin_that_aborts_in_one_case(tmp_path):
    words = ("--load", str(board(tmp_path, 34)), "--only", "aten::mul", "--dtype", "float32")
    out = run("other", *words, "--all", code=1)
    assert "aborted: aten::mul float32, 2 cases" in out
    assert "float32[7, 13] negative, float32[7, 1] sliced. the process was aborted" in out
    # All the others ran.
    row = next(line.split() for line in out.splitlines() if line.startswith("pointwise"))
    assert row[1:4] == ["32", "0", "2"], out


@pytest.mark.parametrize(
    ("case", "only", "verdict", "says"),
    [
        # It adds and multiplies, and says so.
        (1, "aten::mul", None, ""),
        # It claims rows, and has none.
        (18, "aten::softmax", "claimed but failed", "the board has no such unit"),
        # It says that it has no greatest elements, and computes them.
        (35, "aten::max", "works but unclaimed", "The backend says: the board adds and multip"),
        (19, "aten::mul", "claimed but failed", "the cable was pulled"),
        (20, "aten::mul", "claimed but failed", "the board is full"),
    ],
)
def test_a_plugin_that_says_what_it_does_not_do(tmp_path, case, only, verdict, says):
    with kf.load_plugin(board(tmp_path, case)):
        report = kf.conformance("other", only=only, dtype="float32", processes=False)
    assert report.conforms == (verdict is None), report
    found = [finding for finding in report.findings if finding["verdict"] != "lacking"]
    assert {finding["verdict"] for finding in found} == ({verdict} if verdict else set())
    assert all(says in finding["message"] for finding in found), report
    assert report["cases"] >= 2


def test_a_replay_finds_what_a_wide_tolerance_hides(raises_saying):
    import numpy as np

    class Rough:
        """Products that are 1 % wrong, and none of whole numbers."""

        def matmul(self, a, b, out):
            if out.dtype == np.int64:
                raise kf.NotSupported("aten::matmul isn't supported by backend 'Rough': integers")
            out[...] = (a @ b) * 1.01

    def products(x, y):
        return kf.matmul(x, x), kf.matmul(y, y)

    whole, halves = (kf.ones((8, 8), dtype=dtype) for dtype in ("int64", "float16"))
    graph = kf.trace(products, whole, halves)
    handle = kf.register_backend("rough", Rough())
    try:
        report = kf.conformance("rough", replay=graph)
    finally:
        handle.remove()
    # Lacking in one call and wrong in another one.
    matmul = [found["verdict"] for found in report.findings if found["operator"] == "aten::matmul"]
    assert sorted(matmul) == ["claimed but failed", "lacking"], report
    assert not report.conforms
    assert str(report).endswith("The backend doesn't conform.")
    with raises_saying(kf.InvalidValue, "give another device than cpu"):
        kf.conformance("cpu", replay=graph)


def test_options_that_choose_nothing_are_refused(raises_saying):
    for words, *says in [
        ({"only": "add"}, "there is no operator 'add'", "did you mean 'aten::add'?"),
        ({"only": "aten::exp", "case": 16}, "there is no case 16", "0 to 15"),
        ({"fraction": 0.0}, "a fraction is above 0 and at most 1, not 0"),
        ({"fraction": float("nan")}, "a fraction is above 0"),
        ({"seed": -1}, "seed is 0 to 2**64 - 1, not -1"),
        ({"case": -1}, "case is the number of a case, not -1"),
    ]:
        with raises_saying(kf.InvalidValue, *says):
            kf.conformance("cpu", processes=False, **words)
    with raises_saying(kf.InvalidValue, "the first device of a type, cpu:0, not cpu:1"):
        kf.conformance("cpu:1")


def test_a_crash_after_the_last_case_is_a_failure(loader):
    body = (
        "import atexit, os, signal\n"
        "handle = kf.register_backend('npu', type('Npu', (), {})())\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGSEGV)"
    )
    out = run("npu", "--load", loader(body), "--group", "memory", code=1)
    assert "aborted: memory\n    after the last case the process touched memory that" in out
    assert out.endswith("The backend doesn't conform.\n")


def test_a_report_says_what_it_proves():
    def last_line(**options):
        report = kf.conformance("cpu", only="aten::exp", processes=False, **options)
        return str(report).splitlines()[-1]

    assert last_line(mode="support") == "What it offers ran once: that is no proof."
    assert last_line(mode="perf") == "Nothing was compared: that is no proof."
    fields = json.loads(kf.conformance("cpu", only="aten::exp", processes=False).to_json())
    fields["groups"][0]["failed"] = 5
    assert not kf.ConformanceReport.from_json(json.dumps(fields)).conforms


@pytest.mark.one_python
def test_a_shrunk_case_is_a_program_that_shows_it(loader, tmp_path):
    body = (
        "class Npu:\n"
        "    def matmul(self, a, b, out):\n"
        "        out[...] = a @ b\n"
        "        out.reshape(-1)[-1:] += 1\n"
        "handle = kf.register_backend('npu', Npu())"
    )
    words = ("--only", "aten::matmul", "--dtype", "float32", "--shrink", "--json")
    found = json.loads(run("npu", "--load", loader(body), *words, code=1))
    program = found["findings"][0]["reproducer"]
    whole = tmp_path / "shown.py"
    whole.write_text(LOADER.format(body=body) + program)
    done = subprocess.run(
        [sys.executable, whole], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert program.startswith("import keyfold as kf\n")
    expected = program.rpartition("# ")[2]
    assert done.stdout.strip() != expected
    assert done.stdout.count(",") == expected.count(",") < 8


def model(x, w):
    hidden = kf.ops.aten.relu(x @ w)
    return kf.softmax(hidden, axis=-1), hidden.sum()


def test_a_recorded_graph_is_replayed_on_a_device(loader, tmp_path):
    graph = kf.trace(model, kf.ones((3, 4)), kf.ones((4, 2)))
    with delayed_device("late"):
        report = kf.conformance("late", replay=graph)
    assert report.conforms
    assert report["cases"] == len(graph.nodes) > 3
    assert (report["mode"], report["groups"][0]["lacking"]) == ("replay", 0)
    graph.save(tmp_path / "graph.json")
    body = (
        "class Npu:\n"
        "    def matmul(self, a, b, out):\n"
        "        out[...] = a @ b + 1\n"
        "handle = kf.register_backend('npu', Npu())"
    )
    words = ("npu", "--load", loader(body), "--replay", str(tmp_path / "graph.json"))
    out = run(*words, code=1)
    assert "wrong value: aten::matmul" in out
    assert "on the CPU, within" in " ".join(out.split())
    assert "lacking: " in out
    assert "aten::relu" in out


def test_wrong_command_lines(loader):
    assert "unknown device type" in run("nowhere", code=2)
    assert "--load /no/such.py" in run("npu", "--load", "/no/such.py", code=2)
    assert "a number above 0, at most 1" in run("cpu", "--fraction", "2", code=2)
    assert "No such file" in run("cpu", "--replay", "/no/such.json", code=2)
    path = loader("raise SystemExit('no accelerator here')")
    assert "no accelerator here" in run("npu", "--load", path, "--group", "linalg", code=2)
