"""`--json`: each command's answer as an object, with the fields that docs/index.md names."""

import json
import subprocess
import sys

import numpy as np
import pytest

import keyfold as kf
from keyfold._cli import main
from tests.helpers.paths import ROOT

HEAD = ["command", "form", "keyfold"]


def answer(capsys, *words, code=0):
    assert main([*words, "--json"]) == code
    out, err = capsys.readouterr()
    assert err == ""
    found = json.loads(out)
    assert list(found)[:3] == HEAD
    assert (found["command"], found["form"]) == (words[0], 1)
    assert found["keyfold"] == kf.__version__
    return found


def documented(command):
    """The fields that docs/index.md has for a command: the text of its row, for looking up."""
    page = (ROOT / "docs" / "index.md").read_text()
    page = page[page.index("### As JSON") :]
    return next(line for line in page.splitlines() if line.startswith(f"| `{command}` |"))


def fields(value):
    """The names of fields at every depth, without those that are data (namespaces, memory)."""
    if isinstance(value, list):
        return {name for item in value for name in fields(item)}
    if not isinstance(value, dict):
        return set()
    by_name = {"namespaces", "operators", "memory", "kernels", "versions", "processor", "gpu"}
    found = set(value)
    for name, item in value.items():
        if name in by_name and isinstance(item, dict):
            found |= {inner for one in item.values() for inner in fields(one)}
        else:
            found |= fields(item)
    return found - set(HEAD)


@pytest.mark.parametrize(
    "words",
    [
        ("doctor",),
        ("ops",),
        ("table", "aten::add", "--fallbacks"),
        ("explain", "aten::add", "3:float32", "3:float32", "--include", "Profiler"),
        ("conformance", "cpu", "--only", "aten::matmul", "--dtype", "float16", "--in-process"),
    ],
    ids=lambda words: words[0],
)
def test_every_field_is_documented(capsys, words):
    row = documented(words[0])
    assert [name for name in sorted(fields(answer(capsys, *words))) if f"`{name}`" not in row] == []


def test_operators(capsys):
    found = answer(capsys, "ops", "aten")["namespaces"]
    assert list(found) == ["aten"]
    add = next(op for op in found["aten"] if op["name"] == "aten::add")
    operator = kf.get_op("aten::add")
    assert add["schema"] == str(operator.schema)
    assert add["kernels"] == [str(key) for key in operator.kernels]
    assert len(answer(capsys, "ops", "aten::add")["namespaces"]["aten::add"]) == len(
        kf.ops.aten.add.overloads()
    )


def test_a_table(capsys):
    found = answer(capsys, "table", "aten::add")
    assert found["operator"] == "aten::add"
    table = kf.get_op("aten::add").table()
    assert [entry["key"] for entry in found["entries"]] == list(table)
    assert {entry["key"]: entry["origin"] for entry in found["entries"]} == {
        key: entry.origin for key, entry in table.items()
    }


def test_an_explanation(capsys):
    words = ("explain", "aten::mul", "2x3:float32", "2.0", "--include", "Profiler")
    found = answer(capsys, *words)
    assert found["operator"] == "aten::mul.Scalar"
    assert found["arguments"][0] == {"name": "self", "keys": ["CPU"], "device": "cpu"}
    assert found["included"] == ["Profiler"]
    assert found["error"] is None
    assert found["choice"]["rule"]
    assert isinstance(found["next"], list)


def test_a_call_that_would_fail_is_answered(capsys):
    found = answer(capsys, "explain", "aten::add", "2:float32", "2:float32:meta", code=1)
    assert "'other' is on meta" in found["error"]


def test_doctors_report(capsys):
    found = answer(capsys, "doctor")
    assert found["versions"]["numpy"] == np.__version__
    assert found["threads"]["operators_use"] == kf.get_num_threads()
    (cpu,) = (one for one in found["backends"] if one["device_type"] == "cpu")
    assert set(cpu["devices"][0]["memory"]) == set(kf.memory_stats())
    operators = found["operators"]["aten"]
    assert 0 < operators["kernels"]["CPU"] <= operators["count"]
    assert "driver" in found["gpu"]


def test_the_demo_says_its_accuracy():
    found = answer_of_demo()
    assert set(found) == {
        *HEAD,
        *("test_accuracy", "goal", "epochs", "seed", "training_seconds", "c_kernel"),
    }
    row = documented("demo")
    assert all(f"`{name}`" in row for name in set(found) - set(HEAD))
    assert 0 < found["test_accuracy"] < 1
    assert found["epochs"] == 2


def answer_of_demo():
    """Two epochs are below the goal, mostly: exit code 1 with the same answer.

    In a process of its own, since the demo registers a fallback for every operator.
    """
    command = [sys.executable, "-m", "keyfold", "demo", "--epochs", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    found = json.loads(done.stdout)
    assert done.stderr == ""
    assert done.returncode == (0 if found["test_accuracy"] >= found["goal"] else 1)
    return found


def test_errors_are_text_and_exit_codes(capsys):
    assert main(["table", "no_such::operator", "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "no_such" in err
