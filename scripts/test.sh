#!/bin/sh
# Runs every check and stops at the first that fails.
#
#   scripts/test.sh [lint|rust|python|wheel|loom|fuzz]...     all of them by default
#
# On two cores. The extension is built beside the lints and the Rust tests. There
# are two lanes, since a process of tests uses one core most of the time. Here run the Rust tests, then
# `wheel`, `loom` and `fuzz`; beside them runs `python`, then the same parts from the last one on, until
# the lanes meet. What ran beside is printed at the end, and ends with this script.
#
# What can't be checked on this machine is named at the end; it never passes silently. Random inputs
# are the same in each run: a failure is one of the commit. scripts/explore.sh looks for new ones.
set -eu
. "$(dirname -- "$0")/lib.sh"
cd "$ROOT"

parts=${*:-lint rust python wheel loom fuzz}
extension_job=''
beside_job=''
# What both lanes know: which parts were taken, what was left out, whether the lane beside failed.
state=$(mktemp -d)
end_jobs() {
    # Cut short, or failed here: how far the other lane is.
    if [ -n "$beside_job" ] && [ -f "$TARGET/beside.log" ]; then
        step "this ran beside until now: the end of $TARGET/beside.log"
        tail -n 60 "$TARGET/beside.log"
    fi
    for job in $extension_job $beside_job; do
        end_tree "$job"
    done
    rm -rf "$state"
}
trap end_jobs EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
leave_out() { printf '  %s\n' "$*" >>"$state/left_out"; }

has_cargo_tool() { "$CARGO" "$1" --version >/dev/null 2>&1; }

# Each part installs what it needs first, so that a step's time is its own.
check_lint() {
    "$ROOT/scripts/bootstrap.sh" build lint
    start_extension
    if has_cargo_tool fmt; then
        step "cargo fmt --check"
        "$CARGO" fmt --all --check
        for manifest in fuzz/Cargo.toml examples/*/Cargo.toml; do
            "$CARGO" fmt --manifest-path "$manifest" --check
        done
    else
        leave_out "cargo fmt: not installed (rustup component add rustfmt)"
    fi
    step "ruff"
    ruff check .
    ruff format --check .
    if has_cargo_tool clippy; then
        step "cargo clippy"
        "$CARGO" clippy --workspace --all-targets -- -D warnings
        for manifest in examples/*/Cargo.toml; do
            "$CARGO" clippy --quiet --manifest-path "$manifest" --target-dir "$TARGET/examples" \
                -- -D warnings
        done
    else
        leave_out "cargo clippy: not installed (rustup component add clippy)"
    fi
}

# The binding's two crates link no libpython, so neither can be a test binary: pytest is their test.
check_rust() {
    "$ROOT/scripts/bootstrap.sh" build
    start_extension
    step "building the Rust tests"
    "$CARGO" test --workspace --exclude keyfold-python --exclude keyfold-extension --no-run
    start_beside
    step "cargo test"
    PROPTEST_RNG_SEED="${PROPTEST_RNG_SEED:-1}" "$CARGO" test --workspace --exclude keyfold-python \
        --exclude keyfold-extension
}

check_loom() {
    step "loom: the interleavings of the registry's read side, and of builds of cuDNN plans"
    "$ROOT/scripts/loom.sh"
}

# In the background. With a lower priority it took until the Rust tests had run, and `python` began so late that it
# ended minutes after all else, with a core idle.
start_extension() {
    case " $parts " in *" python "*) ;; *) return 0 ;; esac
    [ -z "$extension_job" ] || return 0
    mkdir -p "$TARGET"
    (
        trap ': >"$state/extension"' EXIT
        "$ROOT/scripts/build.sh" >"$TARGET/extension.log" 2>&1
    ) &
    extension_job=$!
}

wait_for_extension() {
    [ -n "$extension_job" ] || return 0
    wait "$extension_job" || {
        cat "$TARGET/extension.log"
        die "the extension could not be built"
    }
    extension_job=''
}

check_python() {
    "$ROOT/scripts/build.sh"
    "$ROOT/scripts/bootstrap.sh" test lint
    # Without it the tests that plan with libcudnn are skipped, by name; in CI they fail.
    "$ROOT/scripts/bootstrap.sh" cudnn ||
        leave_out "tests that plan with libcudnn: its wheel could not be installed, see above"
    step "mypy: the package, its stubs and the examples"
    # Left to its configuration, mypy would complain about a folder that holds no Python file.
    targets=python/keyfold
    if find examples -name '*.py' | grep -q .; then
        targets="$targets examples"
    fi
    # shellcheck disable=SC2086 # two words on purpose
    mypy $targets
    step "stubtest: the stubs against the module"
    set -- --mypy-config-file pyproject.toml --allowlist tests/stubtest-allow.txt
    if python -c 'import torch' 2>/dev/null; then
        set -- "$@" --allowlist tests/stubtest-allow-with-torch.txt
    else
        set -- "$@" --allowlist tests/stubtest-allow-without-torch.txt
        leave_out "stubtest of keyfold.torch: PyTorch isn't installed"
    fi
    if python -c 'import sys; sys.exit(sys.version_info < (3, 13))'; then
        set -- "$@" --allowlist tests/stubtest-allow-from-3.13.txt
    fi
    stubtest keyfold "$@"
    step "pytest"
    pytest
}

# The abi3 wheel's budget, and the Python tests on the newest CPython; `make test-wheel` takes all of
# them, and `make wheel` holds the other wheel, which differs by some kilobytes, to the same budget.
check_wheel() {
    step "the abi3 wheel: size, contents, and the tests on the newest CPython"
    FEATURES=abi3 scripts/wheel.sh --this-glibc "$TARGET/wheel-test/abi3"
    scripts/test_wheel.sh "$TARGET/wheel-test/abi3" newest
}

# A fixed number of inputs each; `make fuzz` is the long one.
check_fuzz() { "$ROOT/scripts/fuzz.sh" short; }

# Whoever makes the folder first has the part.
take() { mkdir "$state/$1" 2>/dev/null; }

# Opens the second lane, once, if there is anything that `python` can run beside.
start_beside() {
    [ -z "$beside_job" ] || return 0
    case "$lanes" in
    *" python") ;;
    python) case " $parts " in *" rust "*) ;; *) return 0 ;; esac ;;
    *) return 0 ;;
    esac
    mkdir -p "$TARGET"
    backwards=''
    for part in $lanes; do
        backwards="$part $backwards"
    done
    (
        trap ': >"$state/failed"' EXIT
        # Rust tests run meanwhile. What went wrong with it, the other lane says.
        until [ -z "$extension_job" ] || [ -e "$state/extension" ]; do
            sleep 1
        done
        for part in $backwards; do
            take "$part" || continue
            echo "$part" >"$state/beside"
            "check_$part"
        done
        trap - EXIT
    ) >"$TARGET/beside.log" 2>&1 &
    beside_job=$!
}

end_beside() {
    [ -n "$beside_job" ] || return 0
    step "waiting for what runs beside: its output follows"
    failed=''
    wait "$beside_job" || failed=yes
    beside_job=''
    cat "$TARGET/beside.log"
    [ -z "$failed" ] || die "this failed, see above: $(cat "$state/beside")"
}

find_cargo
find_cc
use_venv
for part in $parts; do
    case $part in
    lint | rust | python | wheel | loom | fuzz) ;;
    *) die "no such part: $part (lint, rust, python, wheel, loom, fuzz)" ;;
    esac
done
# Whatever the order of the arguments.
lanes=''
for part in wheel loom fuzz python; do
    case " $parts " in *" $part "*) lanes="${lanes:+$lanes }$part" ;; esac
done
for part in lint rust; do
    case " $parts " in *" $part "*) "check_$part" ;; esac
done
start_beside
wait_for_extension
for part in $lanes; do
    # After a failure beside nothing else is begun here.
    [ ! -e "$state/failed" ] || break
    take "$part" || continue
    "check_$part"
done
end_beside

step "all passed: $parts"
# pytest has named its own skips above (-ra).
if [ -f "$state/left_out" ]; then
    printf 'left out on this machine:\n%s\n' "$(cat "$state/left_out")"
fi
