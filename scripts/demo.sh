#!/bin/sh
# The demo, `scripts/demo.sh`; on another device `scripts/demo.sh opencl`, beside the CPU.
set -eu
. "$(dirname -- "$0")/lib.sh"
use_venv
case ${1:-cpu} in
    cpu) exec "$VENV/bin/python" -m keyfold demo ;;
    opencl) ;;
    *) die "no demo for the device $1; there are cpu, opencl" ;;
esac
find_opencl
exec "$VENV/bin/python" "$ROOT/examples/backend-opencl/train.py" "$OPENCL"
