"""`conformance`: proves a backend by cases of every operator."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from keyfold import _core
from keyfold._errors import InvalidValue
from keyfold._show import _html

__all__ = ["ConformanceReport", "conformance", "load"]

# Registrations of plugins and programs stay for the life of the process.
_loaded: list[object] = []


class ConformanceReport(Mapping[str, Any]):
    """What `conformance` found: a mapping of what `to_json` writes. Its text is a table.

    Attributes:
        conforms: whether cases ran, none failed, and the backend claims all that it computes. It
            may lack operations.
        findings: failures, operations that work but aren't claimed, and what is lacking: each with
            `verdict`, `symptom`, `operator`, `dtype`, `case`, `message`, `reproducer`, `count`.
        groups: the groups of cases: `name`, `cases`, and how many operations are `passed`,
            `failed`, `unclaimed`, `lacking`.
    """

    def __init__(self, json_text: str) -> None:
        # Refuses a report of another version.
        self._text, conforms = _core._conformance_text(json_text)
        self._fields: dict[str, Any] = json.loads(json_text) | {"conforms": conforms}

    @classmethod
    def from_json(cls, text: str) -> ConformanceReport:
        """Read a report.

        Args:
            text: what `to_json` returned.

        Raises:
            InvalidValue: it is no report, or one of another version, which is named.
        """
        return cls(text)

    def to_json(self) -> str:
        """Return the report as JSON, an object; `version` counts its form."""
        return json.dumps(self._fields, indent=2)

    @property
    def conforms(self) -> bool:
        """Whether the backend conforms."""
        return bool(self._fields["conforms"])

    @property
    def findings(self) -> list[dict[str, Any]]:
        """What isn't passed."""
        return list(self._fields["findings"])

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The groups of cases."""
        return list(self._fields["groups"])

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Any:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __str__(self) -> str:
        return self._text.rstrip("\n")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        verdict = _html.Mark("conforms", "good") if self.conforms else _html.Mark("fails", "bad")
        heads = ["group", "cases", "passed", "failed", "unclaimed", "lacking"]
        rows = [[group["name"], *(str(group[head]) for head in heads[1:])] for group in self.groups]
        rows.append(["all", str(self["cases"]), *("" for _ in heads[2:])])
        found = []
        for finding in self.findings:
            kind = "other" if finding["verdict"] == "lacking" else "bad"
            mark = _html.Mark(finding["symptom"] or finding["verdict"], kind)
            found.append((mark, f"{finding['operator']} {finding['dtype']}", finding["message"]))
        title = f"conformance of {_html.code(self['device'])}"
        parts = [
            _html.table(("backend", "result"), [(self["backend"], verdict)]),
            _html.table(heads, rows, right=range(1, len(heads))),
        ]
        if found:
            parts.append(_html.table(("finding", "operator", ""), found))
        return _html.page(title, *parts)


def load(name: str) -> None:
    """Load what registers a backend: a plugin, a program, or a module.

    Args:
        name: the path of a shared library (`.so`, `.dylib`), which `load_plugin` loads; the path of
            a Python file, which is run; else a module, which is imported.
    """
    import importlib
    import runpy

    file, ending = os.path.split(name)[1], os.path.splitext(name)[1]
    if ending in {".so", ".dylib"} or ".so." in file:
        _loaded.append(_core.load_plugin(name))
    elif ending == ".py" or os.sep in name:
        _loaded.append(runpy.run_path(name))
    else:
        _loaded.append(importlib.import_module(name))


def conformance(
    device: str | _core.Device,
    *,
    mode: str = "test",
    groups: Iterable[str] | None = None,
    only: str | None = None,
    dtype: str | _core.DType | None = None,
    case: int | None = None,
    fraction: float = 0.1,
    seed: int = 0,
    shrink: bool = False,
    load: str | Iterable[str] = (),
    processes: bool | None = None,
    replay: Any = None,
) -> ConformanceReport:
    """Prove the backend of a device: every operator with every dtype against a naive reference.

    Cases are made of the operators' rows: tensors of several layouts and shapes, with NaN and other
    special numbers among them, results between guard bytes. Further groups check the device's
    memory, streams, errors and caches. An operation that the backend lacks is no failure; one that
    it computes and doesn't claim is one.

    Args:
        device: the type of device, such as `"npu"`, whose first device is used.
        mode: `"test"`, `"grad"` for gradients, `"perf"` for times, or `"support"` for each operator
            once.
        groups: the groups of cases; all by default.
        only: the only operator, such as `"aten::add"`.
        dtype: the only dtype.
        case: the number of the only case of each operator and dtype.
        fraction: the part of the cases that runs, above 0, spread over the operators, each of which
            has one with each dtype; 1.0 for all.
        seed: a number from 0 to 2**64 - 1 that changes the elements, and the cases of a fraction.
        shrink: whether a failing case is reduced to a small one, with a Python program that shows
            it.
        load: what registers the backend in another process: a plugin's path, a Python file, or a
            module. Each group then runs in a process of its own, so that an abort hides nothing.
        processes: whether to use processes; by default where `load` is given, and for the CPU.
        replay: a recorded graph (`kf.trace`), or the path of a file that `Graph.save` wrote: runs
            its calls on the device instead, each against the same call on the CPU, here.

    Returns:
        The report. It isn't an error if the backend fails.

    Raises:
        DeviceError: the device has no backend.
        InvalidValue: no such mode, group or operator, another device than the first of a type, a
            number out of range, or options that choose no case.
        KernelFailed: a process ended before its first case.
    """
    name, _, index = str(device).partition(":")
    if index not in {"", "0"}:
        raise InvalidValue(
            f"conformance runs on the first device of a type, {name}:0, not {device}"
        )
    if not 0 <= seed < 2**64:
        raise InvalidValue(f"conformance: seed is 0 to 2**64 - 1, not {seed}")
    if case is not None and case < 0:
        raise InvalidValue(f"conformance: case is the number of a case, not {case}")
    if replay is not None:
        from keyfold import _replay
        from keyfold._trace import Graph

        return _replay.replay(replay if isinstance(replay, Graph) else Graph.load(replay), name)
    loads = [load] if isinstance(load, str) else list(load)
    apart = bool(loads) or name == "cpu" if processes is None else processes
    command = None
    if apart:
        command = [sys.executable, "-m", "keyfold", "conformance", name]
        command += [f"--load={one}" for one in loads]
    wanted = [groups] if isinstance(groups, str) else groups
    json_text = _core._conformance(
        name,
        mode,
        None if wanted is None else list(wanted),
        only,
        None if dtype is None else str(dtype),
        case,
        float(fraction),
        seed,
        shrink,
        command,
    )
    return ConformanceReport(json_text)
