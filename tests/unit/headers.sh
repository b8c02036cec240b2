#!/bin/sh
# Each header compiles alone, as C11, without a warning.
set -u
build=${GFS_BUILD:-.} src=${GFS_SRC:-.}
cc=${CC:-$(sed -n 's/^CC = //p' "$build/Makefile" 2>/dev/null)}
cc=${cc:-cc}
flags="-std=c11 -Wall -Wextra -Wstrict-prototypes -Werror -fsyntax-only"
foreign=$(sed -n 's/^\(JANSSON\|XXHASH\|SQLITE\|OPENBLAS\|MPI\|FUSE\|CUDA\|NCCL\)_CFLAGS = //p' \
    "$build/Makefile" 2>/dev/null | tr '\n' ' ')
failed=0 n=0

# Why a header cannot be compiled in this build; nothing if it can.
lacks() { # header
    if grep -q 'include <mpi.h>' "$1" && ! grep -q 'define HAVE_MPI 1' "$build/config.h"; then
        echo "built without MPI"
    elif [ "${1#*/fsmount/}" != "$1" ] && ! grep -q 'define HAVE_FUSE 1' "$build/config.h"; then
        echo "built without FUSE"
    elif [ "${1#*/device/cuda/}" != "$1" ] && [ "$cuda" = no ]; then
        echo "no CUDA headers here"
    fi
}

cuda=no
# shellcheck disable=SC2086 # the flags are words
if echo '#include <cublasLt.h>' | $cc $foreign -fsyntax-only -x c - 2>/dev/null; then cuda=yes; fi

set -- "$src"/src/*/*.h "$src"/src/comm/nccl/*.h "$src"/fsmount/*.h
for header in cuda kernels plugin_parts; do # the others are C++
    set -- "$@" "$src/src/device/cuda/$header.h"
done
for header in "$src"/src/device/cpu/*.h; do
    case $header in
    *_body.h | */simd_*.h) ;; # parts of the kernels_*.c that choose a processor
    *) set -- "$@" "$header" ;;
    esac
done
echo "1..$#"
for header; do
    n=$((n + 1))
    name=${header#"$src"/}
    why=$(lacks "$header")
    if [ -n "$why" ]; then
        echo "ok $n - $name # SKIP $why"
        continue
    fi
    # shellcheck disable=SC2086 # the flags are words
    if out=$(printf '#include "config.h"\n#include "%s"\n' "$header" |
        $cc $flags -D_GNU_SOURCE -I"$build" -I"$src/src" -I"$src" $foreign -x c - 2>&1); then
        echo "ok $n - $name compiles alone"
    else
        failed=1
        echo "not ok $n - $name compiles alone"
        printf '%s\n' "$out" | sed 's/^/# /'
    fi
done
exit $failed
