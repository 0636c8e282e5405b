#!/bin/sh
# The tests of random inputs with inputs that no run had before: `make test` takes the same ones each
# time, so that its verdict is about the commit, and looks for nothing new.
#
#   EXPLORE_ROUNDS=5 scripts/explore.sh [rust|python]...     both by default
#
# Rust: EXPLORE_ROUNDS times with another seed each, which a failure's message names (run again with
# PROPTEST_RNG_SEED=SEED cargo test ...). The errors of float32 functions are measured at every 997th number, in
# place of every 3989th (KEYFOLD_FLOAT_STEP). Python: once, in the tests of operators and reductions with
# KEYFOLD_EXAMPLES (10) times as many examples; what fails is kept in .hypothesis and tried first by
# the next exploring.
set -eu
. "$(dirname -- "$0")/lib.sh"
cd "$ROOT"

explore_rust() {
    "$ROOT/scripts/bootstrap.sh" build
    seed=$(date +%s)
    for round in $(seq "${EXPLORE_ROUNDS:-5}"); do
        seed=$((seed + 1))
        step "cargo test, round $round, PROPTEST_RNG_SEED=$seed"
        PROPTEST_RNG_SEED=$seed KEYFOLD_FLOAT_STEP=${KEYFOLD_FLOAT_STEP:-997} "$CARGO" test --workspace --exclude keyfold-python \
            --exclude keyfold-extension --quiet --lib --tests ||
            die "it failed with PROPTEST_RNG_SEED=$seed KEYFOLD_FLOAT_STEP=${KEYFOLD_FLOAT_STEP:-997}"
    done
}

explore_python() {
    "$ROOT/scripts/build.sh"
    "$ROOT/scripts/bootstrap.sh" test
    step "pytest, ${KEYFOLD_EXAMPLES:-10} times as many examples"
    # shellcheck disable=SC2046 # a list of files
    KEYFOLD_EXPLORE=1 KEYFOLD_EXAMPLES="${KEYFOLD_EXAMPLES:-10}" \
        pytest $(grep -rl --include='test_*.py' '^from hypothesis\|random_arrays import' tests)
}

find_cargo
find_cc
use_venv
for part in ${*:-rust python}; do
    case $part in
    rust | python) "explore_$part" ;;
    *) die "no such part: $part (rust, python)" ;;
    esac
done
