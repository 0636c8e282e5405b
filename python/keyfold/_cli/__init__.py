"""The command line, `python -m keyfold COMMAND`: the parser, and what a failure looks like.

`main` is the entry function of the console script `keyfold`, too.

Exit codes: 0 for success; 1 where the command ran and its outcome is bad (a demo below its goal, a
call that `explain` says would fail, a backend that doesn't conform, a graph that libcudnn has no
plan for); 2 for a wrong command line, an unknown operator or argument, a file that can't be read or
written, a library that isn't there; 130 for Ctrl-C.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import keyfold as kf
from keyfold._cli import _conformance, _cudnn, _files, _operators
from keyfold._cli._terminal import paint

__all__ = ["main"]

_JSON_HELP = {
    "demo": "the accuracy, alone,",
    "doctor": "the report",
    "ops": "the list",
    "table": "the table",
    "explain": "the answer",
    "conformance": "the report",
    "cudnn plan": "the engines and the plan",
}

_ARGUMENT_HELP = """\
arguments, each one word of the shell (quote what has spaces or brackets):
  3x4:float32            an array of shape (3, 4) on the CPU
  3x4:float32:meta       the same on the device meta: a shape without data
  5:int64  ():float64    one dimension; none
  '[2:int64, None]'      a list, of arrays or of anything else
  2  0.5  True  None     Python literals; '(1, 2)' and '[1, 2]' too
  sum  'a b'             any other plain word is a text, as is a quoted literal
  dim=1                  a keyword argument
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the words after `python -m keyfold`; this process's own by default.

    Returns:
        The exit code.
    """
    options = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        for module in getattr(options, "modules", None) or ():
            _import(module)
        code = run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader went away (`| head`): nothing to complain about, nothing more to write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("keyfold: interrupted", file=sys.stderr)
        return 130
    except (kf.Error, _operators.ArgumentFormError, _files.OutputFileError) as error:
        print(f"{paint('keyfold:', 'bold', 'red', stream=sys.stderr)} {error}", file=sys.stderr)
        return 2


def _import(name: str) -> None:
    """Import a module that registers operators."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        # A module missing inside the user's own module is that module's error, shown in full.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise _operators.ArgumentFormError(
            f"--import {name}: no module named {error.name!r}"
        ) from None


class _Parser(argparse.ArgumentParser):
    """Offers the nearest command for one that isn't there, and the help where none is given."""

    commands: tuple[str, ...] = ()
    example = "doctor"

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"argument COMMAND: invalid choice: '([^']*)'", message)
        if wrong is not None:
            close = difflib.get_close_matches(wrong[1], self.commands, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            message = f"no command {wrong[1]!r}; {hint}commands are {', '.join(self.commands)}"
        elif message.endswith("required: COMMAND"):
            self.print_help(sys.stderr)
            message = f"a command is missing, such as {self.prog} {self.example}"
            self.exit(2, f"\n{self.prog}: error: {message}\n")
        super().error(message)


def _program() -> str:
    """How the command line was called: by the script `keyfold`, or as a module."""
    script = Path(sys.argv[0]).stem
    return script if script == "keyfold" else "python -m keyfold"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=_program(),
        description="keyfold: a multi-dispatch engine for tensor kernels.",
    )
    version = f"keyfold {kf.__version__}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    demo = commands.add_parser(
        "demo",
        help="train a convolutional network on operators of its own, and look inside",
        description="Train a convolutional network on operators of its own, and look inside. "
        "Exits with 1 where the test accuracy is below 0.97.",
    )
    demo.add_argument("--epochs", type=_positive, default=16, metavar="N", help="default: 16")
    demo.add_argument("--seed", type=_natural, default=0, metavar="N", help="default: 0")
    demo.add_argument("--quiet", action="store_true", help="print the accuracy alone")
    demo.add_argument(
        "--save-trace",
        type=Path,
        metavar="FILE",
        help="write the profile as a Chrome trace, which https://ui.perfetto.dev opens",
    )
    demo.add_argument(
        "--draw",
        type=Path,
        metavar="FILE",
        help="write the traced graph: .dot or .gv for Graphviz, .mmd or .md for Mermaid, .json",
    )
    demo.set_defaults(run=_run_demo)

    doctor = commands.add_parser(
        "doctor",
        help="versions, CPU, threads; GPU, CUDA and cuDNN: found or not, and why",
        description="Say what keyfold runs on: versions, CPU, threads; packages that offer "
        "kernels; GPU and CUDA: found or not, and why; cuDNN: libraries, which is used, plans.",
    )
    doctor.add_argument(
        "--load", action="store_true", help="load the kernels that installed packages offer"
    )
    doctor.add_argument(
        "--save-profile",
        type=Path,
        metavar="FILE",
        help="instead write a card's properties, by which libcudnn plans for it where it isn't",
    )
    doctor.add_argument(
        "--device", default=None, metavar="CARD", help="of --save-profile; default: cuda:0"
    )
    doctor.set_defaults(run=_run_doctor)

    # Operators of one's own are there once the module that defines them is imported.
    importing = _Parser(add_help=False)
    importing.add_argument(
        "-i",
        "--import",
        dest="modules",
        action="append",
        metavar="MODULE",
        help="import this module first, for the operators that it defines (repeatable)",
    )

    ops = commands.add_parser(
        "ops",
        parents=[importing],
        help="list the operators: schema, and the keys that have kernels",
        description="List the operators: schema, and the keys that have kernels. Operators whose "
        "name begins with an underscore are private: they are listed where they are named in full.",
    )
    ops.add_argument(
        "namespace",
        nargs="?",
        metavar="NAMESPACE",
        help="such as aten, or one operator's name, aten::add; default: all",
    )
    ops.set_defaults(run=_operators.ops)

    table = commands.add_parser(
        "table",
        parents=[importing],
        help="show an operator's dispatch table",
        description="Show an operator's dispatch table: which kernel serves which key.",
    )
    table.add_argument("op", metavar="OP", help="such as aten::add or aten::add.Scalar")
    table.add_argument("--fallbacks", action="store_true", help="with the keys' fallbacks")
    table.set_defaults(run=_operators.table)

    explain = commands.add_parser(
        "explain",
        parents=[importing],
        help="say what a call would do, without running it",
        description="Say which kernel a call would run, and why. Nothing is run. Exits with 1 "
        "where the call would fail.",
        epilog=_ARGUMENT_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    explain.add_argument("op", metavar="OP", help="such as aten::add or aten::add.Scalar")
    explain.add_argument("args", nargs="*", metavar="ARG", help="the call's arguments, see below")
    for option, what in (("include", "gain"), ("exclude", "lose")):
        explain.add_argument(
            f"--{option}",
            action="append",
            default=[],
            metavar="KEY",
            help=f"a key that the call is to {what}, such as Profiler (repeatable)",
        )
    explain.set_defaults(run=_operators.explain)

    proof = commands.add_parser(
        "conformance",
        parents=[importing],
        help="prove a device's backend: every operator against a naive reference",
        description="Prove a device's backend: cases of every operator against a naive reference, "
        "and checks of its memory, streams, errors and caches. Each group runs in a process of its "
        "own. Exits with 1 where the backend doesn't conform.",
    )
    _conformance.add(proof)
    proof.set_defaults(run=_conformance.run)

    cudnn = commands.add_parser(
        "cudnn",
        help="plans of cuDNN graphs for a card that needn't be here",
        description="Plans of cuDNN graphs, for a card that needn't be here.",
    )
    cudnn.example = "plan GRAPH.json --device h100"
    actions = cudnn.add_subparsers(title="commands", metavar="COMMAND", required=True)
    plan = actions.add_parser(
        "plan",
        help="rank libcudnn's engines for a graph, and plan it",
        description="Rank libcudnn's engines for a graph: knobs, scratch memory, notes, why one is "
        "refused; and say how the graph was rewritten, and which plan is taken. Exits with 1 where "
        "there is no plan.",
    )
    _cudnn.add(plan)
    plan.set_defaults(run=_cudnn.plan)
    cudnn.commands = tuple(actions.choices)

    parser.commands = tuple(commands.choices)
    answering = {
        **commands.choices,
        **{f"cudnn {name}": at for name, at in actions.choices.items()},
    }
    del answering["cudnn"]
    for name, command in answering.items():
        what = f"print {_JSON_HELP[name]} as JSON"
        command.add_argument("--json", action="store_true", help=what)
    return parser


def _run_demo(options: argparse.Namespace) -> int:
    # Before the work begins, not after it.
    if options.save_trace is not None:
        _files.check_output("--save-trace", options.save_trace)
    if options.draw is not None:
        _files.check_output("--draw", options.draw, _files.GRAPH_FORMATS)
        if options.draw == options.save_trace:
            raise _files.OutputFileError(f"--draw {options.draw}: --save-trace writes there, too")

    # Defines operators when it is imported, so not before it is asked for.
    from keyfold._demo import run

    return run(
        epochs=options.epochs,
        seed=options.seed,
        quiet=options.quiet,
        save_trace=options.save_trace,
        draw=options.draw,
        as_json=options.json,
    )


def _run_doctor(options: argparse.Namespace) -> int:
    from keyfold._cli._doctor import doctor
    from keyfold._cli._doctor_cudnn import save_profile

    if options.save_profile is not None:
        return save_profile(options.save_profile, options.device or "cuda:0", as_json=options.json)
    if options.device is not None:
        raise _operators.ArgumentFormError(
            f"--device {options.device}: it is the card of --save-profile FILE, which isn't given"
        )
    return doctor(load=options.load, as_json=options.json)


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a whole number from 0 is wanted, not {text!r}")
    return int(text)


def _positive(text: str) -> int:
    number = _natural(text)
    if number == 0:
        raise argparse.ArgumentTypeError("a whole number from 1 is wanted, not '0'")
    return number
