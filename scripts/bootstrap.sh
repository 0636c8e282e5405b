#!/bin/sh
# Checks the tools, makes the virtual environment, installs dependency groups of pyproject.toml.
#
#   scripts/bootstrap.sh [GROUP...]
#
# Overrides: PYTHON (which interpreter), KEYFOLD_VENV (where the environment goes), CARGO, CC; pip and cargo
# keep to their own variables (PIP_*, XDG_CACHE_HOME, CARGO_HOME, CARGO_TARGET_DIR).
set -eu
. "$(dirname -- "$0")/lib.sh"

find_cargo
find_cc

# An environment that works and is recent enough is kept, unless PYTHON asks for another version.
keep_venv() {
    [ -x "$VENV/bin/python" ] || return 1
    kept=$(judge_python "$VENV/bin/python")
    case $kept in ok*) ;; *) return 1 ;; esac
    "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || return 1
    if [ -n "${PYTHON:-}" ]; then
        [ "$(judge_python "$PYTHON")" = "$kept" ] || return 1
    fi
}

if ! keep_venv; then
    find_python
    # Only what is an environment is removed, whatever KEYFOLD_VENV says.
    if [ -e "$VENV" ] && [ ! -f "$VENV/pyvenv.cfg" ]; then
        die "$VENV is there and is not a virtual environment: remove it, or set KEYFOLD_VENV"
    fi
    step "making a virtual environment in ${VENV#"$ROOT"/} with $PYTHON (${version})"
    rm -rf "$VENV"
    "$PYTHON" -m venv "$VENV" || die "$PYTHON could not make a virtual environment in $VENV: see above"
fi

for group in "$@"; do
    stamp=$VENV/.keyfold-group-$group
    [ "$stamp" -nt "$ROOT/pyproject.toml" ] && continue
    step "installing Python packages for: $group"
    # pip reads dependency groups since 25.1; the one in a new environment may be older.
    if ! "$VENV/bin/python" -m pip install --help | grep -q -e --group; then
        "$VENV/bin/python" -m pip install --disable-pip-version-check --quiet --upgrade 'pip>=25.1'
    fi
    # The wheel of libcudnn asks for cuBLAS, which is five times its size and isn't used.
    alone=''
    [ "$group" = cudnn ] && alone=--no-deps
    # shellcheck disable=SC2086 # an option or nothing
    (cd "$ROOT" && "$VENV/bin/python" -m pip install --disable-pip-version-check --no-input \
        --prefer-binary $alone --group "$group") ||
        die "pip could not install the group '$group' of pyproject.toml: see above"
    touch "$stamp"
done
