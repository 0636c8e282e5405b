#!/bin/sh
# Line coverage of one crate's tests (keyfold-dispatch by default), with whatever tool is here:
# cargo-llvm-cov where rustup's llvm-tools are installed, else cargo-tarpaulin, which needs none.
set -eu
. "$(dirname -- "$0")/lib.sh"
find_cargo
find_cc
cd "$ROOT"

crate=${1:-keyfold-dispatch}
folder=crates/${crate#keyfold-}

if "$CARGO" llvm-cov --version >/dev/null 2>&1 &&
    find "$(rustc --print sysroot)" -name llvm-profdata | grep -q .; then
    step "coverage of $crate (cargo-llvm-cov)"
    "$CARGO" llvm-cov -p "$crate" --summary-only --ignore-filename-regex '/tests/|/benches/'
elif "$CARGO" tarpaulin --version >/dev/null 2>&1; then
    step "coverage of $crate (cargo-tarpaulin)"
    # Its llvm engine reads the profiles itself, without LLVM's tools. Unoptimised, since inlined lines
    # can't be told apart.
    CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=2 \
        "$CARGO" tarpaulin -p "$crate" --engine llvm --target-dir "$TARGET/coverage" \
        --include-files "$folder/src/*" --skip-clean --timeout 600 --out Stdout
else
    die "no coverage tool: cargo install cargo-tarpaulin, or cargo install cargo-llvm-cov and rustup component add llvm-tools"
fi
