#!/bin/sh
# Runs the Python benchmarks: every benches/bench_*.py, peers and keyfold side by side in one run.
#
#   scripts/bench.sh [FILE...]
set -eu
. "$(dirname -- "$0")/lib.sh"
find_cc
"$ROOT/scripts/build.sh"
"$ROOT/scripts/bootstrap.sh" bench
use_venv
cd "$ROOT"

# The C fastcall peer is a C extension that the benchmark compiles with $CC.
header=$(python -c 'import sysconfig; print(sysconfig.get_paths()["include"])')/Python.h
[ -f "$header" ] || die "Python.h is missing: install Python's headers (Debian, Ubuntu: apt install python3-dev)"

if [ "$#" -eq 0 ]; then
    set -- benches/bench_*.py
fi
case " $* " in *bench_opencl*)
    "$ROOT/scripts/bootstrap.sh" opencl
    find_opencl
    export OPENCL
    ;;
esac
for file in "$@"; do
    step "$file"
    python "$file"
done
