#!/bin/sh
# The tests that swap kernels under load, at full length: 10 s and a million swaps instead of the
# short run that `make test` does. A test reads KEYFOLD_SOAK_SECONDS and KEYFOLD_SOAK_SWAPS.
set -eu
. "$(dirname -- "$0")/lib.sh"
find_cargo
find_cc
"$ROOT/scripts/build.sh"
"$ROOT/scripts/bootstrap.sh" test
use_venv
cd "$ROOT"

export KEYFOLD_SOAK_SECONDS="${KEYFOLD_SOAK_SECONDS:-10}"
export KEYFOLD_SOAK_SWAPS="${KEYFOLD_SOAK_SWAPS:-1000000}"
step "soak from Rust: $KEYFOLD_SOAK_SECONDS s, $KEYFOLD_SOAK_SWAPS swaps"
"$CARGO" test -p keyfold-dispatch --release --tests soak -- --nocapture
step "soak from Python"
pytest -k soak -s
