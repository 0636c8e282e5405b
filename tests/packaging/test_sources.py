"""The source distribution, and the systems that a build refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib

import pytest

from tests.helpers.paths import ROOT

pytestmark = pytest.mark.one_python

CARGO = shutil.which("cargo")
RUSTC = shutil.which("rustc")


def run(*command, cwd=ROOT, **variables):
    environment = {**os.environ, "CARGO_NET_OFFLINE": "true", **variables}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The folder of an unpacked source distribution."""
    pytest.importorskip("maturin", reason="maturin isn't installed")
    if CARGO is None or not (ROOT / ".git").exists():
        pytest.skip("a source distribution is made of a git checkout, with cargo")
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "maturin", "sdist", "--out", str(folder))
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        # Releases before 3.11.4 have no filters.
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(folder)
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    return unpacked


def test_the_source_distribution_has_every_file_that_git_has(sources):
    # Files that are deleted here and not yet in git can't be packed.
    tracked = {name for name in run("git", "ls-files").splitlines() if (ROOT / name).exists()}
    packed = {str(path.relative_to(sources)) for path in sources.rglob("*") if path.is_file()}
    assert tracked - packed == set()


def test_the_source_distribution_has_tests_header_licences_and_sources(sources):
    header = next((ROOT / "python").rglob("*.h")).relative_to(ROOT)
    licences = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license-files"]
    tests = ["tests/conftest.py", "tests/errors/mistakes.txt"]
    for name in [*licences, str(header), *tests, "Cargo.lock"]:
        assert (sources / name).read_bytes() == (ROOT / name).read_bytes(), name
    assert "Name: keyfold\n" in (sources / "PKG-INFO").read_text()


def test_cargo_reads_the_unpacked_workspace(sources):
    def members(folder):
        command = [CARGO, "metadata", "--offline", "--no-deps", "--format-version", "1"]
        packages = json.loads(run(*command, cwd=folder))["packages"]
        targets = {}
        for package in packages:
            for target in package["targets"]:
                source = os.path.relpath(target["src_path"], folder)
                targets[package["name"], target["name"]] = source
        return targets

    found = members(sources)
    assert found == members(ROOT)
    assert all((sources / source).is_file() for source in found.values())


@pytest.fixture(scope="module")
def build_script(tmp_path_factory):
    """The extension's build script as a program of its own."""
    if RUSTC is None:
        pytest.skip("rustc isn't installed")
    program = tmp_path_factory.mktemp("build") / "build-script"
    edition = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["edition"]
    script = str(ROOT / "crates" / "python" / "build.rs")
    run(RUSTC, "--edition", edition, "-o", str(program), script)
    return str(program)


@pytest.mark.parametrize(
    ("arch", "system", "libc", "named"),
    [
        ("aarch64", "macos", "", "macos, aarch64"),
        ("x86_64", "windows", "msvc", "windows, x86_64, msvc"),
        ("x86_64", "linux", "musl", "linux, x86_64, musl"),
        ("aarch64", "linux", "gnu", "linux, aarch64, gnu"),
        ("x86_64", "linux", "gnu", None),
    ],
)
def test_a_build_for_another_system_is_refused_in_one_line(build_script, arch, system, libc, named):
    target = {"ARCH": arch, "OS": system, "ENV": libc}
    printed = run(build_script, **{f"CARGO_CFG_TARGET_{key}": target[key] for key in target})
    expected = (
        "cargo::error=keyfold runs on Linux, x86-64, with glibc 2.28 or later; the target of this "
        f"build is {named}"
    )
    assert printed.splitlines()[1:] == ([] if named is None else [expected])
