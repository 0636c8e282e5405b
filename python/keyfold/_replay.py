"""The operators of a recorded graph on a device, each against the same call on the CPU."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

import keyfold as kf
from keyfold import _core
from keyfold._conformance import ConformanceReport
from keyfold._errors import InvalidValue

__all__ = ["replay"]

# How far results may be apart, in units of rounding of an element: both have errors.
_UNITS = 8
_BITS = {"float16": (11, 24), "bfloat16": (8, 24), "float32": (24, 24), "complex64": (24, 24)}
# An operation has the worst verdict of its calls.
_SEVERITY = ["passed", "lacking", "claimed but failed"]


def replay(graph: kf.Graph, device: str) -> ConformanceReport:
    """Run each call of a graph on the CPU and on a device, with the same arguments.

    Inputs are random numbers from 0 to 1, random bools, and random integers that are positions of
    each dimension of the inputs. Each call on the device gets the CPU's values, so that errors
    don't add up.
    """
    if device == "cpu":
        raise InvalidValue("replay compares a device with the CPU; give another device than cpu")
    sizes = [size for value in graph.inputs for size in value.shape if size > 1]
    random = np.random.default_rng(0)
    positions = min(sizes, default=1)
    values: dict[str, Any] = {v.name: _sample(v, random, positions) for v in graph.inputs}
    values |= {name: kf.asarray(held).to("cpu") for name, held in graph.constants.items()}
    verdicts: dict[str, str] = {}
    findings: dict[tuple[str, str], dict[str, Any]] = {}
    state = _core.get_rng_state()
    try:
        for number, node in enumerate(graph.nodes):
            verdict, message = _call(node, values, device)
            known = verdicts.get(node.operator, "passed")
            verdicts[node.operator] = max(known, verdict, key=_SEVERITY.index)
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
        "cases": len(graph.nodes),
        "groups": [group],
        "times": [],
        "findings": sorted(findings.values(), key=lambda finding: finding["verdict"]),
    }
    return ConformanceReport(json.dumps(report))


def _sample(value: kf.GraphValue, random: np.random.Generator, positions: int) -> kf.Tensor:
    """An input of the recorded dtype and shape."""
    shape, name = tuple(value.shape), str(value.dtype)
    if name == "bool":
        return kf.asarray(random.integers(0, 2, shape) == 1)
    if "int" in name:
        return kf.asarray(random.integers(0, min(positions, 100), shape)).to(name)
    return kf.asarray(random.random(shape)).to(name)


def _given(argument: Any, values: dict[str, Any], device: str) -> Any:
    """An argument of a call, with its tensors on a device."""
    if isinstance(argument, kf.GraphValue):
        return values[argument.name].to(device)
    if isinstance(argument, list | tuple):
        return [_given(item, values, device) for item in argument]
    return device if isinstance(argument, kf.Device) else argument


def _flat(arguments: Iterable[Any]) -> Iterator[Any]:
    """The arguments, those in lists one by one."""
    for given in arguments:
        yield from given if isinstance(given, list) else (given,)


def _call(node: kf.GraphNode, values: dict[str, Any], device: str) -> tuple[str, str]:
    """The verdict about one call; its results on the CPU become values."""
    operator = kf.get_op(node.operator)
    there = {name: _given(given, values, device) for name, given in node.arguments.items()}
    here = {name: _given(given, values, "cpu") for name, given in node.arguments.items()}
    kf.manual_seed(0)
    made = operator(**here)
    results = list(made) if isinstance(made, list | tuple) else [made]
    fewest = min((max(1, made.size) for made in results if isinstance(made, kf.Tensor)), default=1)
    tensors = [given for given in _flat(here.values()) if isinstance(given, kf.Tensor)]
    # The terms that an element may add up: those of a dimension, or of all that is reduced to it.
    terms = max((max(*tensor.shape, tensor.size // fewest, 1) for tensor in tensors), default=1)
    for value, result in zip(node.results, results, strict=False):
        if value is not None and isinstance(result, kf.Tensor):
            values[value.name] = result
    kf.manual_seed(0)
    try:
        found = operator(**there)
        found = list(found) if isinstance(found, list | tuple) else [found]
        for at, (got, wanted) in enumerate(zip(found, results, strict=True)):
            if isinstance(wanted, kf.Tensor) and (wrong := _difference(got, wanted, terms)):
                return "claimed but failed", f"result {at}: {wrong}"
    except kf.Error as error:
        if isinstance(error, kf.NotSupported) and "isn't supported by backend" in str(error):
            return "lacking", str(error)
        return "claimed but failed", f"{type(error).__name__}: {error}"
    return "passed", ""


def _difference(got: kf.Tensor, wanted: kf.Tensor, terms: int) -> str:
    """What is wrong with a result that may add up so many terms, or nothing."""
    if (got.dtype, got.shape) != (wanted.dtype, wanted.shape):
        return f"{got.dtype}{list(got.shape)}, not {wanted.dtype}{list(wanted.shape)}"
    name = str(wanted.dtype)
    wide = "complex128" if "complex" in name else "float64"
    a, b = (np.asarray(tensor.cpu().to(wide)) for tensor in (got, wanted))
    # A unit of rounding of the dtype, and of the one that adds up: float32 for halves.
    bits, sums = _BITS.get(name, (53, 53))
    finite = np.abs(np.where(np.isfinite(b), b, 0.0))
    allowed = _UNITS * 2.0**-bits * finite + 8.0 * terms**0.5 * 2.0**-sums * finite.max(initial=0.0)
    if name == "bool" or "int" in name:
        allowed = np.zeros_like(finite)
    with np.errstate(invalid="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= allowed)
    if same.all():
        return ""
    at = tuple(int(i) for i in np.argwhere(~same)[0])
    return f"at {list(at)} it is {a[at]}, and {b[at]} on the CPU, within {allowed[at]:.1e}"
