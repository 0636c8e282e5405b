"""`ops`, `table` and `explain`: looking inside from the command line."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

import keyfold as kf
from keyfold._cli import _json
from keyfold._cli._arguments import ArgumentFormError, parse_arguments
from keyfold._cli._terminal import heading, paint, width
from keyfold._show import _text

__all__ = ["ArgumentFormError", "explain", "ops", "overloads", "table"]


def ops(options: argparse.Namespace) -> int:
    """List operators with their schemas and the keys that have kernels."""
    wanted = options.namespace
    # An unknown namespace is the engine's error, which names those that there are.
    spaces = dir(kf.ops) if wanted is None else [wanted]
    listed = {space: _named(space) for space in spaces}
    if options.json:
        _json.show("ops", _json.operators(listed))
        return 0
    for space, operators in listed.items():
        print(heading(f"{space}: {_text.counted(len(operators), 'operator')}"))
        print(*_listing(operators), sep="\n")
    return 0


def _listing(operators: list[kf.Operator]) -> list[str]:
    """Operators in lines, with their kernels' keys; those that nearly all of them have once."""
    # A kernel at Deferred infers the results of a deferred call, and computes none.
    kernels = [[key for key in op.kernels if key != "Deferred"] for op in operators]
    counts = Counter(key for keys in kernels for key in keys)
    most = [key for key, count in counts.items() if 4 * count > 3 * len(operators) > 3]

    def cell(keys: list[str]) -> str:
        if not set(most) <= set(keys):
            return f"only {', '.join(keys)}" if keys else "none"
        return ", ".join(key for key in keys if key not in most)

    rows = [(op.schema, cell(keys)) for op, keys in zip(operators, kernels, strict=True)]
    head = "more kernels" if most else "kernels"
    lines = _text.table(rows, ("operator", head), width=width(), indent=2, hang=2)
    said = f'  kernels for {", ".join(most)}, unless a line says "only"\n'
    return [said, *lines] if most else lines


def _named(name: str) -> list[kf.Operator]:
    """The operators of a namespace, or the overloads of `ns::name`."""
    if "::" not in name:
        return overloads(getattr(kf.ops, name))
    space, _, bare = name.partition("::")
    packet = getattr(getattr(kf.ops, space), bare)
    return [getattr(packet, overload) for overload in packet.overloads()]


def overloads(namespace: Any) -> list[kf.Operator]:
    """Return all overloads of a namespace's operators, by name, in the order of definition.

    As in Python, a name that begins with an underscore is private: it is left out.
    """
    packets = [getattr(namespace, name) for name in dir(namespace) if name[0] != "_"]
    return [getattr(packet, name) for packet in packets for name in packet.overloads()]


def table(options: argparse.Namespace) -> int:
    """Show an operator's table."""
    operator = kf.get_op(options.op)
    if options.json:
        _json.show("table", _json.table(operator, fallbacks=options.fallbacks))
        return 0
    shown = operator.table(fallbacks=options.fallbacks)
    print(*_text.folded([operator.schema], width=width()), sep="\n")
    print(*(shown._lines(width(), indent=2) if shown else ["  no kernels"]), sep="\n")
    return 0


def explain(options: argparse.Namespace) -> int:
    """Say what a call would do."""
    args, kwargs = parse_arguments(options.args)
    with kf.include_keys(*options.include), kf.exclude_keys(*options.exclude):
        explanation = kf.explain(options.op, *args, **kwargs)
    if options.json:
        _json.show("explain", _json.explanation(explanation))
    else:
        first, *rest = explanation._lines(width())
        print(paint(first, "bold"), *rest, sep="\n")
    return 0 if explanation.error is None else 1
