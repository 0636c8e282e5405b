"""Which crate may depend on which: another edge is a decision, and changes this table first."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import ROOT

CARGO = os.environ.get("CARGO") or shutil.which("cargo") or "cargo"

# In the order of ARCHITECTURE.md: a crate depends on crates above it only.
ALLOWED = {
    "core": set(),
    "dispatch": {"core"},
    "tensor": {"core", "dispatch"},
    "expr": {"core"},
    "backend": {"core", "dispatch", "tensor", "expr"},
    "kit": {"core", "dispatch", "tensor", "expr"},
    "ops": {"core", "dispatch", "tensor", "expr", "kit"},
    "layers": {"core", "dispatch", "tensor", "expr", "ops"},
    "plugin": set(),
    "ffi": {"core", "dispatch", "tensor", "plugin"},
    "keyfold": {"core", "dispatch", "tensor", "ops", "layers"},
    "python": {
        *("core", "dispatch", "tensor", "expr", "kit", "ops", "layers", "ffi", "keyfold"),
    },
}


@pytest.fixture(scope="module")
def packages():
    """The workspace's packages by folder, as Cargo reads them."""
    command = [CARGO, "metadata", "--offline", "--no-deps", "--format-version", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["packages"]
    return {Path(package["manifest_path"]).parent.name: package for package in found}


def test_crates_depend_on_those_that_the_table_allows(packages):
    folders = {package["name"]: folder for folder, package in packages.items()}
    edges = {
        folder: {
            # Those of tests and build scripts, too.
            folders[dependency["name"]]
            for dependency in package["dependencies"]
            if dependency["name"] in folders
        }
        for folder, package in packages.items()
    }
    assert edges == ALLOWED


def test_the_table_points_one_way():
    above = set()
    for crate, allowed in ALLOWED.items():
        assert allowed <= above, crate
        above.add(crate)


def test_the_architecture_has_the_same_table():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rows = re.findall(r"^\| `crates/(\w+)` \|.*\| ([^|]*) ?\|$", text, re.MULTILINE)
    above = set()
    for crate, told in rows:
        if told.strip() == "all above":
            assert ALLOWED[crate] <= above, crate
        else:
            listed = re.sub(r"\(.*?\)", "", told)
            assert set(re.findall(r"\w+", listed)) == ALLOWED[crate], crate
        above.add(crate)
    assert above == set(ALLOWED)
