#!/bin/sh
# Builds a wheel in release mode and holds it to its budget (scripts/wheel_budget.py).
#
#   scripts/wheel.sh              for systems with glibc 2.28 or later, in target/wheels: what is published
#   scripts/wheel.sh --this-glibc OUT   for systems like this one, in OUT: what the tests install
#
# FEATURES=abi3: for CPython 3.11 and later; otherwise for the Python of the environment alone.
set -eu
. "$(dirname -- "$0")/lib.sh"

"$ROOT/scripts/bootstrap.sh" build
find_cargo
find_cc
use_venv
cd "$ROOT"

out=$TARGET/wheels
set -- "${1:-}" "${2:-}"
if [ "$1" = --this-glibc ]; then
    out=$2
    portable=''
else
    "$ROOT/scripts/bootstrap.sh" wheel
    portable="--compatibility manylinux_2_28"
    # Everything is built again for another linker, so it has a folder of its own.
    export CARGO_TARGET_DIR="$TARGET/portable"
    export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER="$ROOT/scripts/zig_link.sh"
fi

step "building a wheel (${FEATURES:-for this Python})"
rm -rf "$out.new"
# shellcheck disable=SC2086 # several words on purpose
maturin build --release --quiet --compression-level 9 --out "$out.new" $portable ${FEATURES:+--features "$FEATURES"}
python scripts/wheel_budget.py ${portable:+--glibc 2.28} "$out.new"/*.whl
mkdir -p "$out"
mv "$out.new"/*.whl "$out"
rmdir "$out.new"
