"""Plans on a card, with a driver and a libcudnn that are fakes: which memory a run is given."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import keyfold as kf

pytestmark = pytest.mark.one_python

FAKE = Path(__file__).parent / "fake"
CC = shutil.which("cc") or shutil.which("gcc")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """The folder of the fake libraries."""
    folder = tmp_path_factory.mktemp("fake")
    for source, name in (("cuda.c", "libcuda.so.1"), ("cudnn.c", "libcudnn.so.9")):
        command = [CC, "-shared", "-fPIC", "-Wall", "-Werror", f"-Wl,-soname,{name}"]
        subprocess.run([*command, "-o", folder / name, FAKE / source], check=True)
    return folder


@pytest.fixture
def run(libraries, tmp_path):
    """Runs the script that has the fake card, and returns what it reports."""

    def run(*arguments, **environment):
        properties = json.loads(kf.cudnn.CardProfile.named("h100").to_json())["properties"]
        package = Path(kf.__file__).parents[1]
        done = subprocess.run(
            [sys.executable, FAKE / "card.py", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(libraries),
                "KEYFOLD_CUDNN_LIBRARY": str(libraries / "libcudnn.so.9"),
                "FAKE_LOG": str(tmp_path / "log"),
                "FAKE_PROFILE": json.dumps(properties),
                "PYTHONPATH": os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")]),
                **environment,
            },
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_a_run_is_given_the_callers_memory_scratch_memory_and_the_graphs_numbers(run):
    report = run()
    assert report["profile"] == "Fake H100"
    assert report["inputs"]
    assert report["outputs"]
    assert report["workspace"]
    # x, y, the number by value, and the graph's own.
    assert report["tensors"] == 4
    assert report["engine"] == 0
    assert "cuDNN engine 0" in report["explain"]
    # The scratch memory is freed, and no context is left current.
    assert (report["live"], report["depth"]) == (0, 0)
    assert report["made"] == ["cuda:0", 1]
    assert report["after"][0] == 0
    assert report["tuned"][0] == "cuDNN engine 1"
    assert "the quickest of 2 that were timed" in report["tuned"][1]
    assert report["end"] == [0, 0]


def test_what_a_card_refuses_says_why(run):
    report = run()
    assert report["bool"].startswith("NotSupported")
    assert "8 booleans in a byte" in report["bool"]
    assert report["ordinal"].startswith("DeviceError")
    assert "cuda:3" in report["ordinal"]
    assert report["host"].startswith("DeviceError")
    assert "cuda:0" in report["host"]
    assert report["reader"].startswith("DeviceError")
    assert "cudnnBackendExecute gave 5000 EXECUTION_FAILED" in report["failed"]
    assert "the fake library was asked to fail" in report["failed"]


def test_another_process_reads_the_plans_of_the_card(run, tmp_path):
    folder = tmp_path / "plans"
    assert "read from the plans in" not in run(str(folder))["explain"]
    assert len(list(folder.glob("*.json"))) >= 2
    assert "read from the plans in" in run(str(folder))["explain"]
