"""`python -m keyfold cudnn plan`, and what `doctor` says of cuDNN."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import keyfold as kf
from keyfold._cli import _doctor_cudnn, main
from keyfold._cli._terminal import Status
from keyfold.cudnn import _library
from tests.cli.test_commands import keyfold
from tests.helpers.cudnn import need


def convolution():
    """A graph that libcudnn plans as it is."""
    g = kf.cudnn.Graph(io_data_type="float16", name="block")
    x = g.tensor(dim=[2, 64, 16, 16], stride=[16384, 1, 1024, 64], name="x")
    w = g.tensor(dim=[64, 64, 3, 3], stride=[576, 1, 192, 64], name="w")
    g.relu(g.conv_fprop(x, w, padding=[1, 1])).set_output(True).set_name("y")
    return g


def softmax():
    """A graph that libcudnn plans in parts alone."""
    g = kf.cudnn.Graph(io_data_type="float16", name="rows")
    y, _ = g.softmax(g.tensor(dim=[8, 16, 32], name="x"))
    y.set_output(True).set_name("y")
    return g


def wide():
    """A graph of float64, which libcudnn doesn't multiply."""
    g = kf.cudnn.Graph(io_data_type="float64", compute_data_type="float64", name="wide")
    a, b = (g.tensor(dim=[1, 64, 64], name=name) for name in "ab")
    g.matmul(a, b).set_output(True).set_name("c")
    return g


@pytest.fixture
def libcudnn(request):
    """A test that needs the real library, which makes each plan anew."""
    need(request.node.name)
    kf.cudnn.plan_cache.clear()


@pytest.fixture
def saved(tmp_path):
    """Writes a graph's file: `saved(graph)` is its path."""

    def write(graph):
        path = tmp_path / "graph.json"
        path.write_text(graph.to_json())
        return str(path)

    return write


@pytest.fixture
def without_libcudnn(monkeypatch, tmp_path):
    """No library is found, wherever one is."""
    monkeypatch.setenv("KEYFOLD_CUDNN_LIBRARY", str(tmp_path / "libcudnn.so.9"))
    # Helpers are kept by these options: those that run have a library.
    monkeypatch.setattr(_library.plans, "patience", 170_001)


def lines(out):
    return [line.strip() for line in out.splitlines()]


def test_plan_shows_ranked_engines_and_the_plan(capsys, libcudnn, saved):
    words = ("cudnn", "plan", saved(convolution()), "--device", "h100", "--limit", "2")
    code, out, err = keyfold(capsys, *words)
    assert (code, err) == (0, "")
    told = lines(out)
    assert "graph      'block': conv_fprop, relu" in told
    assert told.index("Engines") < told.index("Plan")
    table = told[told.index("Engines") + 2 : told.index("Plan") - 1]
    assert table[0].split()[:4] == ["engine", "heuristics", "knobs", "workspace"]
    ranked = [line.split() for line in table[2:4]]
    assert [row[1] for row in ranked] == ["A", "A"]
    assert all(row[0].isdecimal() and row[3].replace(",", "").isdecimal() for row in ranked)
    plan = convolution().build("h100")
    assert f"engine: {plan.engine}, {plan.workspace_bytes} bytes of scratch memory" in told
    assert plan.engine == f"cuDNN engine {ranked[0][0]}"


def answer(capsys, *words, code=0):
    assert main(["cudnn", "plan", *words, "--json"]) == code
    out, err = capsys.readouterr()
    assert err == ""
    found = json.loads(out)
    assert (found["command"], found["form"]) == ("cudnn plan", 1)
    return found


def test_plan_as_json_has_the_same_as_data(capsys, libcudnn, saved):
    graph = convolution()
    found = answer(capsys, saved(graph), "--device", "a100", "--limit", "3", "--tf32")
    assert (found["graph"], found["signature"]) == ("block", graph.signature())
    assert found["card"]["fingerprint"] == kf.cudnn.CardProfile.named("a100").fingerprint
    assert found["tf32"] is found["compiled"] is True
    assert len(found["engines"]) == 3
    first = found["engines"][0]
    assert first["operations"] == ["conv_fprop", "relu"]
    assert (first["part"], first["refusal"]) == (0, None)
    assert isinstance(first["workspace_bytes"], int)
    assert all(isinstance(value, int) for value in first["knobs"].values())
    plan = graph.build("a100", tf32=True)
    assert found["plan"] == {
        "engine": plan.engine,
        "workspace_bytes": plan.workspace_bytes,
        "steps": plan.steps,
    }
    assert found["error"] is None
    # docs/index.md names each field.
    page = (Path(__file__).parents[2] / "docs" / "index.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith("| `cudnn plan` |"))
    fields = set(found) | set(first) | set(found["plan"]) | set(found["card"])
    assert [
        name for name in fields - {"command", "form", "keyfold"} if f"`{name}`" not in row
    ] == []


def test_engines_that_are_not_compiled_have_no_scratch_memory_yet(capsys, libcudnn, saved):
    words = (saved(convolution()), "--device", "h100", "--no-compile", "--limit", "100")
    found = answer(capsys, *words)
    assert len(found["engines"]) > 5
    assert found["compiled"] is False
    assert {one["workspace_bytes"] for one in found["engines"]} == {None}
    assert found["plan"]["workspace_bytes"] >= 0


def test_a_split_graph_has_a_ranking_for_each_part_and_its_steps(capsys, libcudnn, saved):
    path = saved(softmax())
    found = answer(capsys, path, "--device", "h100", "--no-compile", "--limit", "1")
    assert [one["part"] for one in found["engines"]] == [0, 1, 2]
    assert any(step.startswith("split into 3 plans: ") for step in found["plan"]["steps"])
    words = ("cudnn", "plan", path, "--device", "h100", "--no-compile", "--limit", "1")
    _, out, _ = keyfold(capsys, *words)
    assert "part 1 of 3: reduction" in lines(out)


def test_a_graph_without_a_plan_is_exit_code_1_and_says_why(capsys, libcudnn, saved):
    # The same graph has a plan where it may be split.
    found = answer(capsys, saved(softmax()), "--device", "h100", "--rewrite", "view", code=1)
    assert (found["engines"], found["plan"]) == ([], None)
    assert "softmax" in found["error"]
    code, out, err = keyfold(capsys, "cudnn", "plan", saved(wide()), "--device", "h100")
    assert (code, err) == (1, "")
    assert sum(line.startswith("none: ") for line in lines(out)) == 2
    assert "cuDNN 9." in out


def test_a_refused_engine_is_listed_with_the_reason(capsys, libcudnn, saved):
    g = kf.cudnn.Graph(io_data_type="float32", name="exact")
    x = g.tensor(dim=[2, 64, 16, 16], stride=[16384, 1, 1024, 64], name="x")
    w = g.tensor(dim=[64, 64, 3, 3], stride=[576, 1, 192, 64], name="w")
    g.conv_fprop(x, w, padding=[1, 1]).set_output(True)
    found = answer(capsys, saved(g), "--device", "h100", "--no-compile", "--limit", "100")
    refusals = {one["refusal"] for one in found["engines"]}
    assert None in refusals
    assert any(why is not None and "TF32" in why for why in refusals)
    taken = next(one for one in found["engines"] if one["refusal"] is None)
    assert found["plan"]["engine"] == f"cuDNN engine {taken['engine']}"


def test_a_plan_is_kept_for_other_processes(capsys, libcudnn, saved, tmp_path):
    folder = tmp_path / "plans"
    before = kf.cudnn.plan_cache.folder
    words = (saved(convolution()), "--device", "h100", "--no-compile", "--keep-in", str(folder))
    answer(capsys, *words)
    assert kf.cudnn.plan_cache.folder == before
    (kept,) = folder.glob("*.json")
    kf.cudnn.plan_cache.clear()
    found = answer(capsys, *words)
    assert found["plan"]["steps"][0] == f"read from the plans in {folder}"
    command = [sys.executable, "-m", "keyfold", "doctor", "--json"]
    environment = os.environ | {"KEYFOLD_CUDNN_PLANS": str(folder)}
    environment["PYTHONPATH"] = os.pathsep.join(_library.packages())
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    plans = json.loads(done.stdout)["cudnn"]["plans"]
    assert (plans["folder"], plans["count"]) == (str(folder), 1)
    assert plans["bytes"] == kept.stat().st_size


def test_a_plan_is_written_as_json(capsys, libcudnn, saved, tmp_path):
    path = tmp_path / "plan.json"
    words = ("--device", "h100", "--no-compile", "-o", str(path))
    found = answer(capsys, saved(convolution()), *words)
    assert json.loads(path.read_text()) == json.loads(convolution().build("h100").to_json())
    path.unlink()
    answer(capsys, saved(wide()), *words, code=1)
    assert found["plan"] is not None
    assert not path.exists()


def test_a_profile_of_ones_own_is_a_device(capsys, libcudnn, saved, tmp_path):
    own = tmp_path / "mine.json"
    kf.cudnn.CardProfile.named("l40s").save(own)
    found = answer(capsys, saved(convolution()), "--device", str(own), "--limit", "1")
    assert found["card"]["name"] == "l40s"
    assert found["plan"] is not None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("missing.json", "--device", "h100"), "missing.json: No such file or directory"),
        (("{}", "--device", "h10"), 'unknown device type "h10"; known are cpu, cuda, meta'),
        (("{}", "--device", "cpu"), "libcudnn plans for cards: a100, l40s, h100, b200, a profile"),
        (("{}", "--device", "no.json"), "--device no.json: No such file or directory"),
        (("{}",), "the following arguments are required: --device"),
        (("{}", "--device", "h100", "--limit", "0"), "a whole number from 1 is wanted, not '0'"),
        (("{}", "--device", "h100", "--workspace-limit", "-1"), "from 0 is wanted, not '-1'"),
        (("{}", "--device", "h100", "--policy", "autotune"), "invalid choice: 'autotune'"),
        (("{}", "--device", "h100", "-o", "plan.txt"), "the ending '.txt' says nothing"),
        (("{}", "--device", "h100", "--keep-in", "{}"), "it is a file, not a folder"),
    ],
)  # fmt: skip
def test_wrong_command_lines_of_plan(capsys, saved, monkeypatch, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    path = saved(convolution())
    given = (word.format(path) if word == "{}" else word for word in words)
    code, out, err = keyfold(capsys, "cudnn", "plan", *given)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "the graph's text"), ('{"keyfold": 1}', "the graph's text"), ("\udcff", "UTF-8")],
)
def test_files_that_hold_no_graph(capsys, tmp_path, text, message):
    path = tmp_path / "graph.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    code, out, err = keyfold(capsys, "cudnn", "plan", str(path), "--device", "h100")
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_graph_with_a_mistake_is_refused_before_libcudnn_is_asked(capsys, saved):
    broken = kf.cudnn.Graph(name="broken")
    broken.relu(broken.tensor(dim=[2, 3], name="x"))
    code, _, err = keyfold(capsys, "cudnn", "plan", saved(broken), "--device", "h100")
    assert code == 2
    assert 'graph "broken", tensor "x": it has no dtype' in err


def test_plan_without_libcudnn_is_one_line(capsys, without_libcudnn, saved):
    code, out, err = keyfold(capsys, "cudnn", "plan", saved(convolution()), "--device", "h100")
    assert (code, out) == (2, "")
    assert "KEYFOLD_CUDNN_LIBRARY names it, and there is no such file" in err
    assert err.count("\n") == 1


def test_steps_are_shown_on_a_terminal_alone(monkeypatch):
    for is_terminal in (True, False):
        written = io.StringIO()
        written.isatty = lambda value=is_terminal: value
        monkeypatch.setattr(sys, "stderr", written)
        monkeypatch.setenv("TERM", "xterm")
        with Status() as status:
            for what in ("look at engine 1", "look at engine 1", "long " * 30):
                status.update(0, 1, what)
        wiped = written.getvalue().split("\r")[1:]
        if not is_terminal:
            assert wiped == []
            continue
        assert [line.removesuffix("\x1b[K") for line in wiped] == [
            "  look at engine 1",
            "  " + ("long " * 30)[: len(wiped[1]) - 5],
            "",
        ]
        assert len(wiped[1].removesuffix("\x1b[K")) < 80


def test_the_command_alone_shows_its_help(capsys):
    code, out, err = keyfold(capsys, "cudnn")
    assert (code, out) == (2, "")
    assert err.endswith("keyfold cudnn plan GRAPH.json --device h100\n")
    code, _, err = keyfold(capsys, "cudnn", "plna")
    assert code == 2
    assert "no command 'plna'; did you mean plan?" in err


def test_doctor_says_which_libcudnn_is_used(capsys, libcudnn):
    report = _doctor_cudnn.look()
    used, *others = report["libraries"]
    assert used["used"] is True
    assert used["version"].startswith("9.")
    assert (used["refusal"], report["error"]) == (None, None)
    assert all(one["refusal"] and not one["used"] for one in others)
    rows = dict(_doctor_cudnn.rows(report))
    assert rows["libcudnn"] == f"{used['path']} ({used['origin']}): {used['version']}, used"


def test_doctor_says_why_no_libcudnn_is_used(capsys, without_libcudnn, tmp_path):
    report = _doctor_cudnn.look()
    (one,) = report["libraries"]
    assert (one["path"], one["used"], one["version"]) == (
        str(tmp_path / "libcudnn.so.9"),
        False,
        None,
    )
    assert "there is no such file" in report["error"]
    rows = dict(_doctor_cudnn.rows(report))
    assert "not used: KEYFOLD_CUDNN_LIBRARY names it" in rows["libcudnn"]
    code, out, err = keyfold(capsys, "doctor")
    assert (code, err) == (0, "")
    # cuDNN is said once.
    said = [line.split()[0] for line in lines(out) if line.startswith(("cuDNN", "libcudnn "))]
    assert said == ["cuDNN", "libcudnn"]


def test_doctor_counts_the_plans_of_the_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(_library.plans, "folder", None)
    assert _doctor_cudnn.look()["plans"] is None
    rows = dict(_doctor_cudnn.rows(_doctor_cudnn.look()))
    assert "KEYFOLD_CUDNN_PLANS" in rows["plans"]
    monkeypatch.setattr(_library.plans, "folder", tmp_path / "plans")
    monkeypatch.setattr(_library.plans, "limit", 4096)
    assert _doctor_cudnn.look()["plans"]["count"] == 0
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "a.json").write_text("12345")
    (tmp_path / "plans" / "b.partial").write_text("1")
    report = _doctor_cudnn.look()
    assert (report["plans"]["count"], report["plans"]["bytes"]) == (1, 5)
    rows = dict(_doctor_cudnn.rows(report))
    assert rows["plans"] == f"{tmp_path / 'plans'}: 1 plan, 5 of at most 4,096 bytes"


def test_doctor_lists_the_cards_by_where_their_numbers_are_from():
    rows = dict(_doctor_cudnn.rows(_doctor_cudnn.look()))
    source = kf.cudnn.CardProfile.named("h100").source
    assert rows["cards"] == f"{', '.join(kf.cudnn.CardProfile.names())}: {source}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--save-profile", "p.json", "--device", "h100"), "captured of a card in this machine"),
        (("--save-profile", "p.json", "--device", "cpu"), "libcudnn plans for cards"),
        (("--save-profile", "p.txt"), "the ending '.txt' says nothing"),
        (("--save-profile", "no/p.json"), "can't be written: no such file or directory"),
        (("--device", "cuda:0"), "it is the card of --save-profile FILE, which isn't given"),
    ],
)  # fmt: skip
def test_wrong_command_lines_of_save_profile(capsys, monkeypatch, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = keyfold(capsys, "doctor", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_a_profile_without_a_card_is_a_typed_error(capsys, tmp_path, request):
    need(request.node.name)
    if Path("/dev/nvidia0").exists():
        pytest.skip("there is a card in this machine")
    path = tmp_path / "card.json"
    with pytest.raises(kf.Error, match="driver") as refused:
        kf.cudnn.CardProfile.capture("cuda:0")
    assert type(refused.value) in (kf.DeviceError, kf.LibraryLoadError)
    code, out, err = keyfold(capsys, "doctor", "--save-profile", str(path))
    assert (code, out) == (2, "")
    assert "driver" in err
    assert not path.exists()


def test_a_profile_is_saved_from_a_card(capsys, tmp_path, request):
    need(request.node.name)
    if not Path("/dev/nvidia0").exists():
        pytest.skip("there is no card in this machine: no /dev/nvidia0")
    path = tmp_path / "card.json"
    code, out, err = keyfold(capsys, "doctor", "--save-profile", str(path))
    assert (code, err) == (0, "")
    assert out.startswith(f"{path}: ")
    profile = kf.cudnn.CardProfile.from_file(path)
    assert profile.fingerprint == kf.cudnn.CardProfile.capture("cuda:0").fingerprint
