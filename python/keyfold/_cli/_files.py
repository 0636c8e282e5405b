"""The files that commands write: looked at before the work begins, errors in one line."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import keyfold as kf

__all__ = ["GRAPH_FORMATS", "OutputFileError", "check_folder", "check_output", "graph_text", "save"]


class OutputFileError(ValueError):
    """A file that can't be written, or a name that doesn't say how."""


def _fenced(graph: kf.Graph) -> str:
    """Return a Markdown page, in which sites that know Mermaid show the drawing."""
    return f"```mermaid\n{graph.mermaid()}```\n"


# How a graph is written, by the file's ending.
GRAPH_FORMATS: Mapping[str, Callable[[kf.Graph], str]] = {
    ".dot": kf.Graph.dot,
    ".gv": kf.Graph.dot,
    ".mmd": kf.Graph.mermaid,
    ".md": _fenced,
    ".json": kf.Graph.to_json,
}


def graph_text(graph: kf.Graph, path: Path) -> str:
    """Return what a graph's file holds: Graphviz, Mermaid or JSON, by the path's ending."""
    return GRAPH_FORMATS[path.suffix.lower()](graph)


def check_output(option: str, path: Path, endings: Mapping[str, object] | None = None) -> None:
    """Refuse a path that can't be written. What is in the file now stays.

    Args:
        option: the option that named the path, for the error.
        path: the file to be written later.
        endings: those that the name may have; any by default.

    Raises:
        OutputFileError: another ending; no such directory; a directory; no permission.
    """
    if endings is not None and path.suffix.lower() not in endings:
        what = f"the ending {path.suffix!r} says nothing" if path.suffix else "it has no ending"
        raise OutputFileError(
            f"{option} {path}: {what}; the form is chosen by one of {', '.join(endings)}"
        )
    try:
        if path.exists() and not path.is_file():
            # Not opened to try: a pipe's reader would take the closing for the end.
            if path.is_dir():
                raise IsADirectoryError(0, "it is a directory")
            if not os.access(path, os.W_OK):
                raise PermissionError(0, "permission denied")
            return
        there = path.exists()
        with path.open("ab"):
            pass
        if not there:
            path.unlink()
    except OSError as error:
        raise _unwritable(option, path, error) from None


def check_folder(option: str, path: Path) -> None:
    """Make a folder where there is none, and refuse one that can't be written.

    Raises:
        OutputFileError: it is a file; no permission.
    """
    try:
        if path.exists() and not path.is_dir():
            raise NotADirectoryError(0, "it is a file, not a folder")
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(0, "permission denied")
    except OSError as error:
        raise _unwritable(option, path, error) from None


def save(option: str, path: Path, write: Callable[[Path], object]) -> None:
    """Write a file.

    Raises:
        OutputFileError: it can't be written, such as on a full disk.
    """
    try:
        write(path)
    except OSError as error:
        raise _unwritable(option, path, error) from None


def _unwritable(option: str, path: Path, error: OSError) -> OutputFileError:
    reason = error.strerror or str(error)
    return OutputFileError(f"{option} {path}: can't be written: {reason[:1].lower()}{reason[1:]}")
