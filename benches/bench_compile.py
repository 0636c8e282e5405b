"""Processor time of a cold release build of the extension, crate by crate.

    python benches/bench_compile.py [CHECKOUT...] [--rounds N] [--least SECONDS]

Each checkout (this one by default) is built in a temporary folder, of sources that cargo has
loaded before; several take turns, and the least time of each crate counts. cargo runs each
compiler through this file, which notes the processor time of it and of its linker. Other work on
the machine raises processor time as well, by a half where it keeps all cores busy: take the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NOTES = "KEYFOLD_COMPILE_NOTES"


def compile_one(command: list[str]) -> int:
    """Run a compiler, and note its crate and processor time."""
    status = subprocess.run(command, check=False).returncode
    if "--crate-name" in command:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        name = command[command.index("--crate-name") + 1]
        path = next((each for each in command if each.endswith(".rs")), "")
        package = Path(path).parent.name if name.startswith("build_script") else name
        note = json.dumps([package, used.ru_utime + used.ru_stime])
        with open(os.environ[NOTES], "a") as notes:
            notes.write(note + "\n")
    return status


def build(checkout: Path) -> tuple[dict[str, float], float, float]:
    """Processor seconds by crate, all of the build's, and seconds on the clock."""
    with tempfile.TemporaryDirectory() as folder:
        notes, wrapper = Path(folder, "notes"), Path(folder, "wrapper")
        this = os.path.abspath(__file__)
        wrapper.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{this}" "$@"\n')
        wrapper.chmod(0o700)
        env = {
            **os.environ,
            NOTES: str(notes),
            "RUSTC_WRAPPER": str(wrapper),
            "CARGO_TARGET_DIR": folder,
        }
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.monotonic()
        # As maturin builds it. Before there was `extension` the binding was the shared library.
        folders = [checkout / "crates" / name for name in ("extension", "python")]
        manifest = next(folder for folder in folders if folder.exists()) / "Cargo.toml"
        command = ["cargo", "rustc", "--quiet", "--release", "--lib", "--manifest-path"]
        subprocess.run([*command, str(manifest)], env=env, cwd=checkout, check=True)
        clock = time.monotonic() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        total = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        crates: dict[str, float] = {}
        for line in notes.read_text().splitlines():
            name, seconds = json.loads(line)
            crates[name] = crates.get(name, 0.0) + seconds
    return crates, total, clock


def main() -> None:
    if NOTES in os.environ:
        sys.exit(compile_one(sys.argv[1:]))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    here = Path(__file__).parent.parent
    parser.add_argument("checkouts", nargs="*", type=Path, default=[here])
    parser.add_argument("--rounds", type=int, default=1, help="builds of each")
    parser.add_argument("--least", type=float, default=2.0, help="crates below it are one row")
    chosen = parser.parse_args()
    least: list[dict[str, float]] = [{} for _ in chosen.checkouts]
    for _ in range(chosen.rounds):
        for known, checkout in zip(least, chosen.checkouts, strict=True):
            crates, total, clock = build(checkout.resolve())
            for name, seconds in {**crates, "all": total, "on the clock": clock}.items():
                known[name] = min(seconds, known.get(name, seconds))
    last = ("all", "on the clock")
    names = {name for known in least for name in known if name not in last}
    long = [name for name in names if max(k.get(name, 0.0) for k in least) >= chosen.least]
    short = names.difference(long)
    for known in least:
        known[f"{len(short)} others"] = sum(known.get(name, 0.0) for name in short)
    long.sort(key=lambda name: -least[-1].get(name, 0.0))
    for name in [*long, f"{len(short)} others", *last]:
        print(f"{name:28}" + "".join(f"{known.get(name, 0.0):10.1f}" for known in least))


if __name__ == "__main__":
    main()
