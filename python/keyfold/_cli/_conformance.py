"""`python -m keyfold conformance DEVICE`."""

from __future__ import annotations

import argparse
import json
import os

import keyfold as kf
from keyfold import _conformance, _core
from keyfold._cli import _json
from keyfold._cli._operators import ArgumentFormError

__all__ = ["add", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("device", metavar="DEVICE", help="the type of device, such as cpu")
    parser.add_argument("--mode", default="test", help="test (default), grad, perf, support")
    parser.add_argument(
        "--group",
        action="append",
        metavar="GROUP",
        help=f"only these cases (repeatable): {', '.join(_core._conformance_groups('test'))}",
    )
    parser.add_argument("--only", metavar="OP", help="only this operator, such as aten::add")
    parser.add_argument("--dtype", metavar="DTYPE", help="only this dtype, such as float32")
    parser.add_argument("--case", type=int, metavar="N", help="only this case of each operator")
    part = parser.add_mutually_exclusive_group()
    part.add_argument(
        "--fraction",
        type=_fraction,
        default=0.1,
        metavar="PART",
        help="the part of the cases, at least one of each operator and dtype; default: 0.1",
    )
    part.add_argument("--all", dest="fraction", action="store_const", const=1.0, help="all cases")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument(
        "--shrink",
        action="store_true",
        help="reduce failing cases to small ones, as programs to paste",
    )
    parser.add_argument(
        "--load",
        action="append",
        default=[],
        metavar="WHAT",
        help="what registers the backend: a plugin's path, a Python file, a module (repeatable)",
    )
    parser.add_argument(
        "--replay",
        metavar="FILE",
        help="instead run the calls of a graph that Graph.save wrote, each against the CPU's",
    )
    parser.add_argument(
        "--in-process",
        action="store_true",
        help="run all groups in this process; an abort ends it",
    )


def _fraction(text: str) -> float:
    try:
        fraction = float(text)
    except ValueError:
        fraction = 0.0
    if not 0.0 < fraction <= 1.0:
        raise argparse.ArgumentTypeError(f"a number above 0, at most 1, is wanted, not {text!r}")
    return fraction


def run(options: argparse.Namespace) -> int:
    """Run the command; the exit code is 1 where the backend doesn't conform."""
    here = options.in_process or options.replay is not None
    if here or _core._conformance_is_child():
        for name in options.load:
            try:
                _conformance.load(name)
            except (OSError, ModuleNotFoundError) as error:
                raise ArgumentFormError(f"--load {name}: {error}") from None
    if _core._conformance_child():
        return 0
    if options.replay is not None and not os.path.exists(options.replay):
        raise ArgumentFormError(f"--replay {options.replay}: No such file")
    report = kf.conformance(
        options.device,
        mode=options.mode,
        groups=options.group,
        only=options.only,
        dtype=options.dtype,
        case=options.case,
        fraction=options.fraction,
        seed=options.seed,
        shrink=options.shrink,
        load=[*options.load, *(options.modules or [])],
        processes=not options.in_process,
        replay=options.replay,
    )
    if options.json:
        _json.show("conformance", json.loads(report.to_json()))
    else:
        print(report)
    return 0 if report.conforms else 1
