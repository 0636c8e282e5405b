"""Which crate may depend on which: another edge is a decision, and changes this table first."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT

CARGO = os.environ.get("CARGO") or shutil.which("cargo") or "cargo"

# In the order of ARCHITECTURE.md: a crate depends on crates above it only.
ALLOWED = {
    "core": set(),
    "dispatch": {"core"},
    "tensor": {"core", "dispatch"},
    "expr": {"core"},
    "backend": {"core", "dispatch", "tensor", "expr"},
    "kit": {"core", "dispatch", "tensor", "expr"},
    "cpu": {"core", "tensor", "expr", "backend", "kit"},
    "layers": {"core", "dispatch", "tensor", "expr", "backend"},
    "ops": {"core", "dispatch", "tensor", "expr", "layers", "backend"},
    "conformance": {"core", "dispatch", "tensor", "expr", "layers", "backend", "ops"},
    "cudnn": {"core", "dispatch", "tensor", "backend"},
    "libcudnn": {"core", "tensor", "cudnn"},
    "plugin": set(),
    "ffi": {"core", "dispatch", "tensor", "expr", "backend", "plugin"},
    "keyfold": {
        *("core", "dispatch", "tensor", "expr", "backend", "kit", "cpu", "layers", "ops"),
        *("conformance", "cudnn", "libcudnn", "plugin", "ffi"),
    },
    "python": {
        *("core", "dispatch", "tensor", "expr", "backend", "kit", "layers", "ops", "ffi"),
        "keyfold",
    },
    "extension": {"python"},
}

# Beside those, for tests, benchmarks and examples.
ALLOWED_IN_TESTS = {
    "tensor": {"backend"},
    "backend": {"kit"},
    "keyfold": {"backend", "conformance"},
    "ops": {"conformance", "cpu", "kit", "keyfold"},
    "conformance": {"backend", "cpu", "keyfold"},
    "layers": {"cpu", "keyfold"},
    "cudnn": {"backend", "keyfold"},
    "libcudnn": {"keyfold"},
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

    def edges(*kinds):
        found = {}
        for folder, package in packages.items():
            all_ = package["dependencies"]
            names = {d["name"] for d in all_ if d["kind"] in kinds and d["name"] in folders}
            found[folder] = {folders[name] for name in names}
        return found

    assert edges(None, "build") == ALLOWED
    in_tests = {folder: found for folder, found in edges("dev").items() if found}
    assert in_tests == ALLOWED_IN_TESTS


def sources(crate):
    for path in sorted((ROOT / "crates" / crate / "src").rglob("*.rs")):
        # Documentation may name them.
        lines = path.read_text().splitlines()
        yield path, "\n".join(line for line in lines if not line.lstrip().startswith("//"))


def test_the_operators_know_no_backend_by_name():
    for path, text in sources("ops"):
        code = re.split(r"#\[cfg\((?:all\()?test", text)[0]
        named = re.findall(r"DeviceType::CPU|Device::CPU|HostBackend|keyfold_cpu|(?i:cuda)", code)
        assert not named, path


def test_crates_with_unsafe_code_are_listed_and_the_others_forbid_it():
    unsafe = re.compile(r"\bunsafe (?:extern|fn|impl|trait|\{)|\bunsafe\(")
    using = {crate for crate in ALLOWED if any(unsafe.search(text) for _, text in sources(crate))}
    roots = {crate: (ROOT / "crates" / crate / "src" / "lib.rs").read_text() for crate in ALLOWED}
    forbidding = {crate for crate, text in roots.items() if "\n#![forbid(unsafe_code)]\n" in text}
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.partition("\n## Unsafe code\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE)
    assert using == {crate for row in rows for crate in re.findall(r"`(\w+)`", row)}
    told = re.search(r"^(`core`.*) forbid it", section, re.MULTILINE)[1]
    assert forbidding == set(re.findall(r"`(\w+)`", told)) == set(ALLOWED) - using


@pytest.mark.parametrize("crate", ["backend", "tensor", "kit", "cpu"])
def test_the_crates_below_know_no_operator_by_name(crate):
    for path, text in sources(crate):
        code = text.split("#[cfg(test)]")[0]
        assert "aten::" not in code, path


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
