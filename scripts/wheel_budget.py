"""Holds wheels to their budget: size, size installed, one extension, no symbols, the system's tag.

python scripts/wheel_budget.py [--glibc 2.28] WHEEL...
"""

from __future__ import annotations

import argparse
import re
import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

MEGABYTE = 1_000_000
MAX_WHEEL = 11 * MEGABYTE
MAX_INSTALLED = 27 * MEGABYTE
# What users of the wheel need beside the extension.
NEEDED = (
    "keyfold/__init__.py",
    "keyfold/py.typed",
    "keyfold/include/keyfold_abi.h",
    "keyfold/include/keyfold_plugin.h",
)


def sections(code: bytes) -> set[str]:
    """The names of the sections of an ELF file of 64 bits, little-endian."""
    (table,), (entry, count, names) = (
        struct.unpack_from("<Q", code, 40),
        struct.unpack_from("<3H", code, 58),
    )
    headers = [struct.unpack_from("<2I4Q", code, table + entry * i) for i in range(count)]
    start = headers[names][4]
    return {
        code[start + header[0] : code.index(b"\0", start + header[0])].decode()
        for header in headers
    }


def faults(wheel: Path, glibc: str | None) -> Iterator[str]:
    """What a wheel has too much or too little of."""
    with zipfile.ZipFile(wheel) as archive:
        sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
        extensions = [name for name in sizes if name.endswith(".so")]
        code = b"".join(archive.read(name) for name in extensions)
        scripts = [name for name in sizes if name.endswith(".dist-info/entry_points.txt")]
    size, installed = wheel.stat().st_size, sum(sizes.values())
    print(
        f"{wheel.name}: {size / MEGABYTE:.2f} MB (at most {MAX_WHEEL / MEGABYTE:.1f}), "
        f"{installed / MEGABYTE:.2f} MB installed (at most {MAX_INSTALLED / MEGABYTE:.0f})"
    )
    if size > MAX_WHEEL:
        yield f"the wheel has {size:,} bytes and may have {MAX_WHEEL:,}"
    if installed > MAX_INSTALLED:
        yield f"installed it has {installed:,} bytes and may have {MAX_INSTALLED:,}"
    if len(extensions) != 1:
        yield f"it has the extensions {extensions}, and one is right"
    if left := sections(code) & {".symtab", ".debug_info", ".debug_line"}:
        yield f"its extension has {sorted(left)}, which the release profile strips"
    yield from (f"{name} is missing" for name in NEEDED if name not in sizes)
    if not scripts:
        yield "the console script is missing"
    if glibc is not None:
        major, minor = map(int, glibc.split("."))
        tags = [tuple(map(int, tag)) for tag in re.findall(r"manylinux_(\d+)_(\d+)", wheel.name)]
        if not tags or min(tags) > (major, minor):
            yield f"its tag doesn't say that glibc {glibc} is enough"
        for version in sorted(set(re.findall(rb"GLIBC_(\d+)\.(\d+)", code))):
            if tuple(map(int, version)) > (major, minor):
                yield f"it needs symbols of glibc {b'.'.join(version).decode()}"


def main() -> int:
    """Print each wheel's sizes, and what is wrong with it to stderr."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--glibc", help="the oldest glibc that it has to run with")
    parser.add_argument("wheels", nargs="+", type=Path)
    options = parser.parse_args()
    found = [
        f"{wheel.name}: {fault}"
        for wheel in options.wheels
        for fault in faults(wheel, options.glibc)
    ]
    print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
