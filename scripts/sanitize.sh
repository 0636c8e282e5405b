#!/bin/sh
# Runs the tests of the crates with unsafe code under a sanitizer.
#
#   scripts/sanitize.sh address|thread [cargo test arguments]
#
# RUSTC_BOOTSTRAP=1 lets a stable compiler take -Zsanitizer. The standard library stays as shipped,
# not instrumented: for ThreadSanitizer that gives reports inside it, which tsan-std.supp names. The
# dispatch crate's read side (tests/reads.rs) shares only kernels through it, by Arcs, and runs with
# tsan-arc.supp: a snapshot's own memory is no Arc's, so one that is freed under a reader is reported.
set -eu
. "$(dirname -- "$0")/lib.sh"
find_cargo
find_cc
cd "$ROOT"

kind=${1:-}
# -rdynamic: plugins are loaded by a test, and find the sanitizer's functions in it.
case $kind in
address)
    flags="-Zsanitizer=address -Clink-arg=-rdynamic"
    # Locals stay on the real stack: the engine compares a local's address with the stack's end.
    # Tests ask for more memory than there is, and want a null pointer, not the end of the process.
    options=detect_leaks=1:detect_stack_use_after_return=0:allocator_may_return_null=1
    export ASAN_OPTIONS="$options:${ASAN_OPTIONS:-}"
    # Memory that keyfold keeps for later isn't free to the sanitizer, and use after free no error.
    export KEYFOLD_CACHE_BYTES=0
    ;;
thread)
    flags="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer -Clink-arg=-rdynamic"
    # Suppressions go by function name, which needs a symbolizer.
    command -v llvm-symbolizer >/dev/null 2>&1 ||
        die "llvm-symbolizer is missing: install LLVM's tools (Debian, Ubuntu: apt install llvm)"
    # The test harness talks to its threads through the standard library: one test at a time keeps
    # most of it out of the reports.
    export RUST_TEST_THREADS=1
    ;;
*) die "usage: scripts/sanitize.sh address|thread [cargo test arguments]" ;;
esac
shift
# For tests that look at the process's memory, which a sanitizer's allocator keeps.
export KEYFOLD_SANITIZER="$kind"
# A plugin that panics keeps the names of its backtrace, which are leaks once it is closed.
export RUST_BACKTRACE=0

# --target keeps the flags away from build scripts and procedural macros.
host=$(rustc -vV | sed -n 's/^host: //p')
with_sanitizer() {
    command=$1
    shift
    RUSTC_BOOTSTRAP=1 RUSTFLAGS="${RUSTFLAGS:-} $flags" \
        "$CARGO" "$command" --target "$host" --target-dir "$TARGET/sanitize-$kind" "$@"
}
sanitized() { with_sanitizer test "$@"; }
# As above: null, not the end of the process.
tsan_options="allocator_may_return_null=1:${TSAN_OPTIONS:-}"
if [ "$kind" = thread ]; then
    step "thread sanitizer: the read side, nothing suppressed but the last drop of an Arc"
    export TSAN_OPTIONS="suppressions=$ROOT/scripts/tsan-arc.supp:$tsan_options"
    sanitized -p keyfold-dispatch --test reads
    export TSAN_OPTIONS="suppressions=$ROOT/scripts/tsan-std.supp:$tsan_options"
fi
plain=no
if [ "$#" -eq 0 ]; then
    plain=yes
    # The libraries that tests load are examples, which these options don't build.
    with_sanitizer build -p keyfold-ffi -p keyfold-dispatch --examples
    set -- -p keyfold-dispatch -p keyfold-tensor -p keyfold-ffi --lib --tests
fi
step "$kind sanitizer: $*"
sanitized "$@"
if [ "$plain" = yes ] && [ "$kind" = thread ]; then
    # The cache's locks are behind one of keyfold's own, which is instrumented: nothing is suppressed but the last
    # drop of an Arc, whose fence isn't modelled. Without the operators, which this cfg leaves out of Cargo.toml's
    # development dependencies, and in a folder of its own, since the flags differ.
    step "thread sanitizer: the cache of cuDNN plans"
    export TSAN_OPTIONS="suppressions=$ROOT/scripts/tsan-arc.supp:$tsan_options"
    (
        RUSTFLAGS="${RUSTFLAGS:-} --cfg keyfold_tsan" TARGET=$TARGET/cudnn
        sanitized -p keyfold-cudnn --lib --test plan_cache
    )
fi
if [ "$plain" = yes ]; then
    # Not its tests of fork: ThreadSanitizer ends a child that starts threads.
    step "$kind sanitizer: the pools"
    sanitized -p keyfold-kit --lib --test pool
fi
