"""The answers of `--json`: one object on standard output; docs/index.md describes the form."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import keyfold as kf
from keyfold import _entry_points

__all__ = [
    "backends",
    "card",
    "explanation",
    "named",
    "operators",
    "packages",
    "show",
    "table",
    "threads",
]

# Counts up where a field is renamed, removed or gets another meaning; new fields leave it as it is.
FORM = 1


def show(command: str, fields: Mapping[str, Any]) -> None:
    """Print the fields of a command's answer behind its name and the form's number."""
    head = {"command": command, "form": FORM, "keyfold": kf.__version__}
    print(json.dumps({**head, **fields}, indent=2))


def _names(keys: Iterable[Any]) -> list[str]:
    return [str(key) for key in keys]


def operators(spaces: Mapping[str, list[kf.Operator]]) -> dict[str, Any]:
    """Operators by namespace."""
    return {
        "namespaces": {
            space: [
                {
                    "name": op.name,
                    "overload": op.overload,
                    "schema": str(op.schema),
                    "tags": list(op.tags),
                    "kernels": _names(op.kernels),
                }
                for op in found
            ]
            for space, found in spaces.items()
        }
    }


def table(operator: kf.Operator, *, fallbacks: bool) -> dict[str, Any]:
    """An operator's table: an entry for each runtime key that has a kernel."""
    entries = operator.table(fallbacks=fallbacks)
    return {
        "operator": operator.name,
        "schema": str(operator.schema),
        "entries": [
            {
                "key": key,
                "functionality": entry.functionality,
                "backend": entry.backend,
                "kernel": entry.name,
                "origin": entry.origin,
                "registered_at": entry.registered_at,
                "rule": entry.rule,
                "shadows": list(entry.shadows),
            }
            for key, entry in entries.items()
        ],
    }


def _choice(choice: kf.Choice | None) -> dict[str, Any] | None:
    if choice is None:
        return None
    return {
        "key": str(choice.key),
        "runtime_key": choice.runtime_key,
        "registered_at": choice.registered_at,
        "rule": choice.rule,
        "because": choice.because,
        "origin": choice.origin,
        "losers": [
            {"registered_at": at, "rule": rule, "origin": origin}
            for at, rule, origin in choice.losers
        ],
        "shadows": list(choice.shadows),
    }


def explanation(found: kf.Explanation) -> dict[str, Any]:
    """Return the fields of an explanation."""
    return {
        "operator": found.operator.name,
        "schema": str(found.operator.schema),
        "arguments": [
            {"name": name, "keys": _names(keys), "device": None if at is None else str(at)}
            for name, keys, at in found.arguments
        ],
        "included": _names(found.included),
        "excluded": _names(found.excluded),
        "keyset": _names(found.keyset),
        "backend": None if found.backend is None else str(found.backend),
        "skipped": _names(found.skipped),
        "choice": _choice(found.choice),
        "next": [_choice(choice) for choice in found.next],
        "error": found.error,
    }


def threads() -> dict[str, Any]:
    """How many threads there are, and how many operators use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "processors": os.cpu_count(),
        "usable": None if affinity is None else len(affinity(0)),
        "operators_use": kf.get_num_threads(),
    }


def backends() -> list[dict[str, Any]]:
    """The backends, with the memory of their devices in bytes."""
    return [
        {
            "device_type": backend.device_type,
            "name": backend.name,
            "groups": list(backend.groups),
            "streams": backend.streams,
            "devices": [
                {"device": str(device), "memory": dict(kf.memory_stats(device))}
                for device in backend.devices
            ],
        }
        for backend in kf.backends()
    ]


def packages() -> list[dict[str, Any]]:
    """The packages that offer kernels."""
    return [
        {
            "namespace": package.namespace,
            "value": package.value,
            "distribution": package.distribution,
            "version": package.version,
            "loaded": package.loaded,
            "error": None
            if package.error is None
            else f"{type(package.error).__name__}: {package.error}",
        }
        for package in _entry_points.packages_offered()
    ]


def card(profile: kf.cudnn.CardProfile) -> dict[str, str]:
    """A card profile, without its numbers."""
    return {
        "name": profile.name,
        "source": profile.source,
        "fingerprint": profile.fingerprint,
    }


def named(rows: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Rows of the report as fields in lower case; a row without a name continues the last one."""
    fields: dict[str, str] = {}
    for name, text in rows:
        if name:
            fields[re.sub(r"\W+", "_", name.lower())] = text
        else:
            last = next(reversed(fields))
            fields[last] += f"\n{text}"
    return fields
