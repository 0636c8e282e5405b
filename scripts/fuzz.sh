#!/bin/sh
# Fuzzes what reads untrusted input: schema text, expressions, cuDNN graphs, DLPack structs, TVM FFI
# values.
#
#   scripts/fuzz.sh [TARGET...]            each for FUZZ_SECONDS (60), or for FUZZ_RUNS inputs
#   scripts/fuzz.sh replay TARGET FILE...  what an input does
#   scripts/fuzz.sh build                  builds the targets
#   scripts/fuzz.sh short                  a fixed number of inputs, the same each time: for make test
#
# libFuzzer with AddressSanitizer, built by the stable compiler with the flags that cargo-fuzz gives,
# so that cargo-fuzz isn't needed (it works too: cargo fuzz run TARGET). Inputs that reach new code
# are kept in $CARGO_TARGET_DIR/fuzz/corpus, and those that fail in fuzz/artifacts.
set -eu
. "$(dirname -- "$0")/lib.sh"
find_cargo
find_cc
cd "$ROOT"

all='schema schema_long expression graph dlpack tvm_values'
host=$(rustc -vV | sed -n 's/^host: //p')
work=$TARGET/fuzz

coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
coverage="$coverage -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
coverage="$coverage -Cllvm-args=-sanitizer-coverage-pc-table"
coverage="$coverage -Cllvm-args=-sanitizer-coverage-trace-compares"
# Without this branches become selects, which no counter sees.
coverage="$coverage -Cllvm-args=-simplifycfg-branch-fold-threshold=0"

# A small quarantine: what is found here is used soon after it was freed, and memory that stays in
# the cache makes an input a third faster.
options=quarantine_size_mb=8:detect_stack_use_after_return=0
export ASAN_OPTIONS="$options:${ASAN_OPTIONS:-}"

build() {
    step "building the fuzz targets"
    # --target keeps the flags away from build scripts and procedural macros.
    RUSTC_BOOTSTRAP=1 RUSTFLAGS="${RUSTFLAGS:-} --cfg fuzzing $coverage -Zsanitizer=address" \
        "$CARGO" build --quiet --manifest-path fuzz/Cargo.toml --release \
        --target "$host" --target-dir "$work"
}

binary() { echo "$work/$host/release/$1"; }

known() {
    case " $all " in
    *" $1 "*) ;;
    *) die "no fuzz target $1 (there are: $all)" ;;
    esac
}

# fuzz TARGET FOLDER-FOR-NEW-INPUTS [libFuzzer's options]
fuzz() {
    target=$1
    found=$2
    shift 2
    mkdir -p "$found" "fuzz/artifacts/$target"
    case $target in
    schema*) set -- "-dict=fuzz/dictionaries/schema.dict" "$@" ;;
    expression) set -- "-dict=fuzz/dictionaries/expression.dict" "$@" ;;
    # A graph of one operation has half a thousand bytes.
    graph) set -- "-dict=fuzz/dictionaries/graph.dict" -max_len=1024 "$@" ;;
    esac
    log=$work/$target.log
    step "fuzzing $target"
    if ! "$(binary "$target")" "$found" "fuzz/corpus/$target" -max_len=256 -timeout=10 \
        -artifact_prefix="fuzz/artifacts/$target/" -print_final_stats=1 "$@" >"$log" 2>&1; then
        tail -n 80 "$log"
        die "$target failed: its input is in fuzz/artifacts/$target, the log in $log;
  again: scripts/fuzz.sh replay $target fuzz/artifacts/$target/FILE"
    fi
    sed -n 's/^stat::number_of_executed_units: */  inputs: /p' "$log"
    sed -n 's/^#[0-9]*.DONE *cov: \([0-9]*\).*corp: \([0-9]*\).*/  branches reached: \1, by inputs: \2/p' "$log"
}

case ${1:-} in
replay)
    [ "$#" -ge 3 ] || die "usage: scripts/fuzz.sh replay TARGET FILE..."
    known "$2"
    build
    target=$2
    shift 2
    exec "$(binary "$target")" "$@"
    ;;
build)
    build
    ;;
short)
    # A minute of inputs doesn't pay for the minutes that optimising takes.
    export CARGO_PROFILE_RELEASE_OPT_LEVEL=1
    build
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    for target in $all; do
        case $target in
        schema_long) runs=500 ;;
        graph) runs=3000 ;;
        *) runs=30000 ;;
        esac
        fuzz "$target" "$scratch/$target" -seed=1 -runs="$runs"
    done
    ;;
*)
    for target in "$@"; do
        known "$target"
    done
    build
    # shellcheck disable=SC2086 # names without blanks
    [ "$#" -gt 0 ] || set -- $all
    for target in "$@"; do
        if [ -n "${FUZZ_RUNS:-}" ]; then
            fuzz "$target" "$work/corpus/$target" -runs="$FUZZ_RUNS"
        else
            fuzz "$target" "$work/corpus/$target" -max_total_time="${FUZZ_SECONDS:-60}"
        fi
    done
    ;;
esac
