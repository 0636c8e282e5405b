"""`cudnn plan GRAPH.json --device CARD`: how libcudnn ranks a graph's engines, and its plan."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import keyfold as kf
from keyfold import _core
from keyfold._cli import _files, _json
from keyfold._cli._arguments import ArgumentFormError
from keyfold._cli._terminal import Status, heading, paint, width
from keyfold._show import _text
from keyfold.cudnn import _library

__all__ = ["add", "card", "plan"]

# How libcudnn refuses a valid graph: it has no engine, or takes no such operation.
_REFUSED = (kf.NotSupported, kf.InvalidValue)


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cudnn plan`."""
    cards = ", ".join(_core._cudnn_cards())
    parser.add_argument("graph", type=Path, metavar="GRAPH.json", help="what Graph.to_json returns")
    parser.add_argument(
        "--device",
        required=True,
        metavar="CARD",
        help=f"a card that needn't be here ({cards}), the file of a profile, or cuda:N",
    )
    parser.add_argument(
        "--policy",
        choices=("first", "deterministic"),
        default="first",
        help="the first engine that works (default), or the first that is deterministic",
    )
    parser.add_argument("--tf32", action="store_true", help="float32 may be multiplied as TF32")
    parser.add_argument(
        "--rewrite",
        choices=("view", "split"),
        default="split",
        help="view: only see memory under other dimensions; split (default): several plans, too",
    )
    parser.add_argument(
        "--workspace-limit",
        type=_count(0),
        metavar="BYTES",
        help="the most scratch memory of a run",
    )
    parser.add_argument(
        "--limit",
        type=_count(1),
        default=5,
        metavar="N",
        help="how many engines are listed for each part of the graph; default: 5",
    )
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compile the listed engines, for their scratch memory and what they refuse; default",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write the plan as JSON, what Plan.to_json returns, where there is one",
    )
    parser.add_argument(
        "--keep-in", type=Path, metavar="FOLDER", help="keep the plan there, for other processes"
    )


def _count(least: int) -> Any:
    """The type of an argument that is a whole number from `least` on."""

    def count(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"a whole number from {least} is wanted, not {text!r}")
        return int(text)

    return count


def card(device: str) -> kf.cudnn.CardProfile:
    """Return the profile of a card: of a name, of a file, or of a card in this machine.

    Raises:
        ArgumentFormError: the device is none that libcudnn plans for, or the file can't be read.
        Error: there is no such card, or its file is damaged.
    """
    try:
        made = _library.options(device)
    except OSError as error:
        raise ArgumentFormError(f"--device {device}: {error.strerror}") from None
    if made is None:
        cards = ", ".join(kf.cudnn.CardProfile.names())
        raise ArgumentFormError(
            f"--device {device}: libcudnn plans for cards: {cards}, a profile's file, or cuda:N"
        )
    if made["card"] is None:
        return kf.cudnn.CardProfile.capture(device)
    return kf.cudnn.CardProfile.from_json(made["card"])


def plan(options: argparse.Namespace) -> int:
    """Rank the engines of a graph and plan it; the exit code is 1 where there is no plan."""
    graph = _graph(options.graph)
    graph.validate()
    profile = card(options.device)
    chosen = {
        "policy": options.policy,
        "workspace_limit": options.workspace_limit,
        "tf32": options.tf32,
        "rewrite": options.rewrite,
    }
    if options.output is not None:
        _files.check_output("--output", options.output, {".json": None})
    kept, limit = _library.plans.folder, _library.plans.limit
    if options.keep_in is not None:
        _files.check_folder("--keep-in", options.keep_in)
        kf.cudnn.plan_cache.keep_in(options.keep_in, limit)
    made: kf.cudnn.Plan | None = None
    error: str | None = None
    try:
        with Status() as status:
            version = _core._cudnn_helpers(_library.base())[0]
            engines, unranked = _ranking(graph, profile, chosen, options, status)
            try:
                made = graph.build(profile, progress=status.update, **chosen)
            except _REFUSED as refused:
                error = str(refused)
    finally:
        kf.cudnn.plan_cache.keep_in(kept, limit)
    if options.output is not None and made is not None:
        _files.save("--output", options.output, lambda path: path.write_text(made.to_json()))
    if options.json:
        _json.show(
            "cudnn plan",
            {
                "graph": graph._native.operations()[0],
                "signature": graph.signature(),
                "card": _json.card(profile),
                "cudnn": version,
                **chosen,
                "compiled": options.compile,
                "engines": engines,
                "plan": None if made is None else _fields(made),
                "error": error,
            },
        )
    else:
        _print(graph, profile, version, engines, unranked, made, error)
    return 0 if error is None else 1


def _graph(path: Path) -> kf.cudnn.Graph:
    """Read a graph's file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ArgumentFormError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ArgumentFormError(f"{path}: it isn't a text in UTF-8") from None
    return kf.cudnn.Graph.from_json(text)


def _ranking(
    graph: kf.cudnn.Graph,
    profile: kf.cudnn.CardProfile,
    chosen: Mapping[str, Any],
    options: argparse.Namespace,
    status: Status,
) -> tuple[list[dict[str, Any]], str]:
    """Return the ranked engines, or why there are none; a plan may be found further down."""
    native = graph._options(profile, precision="spec", **chosen)
    try:
        text = _core._cudnn_rank(
            graph._native, native, options.limit, options.compile, status.update
        )
    except _REFUSED as refused:
        return [], str(refused)
    return [
        {
            "part": one["part"],
            "operations": one["operations"],
            "engine": one["engine"]["index"],
            "knobs": dict(one["engine"]["knobs"]),
            "heuristics": one["mode"].upper(),
            "workspace_bytes": one["workspace_bytes"],
            "notes": one["engine"]["notes"],
            "refusal": one["refusal"],
        }
        for one in json.loads(text)
    ], ""


def _fields(made: kf.cudnn.Plan) -> dict[str, Any]:
    return {
        "engine": made.engine,
        "workspace_bytes": made.workspace_bytes,
        "steps": list(made.steps),
    }


def _print(
    graph: kf.cudnn.Graph,
    profile: kf.cudnn.CardProfile,
    version: str,
    engines: list[dict[str, Any]],
    unranked: str,
    made: kf.cudnn.Plan | None,
    error: str | None,
) -> None:
    name, operations = graph._native.operations()
    print(paint("keyfold cudnn plan", "bold"))
    rows = [
        ("graph", f"{name!r}: {', '.join(operations)}"),
        ("signature", graph.signature()),
        ("card", f"{profile.name}, {profile.source}"),
        ("cuDNN", version),
    ]
    print(*_text.pairs(rows, width=width()), sep="\n")
    print(heading("Engines"))
    if not engines:
        print(*_text.folded([f"  none: {unranked}"], width=width(), hang=0), sep="\n")
    parts = [list(group) for _, group in groupby(engines, lambda one: one["part"])]
    for number, part in enumerate(parts):
        if len(parts) > 1:
            title = f"  part {number + 1} of {len(parts)}: {', '.join(part[0]['operations'])}"
            print(*_text.folded([title], width=width()), sep="\n")
        print(*_table(part), sep="\n")
    print(heading("Plan"))
    if made is None:
        print(*_text.folded([f"  none: {error}"], width=width(), hang=0), sep="\n")
        return
    print(
        *_text.folded((f"  {line}" for line in made.explain().splitlines()), width=width()),
        sep="\n",
    )


def _table(engines: list[dict[str, Any]]) -> list[str]:
    """The lines of a table of one part's engines; notes that all of them have are said once."""
    common = [note for note in engines[0]["notes"] if all(note in one["notes"] for one in engines)]
    rows: list[tuple[str, ...]] = []
    for one in engines:
        knobs = ", ".join(f"{name}={value}" for name, value in one["knobs"].items())
        size = one["workspace_bytes"]
        said = ", ".join(note for note in one["notes"] if note not in common)
        if one["refusal"] is not None:
            said = f"refused: {one['refusal']}"
        rows.append(
            (
                str(one["engine"]),
                one["heuristics"],
                knobs or "none",
                "unknown" if size is None else f"{size:,}",
                said,
            )
        )
    head: tuple[str, ...] = ("engine", "heuristics", "knobs", "workspace", "notes or refusal")
    if not any(row[-1] for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    lines = _text.table(rows, head, right=(0, 3), width=width(), indent=2)
    notes = f"  notes of all: {', '.join(common)}"
    return [*lines, *(_text.folded([notes], width=width()) if common else [])]
