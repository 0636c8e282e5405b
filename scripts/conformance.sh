#!/bin/sh
# The conformance kit, all its cases: `scripts/conformance.sh [DEVICE [OPTION...]]`. The device opencl is
# that of examples/backend-opencl; another one needs `--load`.
set -eu
. "$(dirname -- "$0")/lib.sh"
use_venv
device=${1:-cpu}
[ $# -eq 0 ] || shift
if [ "$device" = opencl ]; then
    find_opencl
    set -- --load "$OPENCL" "$@"
fi
exec "$VENV/bin/python" -m keyfold conformance "$device" --all "$@"
