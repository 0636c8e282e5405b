"""NVIDIA's libcudnn: where it is, for which cards it plans, and the helper process that does."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from keyfold import _core
from keyfold._errors import DeviceError, InvalidValue

__all__ = ["CardProfile", "Plans", "base", "options", "packages", "plans"]

# The helper loads the extension alone: keyfold and NumPy would take it ten times as long.
_HELPER = (
    "import importlib.util as u, sys; "
    "s = u.spec_from_file_location('keyfold._core', sys.argv[1]); "
    "sys.path.append(sys.argv[2]); "
    "m = u.module_from_spec(s); s.loader.exec_module(m); "
    "sys.exit(m._cudnn_helper(sys.argv[3]))"
)

# A second helper compiles while the first one does; more than the processors would be slower.
_PROCESSES = max(1, min(4, os.cpu_count() or 1))


@dataclass
class Plans:
    """The folder of plans."""

    folder: Path | None
    limit: int
    # How long a helper may say nothing before it is ended, in milliseconds.
    patience: int = 180_000


def placed(folder: str | os.PathLike[str] | None) -> Path | None:
    """A folder by its whole path, which stays where the process goes into another one."""
    return Path(folder).expanduser().absolute() if folder else None


plans = Plans(placed(os.environ.get("KEYFOLD_CUDNN_PLANS")), 512 << 20)


@dataclass(frozen=True)
class CardProfile:
    """The properties of a card by which libcudnn plans.

    `named` returns one that comes with keyfold, written from public specifications; `capture` one
    of a card in this machine, as does `python -m keyfold doctor --save-profile FILE`. `build` takes
    a profile, its file or its name as the device.

    Attributes:
        name: the card's name.
        source: where the numbers come from.
        fingerprint: a digest of what plans depend on: those of one fingerprint suit the card.

    Example:
        >>> kf.cudnn.CardProfile.names()
        ['a100', 'l40s', 'h100', 'b200']
        >>> kf.cudnn.CardProfile.named("h100").source
        'written from public specifications, not read off a card'
    """

    name: str
    source: str
    fingerprint: str
    _json: str = field(repr=False)

    @staticmethod
    def names() -> list[str]:
        """The names of the profiles that come with keyfold."""
        return _core._cudnn_cards()

    @classmethod
    def named(cls, name: str) -> CardProfile:
        """Return a profile that comes with keyfold.

        Raises:
            InvalidValue: there is none of that name.
        """
        return cls._of(_core._cudnn_card(name))

    @classmethod
    def from_json(cls, text: str) -> CardProfile:
        """Return the profile of a JSON text.

        Raises:
            InvalidValue: the text is damaged, of another format, or lacks a property.
        """
        return cls._of(_core._cudnn_card(text=text))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> CardProfile:
        """Return the profile of a file.

        Raises:
            InvalidValue: as `from_json`, with the file's name.
            OSError: the file can't be read.
        """
        try:
            return cls.from_json(Path(path).read_text("utf-8"))
        except (InvalidValue, UnicodeDecodeError) as error:
            raise InvalidValue(f"{os.fspath(path)}: {error}") from None

    @classmethod
    def capture(cls, device: Any = "cuda") -> CardProfile:
        """Return the profile of a card that is in this machine.

        Raises:
            DeviceError: there is no such card, or no driver.
            LibraryLoadError: libcudnn isn't there or can't be used.
        """
        made = options(device)
        if made is None or made["card"] is not None:
            raise InvalidValue(f"capture(): the device is a card that is here, not {device!r}")
        return cls._of(_core._cudnn_capture(made))

    @classmethod
    def _of(cls, data: dict[str, str]) -> CardProfile:
        return cls(data["name"], data["source"], data["fingerprint"], data["json"])

    def to_json(self) -> str:
        """Return the profile as JSON, which `from_json` reads."""
        return self._json

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile to a file, which `build(device="FILE.json")` reads."""
        Path(path).write_text(self._json, "utf-8")


def packages() -> list[str]:
    """The folders of Python's packages, in which NVIDIA's libraries are looked for."""
    known = dict.fromkeys(sys.path)
    return [path for path in known if path and (Path(path) / "nvidia").is_dir()]


def options(device: Any) -> dict[str, Any] | None:
    """How libcudnn plans for a device; None for one whose plans it doesn't make."""
    card: str | None = None
    ordinal = 0
    if isinstance(device, CardProfile):
        card = device.to_json()
    elif isinstance(device, os.PathLike) or (isinstance(device, str) and device.endswith(".json")):
        card = CardProfile.from_file(device).to_json()
    elif isinstance(device, str) and device.lower() in CardProfile.names():
        card = CardProfile.named(device).to_json()
    else:
        # Names of devices and of cards are one list for whoever mistypes one.
        try:
            found = _core.Device(device)
        except DeviceError as error:
            if not isinstance(device, str) or not re.fullmatch(r"[A-Za-z]\w*", device):
                raise
            cards = ", ".join(CardProfile.names())
            message = f"{error}; libcudnn plans for {cards}, for a CardProfile, and for its file"
            raise DeviceError(message) from None
        if found.type != "cuda":
            return None
        ordinal = found.index
    return base(card, ordinal)


def base(card: str | None = None, ordinal: int = 0) -> dict[str, Any]:
    """The options of a card: the text of its profile, or its number in this machine."""
    program: list[str] = []
    # A frozen program isn't Python, and would start itself.
    if sys.executable and not getattr(sys, "frozen", False):
        # Nothing of the user's own runs in it; the extension needs NumPy.
        arrays = str(Path(np.__file__).parents[1])
        program = [sys.executable, "-I", "-S", "-c", _HELPER, str(_core.__file__), arrays]
    return {
        "card": card,
        "ordinal": ordinal,
        "packages": packages(),
        "helper": program,
        "processes": _PROCESSES,
        "patience": plans.patience,
        "folder": None if plans.folder is None else str(plans.folder),
        "folder_limit": plans.limit,
    }
