"""`ops`, `table` and `explain`: looking inside from the command line."""

from __future__ import annotations

import argparse
from typing import Any

import keyfold as kf
from keyfold._cli._arguments import ArgumentFormError, parse_arguments
from keyfold._cli._terminal import columns, fold, heading, paint, short, table_lines

__all__ = ["ArgumentFormError", "explain", "ops", "overloads", "table"]


def ops(options: argparse.Namespace) -> int:
    """List operators with their schemas and the keys that have kernels."""
    wanted = options.namespace
    # An unknown namespace is the engine's error, which names those that there are.
    spaces = dir(kf.ops) if wanted is None else [wanted]
    for space in spaces:
        operators = _named(space)
        print(heading(f"{space}: {len(operators)} operators"))
        rows = [(", ".join(op.kernels) or "no kernels", op.schema) for op in operators]
        print(*fold("\n".join(columns(rows))), sep="\n")
    return 0


def _named(name: str) -> list[kf.Operator]:
    """The operators of a namespace, or the overloads of `ns::name`."""
    if "::" not in name:
        return overloads(getattr(kf.ops, name))
    space, _, bare = name.partition("::")
    packet = getattr(getattr(kf.ops, space), bare)
    return [getattr(packet, overload) for overload in packet.overloads()]


def overloads(namespace: Any) -> list[kf.Operator]:
    """Return all overloads of a namespace's operators, by name, in the order of definition."""
    packets = [getattr(namespace, name) for name in dir(namespace)]
    return [getattr(packet, name) for packet in packets for name in packet.overloads()]


def table(options: argparse.Namespace) -> int:
    """Show an operator's table."""
    operator = kf.get_op(options.op)
    rows = operator.table(fallbacks=options.fallbacks)
    print(operator.schema)
    print(*table_lines(rows) or ["  no kernels"], sep="\n")
    return 0


def explain(options: argparse.Namespace) -> int:
    """Say what a call would do."""
    args, kwargs = parse_arguments(options.args)
    with kf.include_keys(*options.include), kf.exclude_keys(*options.exclude):
        explanation = kf.explain(options.op, *args, **kwargs)
    first, *rest = fold(short(str(explanation)))
    print(paint(first, "bold"), *rest, sep="\n")
    # A call that would fail was explained as well as any other: that is no failure of the command.
    return 0
