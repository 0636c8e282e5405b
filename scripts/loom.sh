#!/bin/sh
# Runs the loom models of the dispatch crate. LOOM_MAX_PREEMPTIONS (2 here) bounds the search:
# 3 takes minutes and finds what needs three switches.
#
# They have a target folder of their own, since --cfg loom would rebuild everything in the shared
# one, and no link-time optimisation, since nobody times them.
set -eu
. "$(dirname -- "$0")/lib.sh"
find_cargo
cd "$ROOT"

RUSTFLAGS="${RUSTFLAGS:-} --cfg loom" \
    LOOM_MAX_PREEMPTIONS=${LOOM_MAX_PREEMPTIONS:-2} \
    CARGO_PROFILE_RELEASE_LTO=off \
    CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
    "$CARGO" test -p keyfold-dispatch --release --test loom --target-dir "$TARGET/loom" "$@"
