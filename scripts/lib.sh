# Shared by the scripts here: sourced, never run. POSIX sh.
#
# step NAME     announces a step with the seconds since the command began
# die MESSAGE   one line on stderr, exit 1
# end_tree PID  ends a process and all that it started
# find_cargo, find_cc, find_python: each sets CARGO, CC or PYTHON to what was found, or dies
# find_pythons  prints every CPython that will do
# find_opencl   builds examples/backend-opencl, sets OPENCL to its library, and finds it a loader

ROOT=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
VENV=${KEYFOLD_VENV:-$ROOT/.venv}
case $VENV in /*) ;; *) VENV=$PWD/$VENV ;; esac
TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
STARTED=${KEYFOLD_STARTED:-$(date +%s)}
export KEYFOLD_STARTED="$STARTED"

# The oldest versions that work. Cargo: edition 2024 and let chains. Python: the oldest supported one.
MIN_CARGO_MINOR=89
MIN_PYTHON_MINOR=11
# The newest CPython that the PyO3 in Cargo.lock knows.
MAX_PYTHON_MINOR=15

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
    BOLD=$(printf '\033[1;36m') PLAIN=$(printf '\033[0m')
else
    BOLD='' PLAIN=''
fi

elapsed() { echo $(($(date +%s) - STARTED)); }

step() { printf '%s[%4ss] %s%s\n' "$BOLD" "$(elapsed)" "$*" "$PLAIN"; }

die() {
    printf 'keyfold: %s\n' "$*" >&2
    exit 1
}

# A parent that is stopped starts nothing while its children end.
end_tree() {
    kill -STOP "$1" 2>/dev/null || return 0
    for child in $(ps -A -o pid= -o ppid= | awk -v parent="$1" '$2 == parent { print $1 }'); do
        end_tree "$child"
    done
    kill -KILL "$1" 2>/dev/null || true
}

find_cargo() {
    CARGO=${CARGO:-cargo}
    command -v "$CARGO" >/dev/null 2>&1 ||
        die "cargo is missing: install Rust 1.$MIN_CARGO_MINOR or newer (https://rustup.rs)"
    cargo_version=$("$CARGO" --version 2>/dev/null) ||
        die "cargo is there but does not run ($("$CARGO" --version 2>&1 | head -n 1)): install Rust 1.$MIN_CARGO_MINOR or newer (https://rustup.rs)"
    # "cargo 1.95.0 (...)" -> "1 95"
    cargo_number=${cargo_version#cargo }
    cargo_major=${cargo_number%%.*}
    cargo_minor=${cargo_number#*.}
    cargo_minor=${cargo_minor%%.*}
    if [ "$cargo_major" -eq 1 ] && [ "$cargo_minor" -lt "$MIN_CARGO_MINOR" ]; then
        die "cargo ${cargo_number%% *} is too old: install Rust 1.$MIN_CARGO_MINOR or newer (rustup update, or https://rustup.rs)"
    fi
    export CARGO
}

# rustc links through cc; the native example and the benchmarks compile C.
find_cc() {
    CC=${CC:-cc}
    cc_hint="install one (Debian, Ubuntu: apt install build-essential; Fedora: dnf install gcc-c++; macOS: xcode-select --install)"
    # CC may carry flags ("ccache cc"): only its first word is a program.
    command -v "${CC%% *}" >/dev/null 2>&1 || die "a C compiler is missing (no $CC on PATH): $cc_hint"
    probe=$(mktemp -d)
    echo 'int main(void) { return 0; }' >"$probe/probe.c"
    if ! $CC -o "$probe/probe" "$probe/probe.c" >/dev/null 2>&1; then
        rm -rf "$probe"
        die "the C compiler $CC cannot build a program (linker or C library missing): $cc_hint"
    fi
    rm -rf "$probe"
    export CC
    # One file of the extension is C++: only that catches exceptions that leave a C++ kernel.
    CXX=${CXX:-c++}
    command -v "${CXX%% *}" >/dev/null 2>&1 || die "a C++ compiler is missing (no $CXX on PATH): $cc_hint"
    export CXX
}

# Prints one word about a Python: "ok VERSION", "old VERSION", "new VERSION", "venv VERSION", "other".
judge_python() {
    "$1" -c "
import sys
version = '%d.%d.%d' % sys.version_info[:3]
if sys.implementation.name != 'cpython':
    print('other', sys.implementation.name)
elif sys.version_info < (3, $MIN_PYTHON_MINOR):
    print('old', version)
elif sys.version_info >= (3, $MAX_PYTHON_MINOR + 1):
    print('new', version)
else:
    try:
        import venv, ensurepip
        print('ok', version)
    except ImportError:
        print('venv', version)
" 2>/dev/null || echo "broken -"
}

# Prints every CPython that will do, one a line and one for each minor version, the oldest first.
find_pythons() {
    minor=$MIN_PYTHON_MINOR
    while [ "$minor" -le "$MAX_PYTHON_MINOR" ]; do
        for candidate in ${KEYFOLD_PYTHONS:-} "python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor".*/bin/python; do
            command -v "$candidate" >/dev/null 2>&1 || continue
            case $(judge_python "$candidate") in
            "ok 3.$minor."*)
                echo "$candidate"
                break
                ;;
            esac
        done
        minor=$((minor + 1))
    done
}

# $PYTHON decides where it is set; else python3, if it will do, since that is the Python a person
# expects; else the newest that is there.
find_python() {
    want="CPython 3.$MIN_PYTHON_MINOR to 3.$MAX_PYTHON_MINOR"
    problem=''
    if [ -n "${PYTHON:-}" ]; then
        set -- "$PYTHON"
    else
        set -- python3 python3.15 python3.14 python3.13 python3.12 python3.11
    fi
    for candidate in "$@"; do
        command -v "$candidate" >/dev/null 2>&1 || continue
        verdict=$(judge_python "$candidate")
        version=${verdict#* }
        case $verdict in
        ok*)
            PYTHON=$candidate
            export PYTHON
            return
            ;;
        venv*) # the nearest miss: one package away
            problem="Python $version ($candidate) has no venv module: install it (Debian, Ubuntu: apt install python3-venv)"
            ;;
        old*) : "${problem:=Python $version ($candidate) is too old: install $want and its venv module}" ;;
        new*) : "${problem:=Python $version ($candidate) is newer than this version of keyfold knows: install $want}" ;;
        other*) : "${problem:=$candidate is $version, not CPython: install $want and its venv module}" ;;
        esac
    done
    if [ -n "$problem" ]; then
        die "$problem"
    elif [ -n "${PYTHON:-}" ]; then
        die "PYTHON=$PYTHON is not a Python that runs: install $want, or point PYTHON at it"
    fi
    die "Python is missing: install $want and its venv module (Debian, Ubuntu: apt install python3 python3-venv)"
}

# The environment that cargo and maturin run in. One PYO3_PYTHON for every step: PyO3 is built again
# whenever it changes.
use_venv() {
    unset CONDA_PREFIX PYTHONHOME
    export VIRTUAL_ENV="$VENV" PYO3_PYTHON="$VENV/bin/python"
    export PATH="$VENV/bin:$PATH"
}

# A loader of the user's or of the system goes first; else pocl's wheel, which computes on the CPU's
# threads, is installed in the environment.
find_opencl() {
    find_cargo
    example=$ROOT/examples/backend-opencl
    "$CARGO" build --quiet --release --manifest-path "$example/Cargo.toml" \
        --target-dir "$TARGET/opencl" || die "examples/backend-opencl could not be built: see above"
    OPENCL=$TARGET/opencl/release/libkeyfold_opencl.so
    if [ -n "${KEYFOLD_OPENCL:-}" ] ||
        "$VENV/bin/python" -c "import ctypes; ctypes.CDLL('libOpenCL.so.1')" 2>/dev/null; then
        return
    fi
    "$ROOT/scripts/bootstrap.sh" opencl
    libs=$("$VENV/bin/python" -c "
import importlib.util, pathlib
found = importlib.util.find_spec('pyopencl')
print(pathlib.Path(found.origin).parent if found else '')")
    set -- "$libs"/.libs/libOpenCL*
    [ -f "$1" ] || return # the plugin's error says what to install
    export KEYFOLD_OPENCL="$1" PYOPENCL_HOME="$libs"
    set -- "$libs"/.libs/libpocl*
    export OCL_ICD_VENDORS="$1"
    step "this system has no OpenCL loader: pocl computes on the CPU"
}
