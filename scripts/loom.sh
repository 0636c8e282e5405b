#!/bin/sh
# Runs the loom models of the dispatch crate, src/reclaim/tests/loom.rs (the protocol as it is, and
# without each of its steps, where loom must object), and of the plan cache,
# crates/cudnn/src/cache/models.rs. LOOM_MAX_PREEMPTIONS (3 here) bounds the search; what follows on
# the command line goes to the test programs.
#
# They have a target folder of their own, since --cfg loom would rebuild everything in the shared
# one. Only the checker itself is optimised in full, since most of a search is its own time.
set -eu
. "$(dirname -- "$0")/lib.sh"
find_cargo
cd "$ROOT"

# One build for both crates: features of what they share would differ otherwise.
RUSTFLAGS="${RUSTFLAGS:-} --cfg loom" \
    LOOM_MAX_PREEMPTIONS=${LOOM_MAX_PREEMPTIONS:-3} \
    CARGO_PROFILE_RELEASE_LTO=off \
    CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
    CARGO_PROFILE_RELEASE_OPT_LEVEL=1 \
    "$CARGO" test -p keyfold-dispatch -p keyfold-cudnn --release --lib --target-dir "$TARGET/loom" \
    --config 'profile.release.package."*".opt-level=0' \
    --config 'profile.release.package.loom.opt-level=3' \
    --config 'profile.release.package.generator.opt-level=3' -- reclaim::tests::loom cache::models "$@"
