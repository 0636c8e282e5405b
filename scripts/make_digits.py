"""Convert scikit-learn's digits.csv.gz to python/keyfold/_data/optdigits.npz.

The demo's data is the test portion of UCI's "Optical Recognition of Handwritten Digits".
scikit-learn ships those 1,797 rows in every wheel, which is where this script expects them:

    pip download --no-deps --dest build/sk scikit-learn
    unzip -o build/sk/scikit_learn-*.whl sklearn/datasets/data/digits.csv.gz -d build/sk
    python scripts/make_digits.py build/sk/sklearn/datasets/data/digits.csv.gz

A row is 64 pixel values (row by row, 0 to 16) and the digit. The output is the same bytes on
every run with one version of NumPy and zlib: the archive's time stamps are fixed.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np

DEFAULT_OUTPUT = Path(__file__).resolve().parent.parent / "python/keyfold/_data/optdigits.npz"

# UCI's own count of each digit in the test portion: the check that this is the right file.
PER_DIGIT = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def read_rows(source: Path) -> np.ndarray:
    """Return the table of the csv file, shape (1797, 65), int64."""
    with gzip.open(source, "rt", encoding="ascii") as lines:
        # The csv writes integers with a decimal point in some releases; both forms read as float.
        table = np.loadtxt(lines, delimiter=",", dtype=np.float64)
    rows = table.astype(np.int64)
    if not np.array_equal(rows, table):
        raise SystemExit(f"{source}: expected whole numbers only")
    return rows


def split(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return uint8 images (1797, 8, 8) and labels (1797,); exit if they look wrong."""
    if rows.shape != (1797, 65):
        raise SystemExit(f"expected 1797 rows of 65 numbers, got shape {rows.shape}")
    pixels, labels = rows[:, :64], rows[:, 64]
    if pixels.min() < 0 or pixels.max() > 16:
        raise SystemExit(f"expected pixels in 0..16, got {pixels.min()}..{pixels.max()}")
    counts = np.bincount(labels, minlength=10).tolist()
    if counts != PER_DIGIT:
        raise SystemExit(f"expected {PER_DIGIT} images per digit, got {counts}")
    return pixels.reshape(-1, 8, 8).astype(np.uint8), labels.astype(np.uint8)


def write_npz(target: Path, **arrays: np.ndarray) -> None:
    """Write the arrays as a compressed .npz without the time of writing in it."""
    with zipfile.ZipFile(target, "w") as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.save(content, array, allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content.getvalue(), compresslevel=9)


def main() -> None:
    """Read the command line, convert, and say what was written."""
    parser = argparse.ArgumentParser(description="Make keyfold's copy of the UCI optical digits.")
    parser.add_argument("source", type=Path, help="scikit-learn's digits.csv.gz")
    parser.add_argument("output", type=Path, nargs="?", default=DEFAULT_OUTPUT)
    options = parser.parse_args()

    images, labels = split(read_rows(options.source))
    write_npz(options.output, images=images, labels=labels)
    digest = hashlib.sha256(options.output.read_bytes()).hexdigest()
    print(f"{options.output}: {options.output.stat().st_size} bytes, sha256 {digest}")


if __name__ == "__main__":
    main()
