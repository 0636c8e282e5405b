#!/bin/sh
# Runs the Python tests on the abi3 wheel, installed into an environment of its own for each CPython.
#
#   scripts/test_wheel.sh FOLDER [newest]
#
# FOLDER holds the wheel. Every CPython that is found from 3.11 on takes part, with `newest` the newest
# alone: python3.N on PATH, those of pyenv, and what KEYFOLD_PYTHONS names.
set -eu
. "$(dirname -- "$0")/lib.sh"
cd "$ROOT"

wheel=$(ls "$1"/keyfold-*-abi3-*.whl) || die "no abi3 wheel in $1"
pythons=$(find_pythons)
[ -n "$pythons" ] || die "no CPython from 3.$MIN_PYTHON_MINOR on was found"
[ "${2:-}" = newest ] && pythons=$(echo "$pythons" | tail -n 1)

for python in $pythons; do
    verdict=$(judge_python "$python")
    version=${verdict#* }
    folder=$TARGET/wheel-test/${version%.*}
    step "the abi3 wheel on CPython $version"
    if [ ! -x "$folder/bin/python" ]; then
        "$python" -m venv "$folder"
        "$folder/bin/python" -m pip install --disable-pip-version-check --quiet --upgrade 'pip>=25.1'
    fi
    "$folder/bin/python" -m pip install --disable-pip-version-check --no-input --quiet --prefer-binary \
        --group test
    # As scripts/bootstrap.sh does it.
    "$folder/bin/python" -m pip install --disable-pip-version-check --no-input --quiet --prefer-binary \
        --no-deps --group cudnn || echo "keyfold: tests that plan with libcudnn are left out: see above"
    "$folder/bin/python" -m pip install --disable-pip-version-check --no-input --quiet \
        --force-reinstall --no-deps "$wheel"
    # Warnings are errors in there, too; PATH is where tests look for the console script. Tests marked
    # `one_python` prove what is the same for each Python.
    (PATH="$folder/bin:$PATH" && export PATH && "$folder/bin/python" -m pytest -q \
        -m "not one_python")
done
