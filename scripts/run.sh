#!/bin/sh
# Runs the project's Python: scripts/run.sh -m keyfold demo
set -eu
. "$(dirname -- "$0")/lib.sh"
use_venv
exec "$VENV/bin/python" "$@"
