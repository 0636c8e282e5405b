"""cuDNN in `doctor`: the libraries that there are, the folder of plans, the profiles of cards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import keyfold as kf
from keyfold import _core
from keyfold._cli import _cudnn, _files, _json
from keyfold._cli._arguments import ArgumentFormError
from keyfold._show import _text
from keyfold.cudnn import _library

__all__ = ["Report", "look", "rows", "save_profile"]


class Library(TypedDict):
    """A libcudnn that was found: the version is that of the one that is used."""

    path: str
    origin: str
    used: bool
    version: str | None
    refusal: str | None


class Plans(TypedDict):
    """The folder of plans."""

    folder: str
    count: int
    bytes: int
    limit_bytes: int


class Report(TypedDict):
    """What there is of cuDNN."""

    libraries: list[Library]
    error: str | None
    plans: Plans | None
    cards: list[dict[str, str]]


def look() -> Report:
    """Look for libcudnn, and ask the one that is used for its version, in the helper process."""
    version: str | None = None
    error: str | None = None
    try:
        version = _core._cudnn_helpers(_library.base())[0]
    except kf.LibraryLoadError as failed:
        error = str(failed)
    libraries: list[Library] = []
    for path, origin, refusal in _core._cudnn_libraries(_library.packages()):
        # The first one is used, or nothing is.
        used = not libraries and version is not None
        why = refusal
        if refusal is None and not used:
            why = error if not libraries else f"{libraries[0]['path']} goes first"
        libraries.append(
            {
                "path": str(path),
                "origin": origin,
                "used": used,
                "version": version if used else None,
                "refusal": why,
            }
        )
    return {
        "libraries": libraries,
        "error": error,
        "plans": _plans(),
        "cards": [_json.card(kf.cudnn.CardProfile.named(n)) for n in kf.cudnn.CardProfile.names()],
    }


def _plans() -> Plans | None:
    folder = _library.plans.folder
    if folder is None:
        return None
    sizes = []
    for path in folder.glob("*.json"):
        # Another process may remove a plan at any time.
        try:
            sizes.append(path.stat().st_size)
        except OSError:
            continue
    return {
        "folder": str(folder),
        "count": len(sizes),
        "bytes": sum(sizes),
        "limit_bytes": _library.plans.limit,
    }


def rows(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the report's lines of text, each with its head."""
    head = "libcudnn"
    for one in report["libraries"]:
        state = f"{one['version']}, used" if one["used"] else f"not used: {one['refusal']}"
        yield head, f"{one['path']} ({one['origin']}): {state}"
        head = ""
    if not report["libraries"]:
        yield head, str(report["error"])
    plans = report["plans"]
    if plans is None:
        yield "plans", "in no folder; KEYFOLD_CUDNN_PLANS or plan_cache.keep_in(folder) names one"
    else:
        count = _text.counted(plans["count"], "plan")
        held = f"{plans['bytes']:,} of at most {plans['limit_bytes']:,} bytes"
        yield "plans", f"{plans['folder']}: {count}, {held}"
    head = "cards"
    for source in dict.fromkeys(card["source"] for card in report["cards"]):
        names = [card["name"] for card in report["cards"] if card["source"] == source]
        yield head, f"{', '.join(names)}: {source}"
        head = ""


def save_profile(path: Path, device: str, *, as_json: bool = False) -> int:
    """Write the profile of a card in this machine to a file.

    Raises:
        ArgumentFormError: the device is no card in this machine.
        OutputFileError: the file can't be written.
        Error: there is no such card, or libcudnn can't be used.
    """
    _files.check_output("--save-profile", path, {".json": None})
    if device in kf.cudnn.CardProfile.names() or device.endswith(".json"):
        raise ArgumentFormError(
            f"--device {device}: a profile is captured of a card in this machine, such as cuda:0"
        )
    profile = _cudnn.card(device)
    _files.save("--save-profile", path, profile.save)
    if as_json:
        _json.show("doctor", {"saved": str(path), "card": _json.card(profile)})
    else:
        print(f"{path}: {profile.name}, {profile.source}")
    return 0
