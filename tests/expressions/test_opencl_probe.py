"""Machines on which OpenCL computes nothing leave it out by name."""

import importlib.util
import subprocess

import pytest

from tests.helpers import opencl


def test_a_machine_without_a_device_says_so(monkeypatch):
    if importlib.util.find_spec("pyopencl") is None:
        pytest.skip("pyopencl isn't installed")
    monkeypatch.setenv("OCL_ICD_VENDORS", "/nonexistent")
    assert opencl.unusable.__wrapped__() == (
        "OpenCL's device computes nothing: pyopencl finds no OpenCL device"
    )


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            "1 error generated.\nerror: unknown target CPU 'znver9'\nAborted (core dumped)",
            "error: unknown target CPU 'znver9'",
        ),
        ("Traceback:\npyopencl.LogicError: clBuildProgram failed", "pyopencl.LogicError: clBuild"),
        ("", "exit status -6"),
    ],
)
def test_the_reason_is_the_compilers_sentence(said, why):
    done = subprocess.CompletedProcess([], -6, stdout="", stderr=said)
    assert opencl.failure(done).startswith(f"OpenCL's device computes nothing: {why}")
