#!/bin/sh
# The linker of wheels: zig's, which links against the symbols of an old glibc whatever the machine has.
#
# C++'s and GCC's run-time libraries stay the system's own (manylinux allows both): zig would put its
# own copies of them into the extension, whose exceptions the kernels of other libraries don't share.
set -eu

for argument in "$@"; do
    shift
    case $argument in
    # zig brings its own lld.
    -fuse-ld=* | -B*) continue ;;
    -lstdc++) argument=$(c++ -print-file-name=libstdc++.so.6) ;;
    -lgcc_s) argument=$(cc -print-file-name=libgcc_s.so.1) ;;
    esac
    set -- "$@" "$argument"
done
exec "${PYO3_PYTHON:-python3}" -m ziglang cc -target "x86_64-linux-gnu.${KEYFOLD_GLIBC:-2.28}" \
    -Wl,--allow-shlib-undefined "$@"
