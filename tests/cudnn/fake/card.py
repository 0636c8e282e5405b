"""Runs plans on the fake card, and prints what happened as JSON.

It is a process of its own, since it has fake libraries.
"""

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import keyfold as kf

_POINTER = ctypes.pythonapi.PyCapsule_GetPointer
_POINTER.restype, _POINTER.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class OnCard:
    """A NumPy array that says that its memory is a card's."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **_: Any) -> Any:
        capsule = self.array.__dlpack__()
        # The device's type lies behind the address of the data.
        ctypes.c_int32.from_address(_POINTER(capsule, b"dltensor") + 8).value = 2
        return capsule

    @property
    def address(self) -> int:
        return self.array.ctypes.data


def runs() -> list[dict[str, Any]]:
    """What the fake library wrote down."""
    log = Path(os.environ["FAKE_LOG"])
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def scaled() -> tuple[Any, ...]:
    """A graph with a number of its own, and one that is given by value."""
    g = kf.cudnn.Graph(io_data_type="float32", name="scaled")
    x = g.tensor(dim=[1, 4, 8], name="x")
    s = g.tensor(dim=[1, 1, 1], name="s", is_pass_by_value=True)
    y = g.mul(g.mul(x, s), g.scalar(2.5)).set_output(True).set_name("y")
    return g, x, s, y


def main() -> dict[str, Any]:
    driver = ctypes.CDLL("libcuda.so.1")
    report: dict[str, Any] = {}
    profile = kf.cudnn.CardProfile.capture("cuda")
    report["profile"] = profile.name
    g, x, s, y = scaled()
    plan = g.build(device="cuda")
    report["explain"] = plan.explain()
    a, out = OnCard(np.ones((1, 4, 8), "f4")), OnCard(np.zeros((1, 4, 8), "f4"))
    plan({x: a, s: 3.0}, out={y: out})
    first = runs()[-1]
    report["inputs"] = a.address in first["tensors"].values()
    report["outputs"] = out.address in first["tensors"].values()
    report["tensors"], report["workspace"] = len(first["tensors"]), first["workspace"] > 0
    numbers = [p for p in first["tensors"].values() if p not in (a.address, out.address)]
    report["engine"] = first["engine"]
    report["live"], report["depth"] = driver.fake_live(), driver.fake_depth()
    # A result of the plan's own is the card's memory, and goes with its last owner.
    made = plan({x: a, s: 3.0})
    report["made"] = str(made[y].device), driver.fake_live()
    del made
    report["after"] = driver.fake_live(), len(numbers)
    # The quickest engine.
    tuned = g.build(device="cuda", policy="autotune")
    report["tuned"] = tuned.engine, tuned.steps[-1]
    # Plans that pass tensors on: two products.
    h = kf.cudnn.Graph(io_data_type="float32", name="views")
    m = h.tensor(dim=[6, 4], name="m")
    h.relu(m).set_output(True).set_name("n")
    report["views"] = h.build(device="cuda").steps
    for name, call in {
        "bool": lambda: _bool().build(device="cuda"),
        "ordinal": lambda: g.build(device="cuda:3"),
        "host": lambda: plan({x: np.ones((1, 4, 8), "f4"), s: 1.0}),
        "reader": lambda: plan({x: a, s: 3.0})[y].tolist(),
    }.items():
        try:
            call()
            report[name] = None
        except kf.Error as error:
            report[name] = f"{type(error).__name__}: {error}"
    os.environ["FAKE_EXECUTE"] = "5000"
    ctypes.CDLL(None).setenv(b"FAKE_EXECUTE", b"5000", 1)
    try:
        plan({x: a, s: 3.0}, out={y: out})
    except kf.Error as error:
        report["failed"] = f"{type(error).__name__}: {error}"
    report["end"] = driver.fake_live(), driver.fake_depth()
    return report


def _bool() -> Any:
    g = kf.cudnn.Graph(io_data_type="float32", name="bool")
    a, b = g.tensor(dim=[1, 4, 8]), g.tensor(dim=[1, 4, 8])
    g.cmp_gt(a, b).set_data_type("bool").set_output(True).set_name("mask")
    return g


if __name__ == "__main__":
    if len(sys.argv) > 1:
        kf.cudnn.plan_cache.keep_in(sys.argv[1])
    print(json.dumps(main()))
