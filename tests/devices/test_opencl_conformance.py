"""The conformance kit on examples/backend-opencl: a part of `make conformance DEVICE=opencl`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = pytest.mark.one_python

# A program that loads the plugin in each process, and leaves a note of the fallbacks when it ends.
LOADER = """\
import atexit, os, pathlib
import keyfold as kf
plugin = kf.load_plugin({library!r})
note = pathlib.Path({notes!r}, str(os.getpid()))
atexit.register(lambda: note.write_text(repr(kf.fallbacks())))
"""

# Groups with all dtypes, and the fewest operations that have to pass. The others take minutes with
# all dtypes, since each dtype has programs of its own to compile: they have a few. More whole
# numbers are in tests/expressions/test_opencl.py.
WHOLE = {
    "factories": 75,
    "shape": 285,
    "linalg": 120,
    "in_place": 30,
    "random": 35,
    "optim": 8,
    "device": 15,
    "cache": 238,
    "memory": 9,
    "streams": 5,
    "errors": 6,
}
PARTS = [
    ("pointwise", "float32", 70),
    ("reduce", "float16", 14),
    ("reduce", "float32", 14),
    ("reduce", "int64", 14),
    ("scan", "float32", 2),
    ("scan", "float16", 2),
    ("scan", "int64", 2),
    ("index", "float32", 8),
    ("index", "int8", 8),
    ("norm", "float32", 18),
    ("norm", "float16", 18),
    ("pool", "float32", 18),
    ("pool", "float16", 18),
    ("pool", "int8", 6),
    ("recurrent", "float32", 6),
    ("recurrent", "float16", 6),
    ("convolution", "float32", 12),
    ("convolution", "float16", 12),
    ("attention", "float32", 3),
    ("attention", "float16", 3),
]


@pytest.fixture(scope="module")
def reports(pocl, opencl_library, tmp_path_factory):
    """The kit's reports, by group and dtype, and the fallbacks that processes noted."""
    folder = tmp_path_factory.mktemp("kit")
    notes = folder / "notes"
    notes.mkdir()
    loader = folder / "loads_opencl.py"
    loader.write_text(LOADER.format(library=str(opencl_library), notes=str(notes)))

    def run(part):
        dtype, groups = part
        command = [sys.executable, "-m", "keyfold", "conformance", "opencl", "--json"]
        command += ["--load", str(loader)]
        command += ["--dtype", dtype] if dtype else []
        for group in groups:
            command += ["--group", group]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode < 2, done.stderr
        return json.loads(done.stdout)

    # A command for each dtype; its groups run in processes of their own, one after the other.
    parts = {None: list(WHOLE)}
    for group, dtype, _ in PARTS:
        parts.setdefault(dtype, []).append(group)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(parts, pool.map(run, parts.items()), strict=True))
    return found, [note.read_text() for note in notes.iterdir()]


def of_group(report, group):
    """The row of a group, and its findings."""
    (row,) = [row for row in report["groups"] if row["name"] == group]
    return row, [found for found in report["findings"] if found["group"] == group]


# The example leaves out complex numbers, but for expressions, and decompositions.
LACKING = (
    "it has no operations on complex",
    "it doesn't have the operations of group decomposition",
)


def unexpected(findings):
    """The findings but for what the example leaves out."""
    return [
        found
        for found in findings
        if found["verdict"] != "lacking" or not found["message"].startswith(LACKING)
    ]


@pytest.mark.parametrize(("group", "dtype", "fewest"), PARTS)
def test_a_group_conforms_in_a_dtype_and_lacks_nothing_else(reports, group, dtype, fewest):
    row, findings = of_group(reports[0][dtype], group)
    assert unexpected(findings) == []
    assert row["passed"] >= fewest, row
    assert (row["failed"], row["unclaimed"]) == (0, 0)


@pytest.mark.parametrize("group", WHOLE)
def test_a_group_conforms_and_lacks_complex_numbers_alone(reports, group):
    row, findings = of_group(reports[0][None], group)
    assert row["passed"] >= WHOLE[group], row
    assert unexpected(findings) == []
    assert (row["failed"], row["unclaimed"]) == (0, 0)


def test_all_that_was_asked_conforms(reports):
    assert [dtype for dtype, report in reports[0].items() if not report["conforms"]] == []


def test_nothing_fell_back(reports):
    _, fallbacks = reports
    # A process for each group of a command.
    assert len(fallbacks) >= len(WHOLE) + len(PARTS)
    assert set(fallbacks) == {"[]"}
