"""The handwritten digits of the demo, and how they look as text."""

from __future__ import annotations

from importlib import resources
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def load_digits() -> tuple[Array, Array]:
    """Return the images, (1797, 1, 8, 8) float32 from 0 to 1, and the labels, (1797,) int64."""
    source = resources.files("keyfold") / "_data" / "optdigits.npz"
    with source.open("rb") as file, np.load(file) as data:
        images = data["images"].reshape(-1, 1, 8, 8).astype(np.float32) / 16
        return images, data["labels"].astype(np.int64)


def pictures(images: Array) -> list[str]:
    """Return digits side by side as lines of text, a cell two characters wide."""
    shades = " .:-=+*#%"
    grid = (images.reshape(-1, 8, 8) * (len(shades) - 1)).astype(int)
    return [
        f"  {'  '.join(''.join(2 * shades[cell] for cell in row) for row in rows)}".rstrip()
        for rows in grid.transpose(1, 0, 2)
    ]
