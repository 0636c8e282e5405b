"""The operators of a recorded graph on a device, each against the same call on the CPU."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np

import keyfold as kf
from keyfold import _core
from keyfold._conformance import ConformanceReport

__all__ = ["replay"]

# How far results may be apart, in units of rounding of the largest element: both have errors.
_UNITS = 64


def replay(graph: kf.Graph, device: str) -> ConformanceReport:
    """Run each call of a graph on the CPU and on a device, with the same arguments.

    Inputs are random numbers from 0 to 1; integers are 0, which is a position of every dimension,
    and bools true. Each call on the device gets the CPU's values, so that errors don't add up.
    """
    values: dict[str, Any] = {value.name: _sample(value) for value in graph.inputs}
    values |= {name: kf.asarray(held).to("cpu") for name, held in graph.constants.items()}
    verdicts: dict[str, str] = {}
    findings: dict[tuple[str, str], dict[str, Any]] = {}
    state = _core.get_rng_state()
    try:
        for number, node in enumerate(graph.nodes):
            verdict, message = _call(node, values, device)
            known = verdicts.get(node.operator, "passed")
            verdicts[node.operator] = verdict if known == "passed" else known
            if verdict == "passed":
                continue
            finding = findings.setdefault(
                (node.operator, verdict),
                {
                    "verdict": verdict,
                    "symptom": None if verdict == "lacking" else "wrong value",
                    "group": "replay",
                    "operator": node.operator,
                    "dtype": "",
                    "case": f"call {number}",
                    "message": message,
                    "reproducer": "",
                    "count": 0,
                },
            )
            finding["count"] += 1
    finally:
        _core.set_rng_state(state)
    count = Counter(verdicts.values())
    group = {
        "name": "replay",
        "cases": len(graph.nodes),
        "passed": count["passed"],
        "failed": count["claimed but failed"],
        "unclaimed": 0,
        "lacking": count["lacking"],
        "milliseconds": 0,
    }
    backend = next((b.name for b in kf.backends() if b.device_type == device), device)
    report = {
        "format": "keyfold conformance report",
        "version": 1,
        "device": device,
        "backend": backend,
        "mode": "replay",
        "fraction": 1.0,
        "seed": 0,
        "conforms": bool(graph.nodes) and not count["claimed but failed"],
        "cases": len(graph.nodes),
        "groups": [group],
        "times": [],
        "findings": sorted(findings.values(), key=lambda finding: finding["verdict"]),
    }
    return ConformanceReport(json.dumps(report))


def _sample(value: kf.GraphValue) -> kf.Tensor:
    """An input of the recorded dtype and shape."""
    shape, name = tuple(value.shape), str(value.dtype)
    if name == "bool":
        return kf.ones(shape, dtype=name)
    if "int" in name:
        return kf.zeros(shape, dtype=name)
    return kf.rand(shape, dtype="float64").to(name)


def _given(argument: Any, values: dict[str, Any], device: str) -> Any:
    """An argument of a call, with its tensors on a device."""
    if isinstance(argument, kf.GraphValue):
        return values[argument.name].to(device)
    if isinstance(argument, list | tuple):
        return [_given(item, values, device) for item in argument]
    return device if isinstance(argument, kf.Device) else argument


def _call(node: kf.GraphNode, values: dict[str, Any], device: str) -> tuple[str, str]:
    """The verdict about one call; its results on the CPU become values."""
    operator = kf.get_op(node.operator)
    there = {name: _given(given, values, device) for name, given in node.arguments.items()}
    here = {name: _given(given, values, "cpu") for name, given in node.arguments.items()}
    kf.manual_seed(0)
    made = operator(**here)
    results = list(made) if isinstance(made, list | tuple) else [made]
    for value, result in zip(node.results, results, strict=False):
        if value is not None and isinstance(result, kf.Tensor):
            values[value.name] = result
    kf.manual_seed(0)
    try:
        found = operator(**there)
        found = list(found) if isinstance(found, list | tuple) else [found]
        for at, (got, wanted) in enumerate(zip(found, results, strict=True)):
            if isinstance(wanted, kf.Tensor) and (wrong := _difference(got, wanted)):
                return "claimed but failed", f"result {at}: {wrong}"
    except kf.NotSupported as error:
        return "lacking", str(error)
    except kf.Error as error:
        return "claimed but failed", f"{type(error).__name__}: {error}"
    return "passed", ""


def _difference(got: kf.Tensor, wanted: kf.Tensor) -> str:
    """What is wrong with a result, or nothing."""
    if (got.dtype, got.shape) != (wanted.dtype, wanted.shape):
        return f"{got.dtype}{list(got.shape)}, not {wanted.dtype}{list(wanted.shape)}"
    name = str(wanted.dtype)
    wide = "complex128" if "complex" in name else "float64"
    a, b = (np.asarray(tensor.cpu().to(wide)) for tensor in (got, wanted))
    bits = {"float16": 10, "bfloat16": 7, "float32": 23, "complex64": 23}.get(name, 52)
    exact = name == "bool" or "int" in name
    finite = np.abs(b[np.isfinite(b)])
    allowed = 0.0 if exact else _UNITS * 2.0**-bits * max(1.0, finite.max(initial=0.0))
    same = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= allowed)
    if same.all():
        return ""
    place = tuple(int(i) for i in np.argwhere(~same)[0])
    return f"at {list(place)} it is {a[place]}, and {b[place]} on the CPU, within {allowed:.1e}"
