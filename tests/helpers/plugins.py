"""Plugins in Rust, built by tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

# keyfold itself was built with it.
CARGO = os.environ.get("CARGO") or shutil.which("cargo") or "cargo"


def build(manifest: Path, target: Path) -> Path:
    """Builds a plugin, with the SDK that another one left in `target`, and gives its library."""
    command = [CARGO, "build", "--offline", "--release", "--manifest-path", str(manifest)]
    # Flags for the host's own build (a sanitizer's, say) aren't the plugin's.
    kept = {name: value for name, value in os.environ.items() if "RUSTFLAGS" not in name}
    environment = kept | {"CARGO_TARGET_DIR": str(target), "CARGO_BUILD_JOBS": "2"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    name = re.search(r'^name = "(.*)"', manifest.read_text(), re.MULTILINE)
    assert name
    return target / "release" / f"lib{name[1].replace('-', '_')}.so"


def mapped(path: Path) -> bool:
    """Whether a library is loaded."""
    return str(path) in Path("/proc/self/maps").read_text()
