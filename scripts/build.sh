#!/bin/sh
# Builds the extension in release mode and installs the package in place (an editable install).
# Nothing happens when no source is newer than the last build. FEATURES="abi3" builds with features.
set -eu
. "$(dirname -- "$0")/lib.sh"

"$ROOT/scripts/bootstrap.sh" build
find_cargo
use_venv
cd "$ROOT"

stamp=$VENV/.keyfold-built
wanted="features: ${FEATURES:-none}"

# The stamp's second line is the module that was built: another Python's would not do.
up_to_date() {
    [ -f "$stamp" ] && [ "$(sed -n 1p "$stamp")" = "$wanted" ] || return 1
    [ -f "$(sed -n 2p "$stamp")" ] || return 1
    changed=$(find Cargo.toml Cargo.lock pyproject.toml crates -type f -newer "$stamp" \
        \( -name '*.rs' -o -name '*.toml' -o -name '*.c' -o -name '*.h' -o -name Cargo.lock \) \
        2>/dev/null | head -n 1)
    [ -z "$changed" ]
}

up_to_date && exit 0

step "building the extension (release; the first time takes some minutes)"
# One extension at a time: a left-over abi3 module would be shadowed or shadow the new one.
rm -f python/keyfold/_core*.so "$stamp"
# The stamp bears the time when the build began: a file saved while it runs counts as newer.
touch "$stamp.began"
maturin develop --release ${FEATURES:+--features "$FEATURES"} || die "the build failed: see above"
{
    printf '%s\n' "$wanted"
    ls python/keyfold/_core*.so
} >"$stamp"
touch -r "$stamp.began" "$stamp"
step "the extension is built"
