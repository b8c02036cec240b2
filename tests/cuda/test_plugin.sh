#!/usr/bin/env bash
# Devices are found by name: without a driver, with one that does not fit, with plugins that are not of this build, and
# "auto" says why it is the CPU. Each program runs in a folder of its own, with the plugins that lie beside it.
# shellcheck disable=SC2086 # $driven is words
set -u
: "${GFS_BUILD:?is set by make check}" "${GFS_SRC:?is set by make check}"
work=$(mktemp -d "${TMPDIR:-/tmp}/gatherfs-plugin.XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 99
unset GFS_FAKE
tests=0 failures=0

ok() {
    local name=$1
    shift
    tests=$((tests + 1))
    if "$@" >command.out 2>&1; then
        echo "ok $tests - $name"
    else
        failures=$((failures + 1))
        echo "not ok $tests - $name"
        sed 's/^/# | /' command.out
    fi
}
skip() { tests=$((tests + 1)); echo "ok $tests - $1 # SKIP $2"; }

# A folder with the program and, as the plugin for GPUs, a file of the build or nothing.
folder() { # name, [file, name there]
    mkdir "$1" && cp "$GFS_BUILD/tests/cuda/find_device" "$1/" || exit 99
    [ $# -lt 3 ] || ln -s "$2" "$1/$3"
}
folder bare
folder faked "$GFS_BUILD/tests/cuda/fake_plugin.so" gatherfs_cuda.so
folder broken "$GFS_BUILD/config.h" gatherfs_cuda.so
# An object that is there in the name of the driver, and has nothing in it.
mkdir driver && cp "$GFS_BUILD/tests/cuda/fake_plugin.so" driver/libcuda.so.1
driven="env LD_LIBRARY_PATH=$work/driver"

# Runs what stands before "--", and looks for every word behind it in $1.
says() { # file, command..., --, word...
    local file=$1 command=() word
    shift
    while [ "$1" != -- ]; do command+=("$1"); shift; done
    shift
    timeout 60 "${command[@]}" >out 2>err
    status=$?
    cat out err
    for word; do grep -qF -- "$word" "$file" || { echo "no '$word' in $file"; return 1; }; done
}
# Exit status 1, nothing on stdout, one line on stderr.
refused() { says err "$@" && [ $status = 1 ] && [ ! -s out ] && [ "$(wc -l <err)" = 1 ]; }
found() { says out "$@" && [ $status = 0 ] && [ ! -s err ]; }

ok "cpu is found" found bare/find_device cpu --open -- cpu "collectives none"
ok "recording is found" found bare/find_device recording -- recording
ok "an unknown name is refused with those that are there" refused bare/find_device abacus -- \
    "no device 'abacus'" auto cpu cuda recording

if ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then
    skip "cuda without a driver is refused" "a driver is installed here"
    skip "auto without a driver is the CPU, and says why" "a driver is installed here"
else
    ok "cuda without a driver is refused" refused bare/find_device cuda -- "device cuda" "no NVIDIA driver" libcuda.so.1
    ok "auto without a driver is the CPU, and says why" found bare/find_device auto -- "cpu: no GPU is used" libcuda.so.1
fi

ok "cuda without a plugin is refused" refused $driven bare/find_device cuda -- gatherfs_cuda.so "built without it"
ok "a plugin that is no object is refused" refused $driven broken/find_device cuda -- gatherfs_cuda.so
for wrong in abi:interface size:"laid out" version:9.9.9 name:abacus null:interface none:"the fake has no GPU"; do
    export GFS_FAKE=${wrong%%:*}
    ok "a plugin that is wrong in $GFS_FAKE is refused" refused $driven faked/find_device cuda -- "${wrong#*:}"
    ok "auto is then the CPU, and says why: $GFS_FAKE" found $driven faked/find_device auto -- "cpu: no GPU is used" "${wrong#*:}"
done
unset GFS_FAKE

# ---- the plugin that nvcc makes

one_symbol() { # object
    nm -D --defined-only "$1" | awk '{ print $3 }' >symbols
    cat symbols
    [ "$(cat symbols)" = gatherfs_device_plugin ]
}
if [ ! -e "$GFS_BUILD/gatherfs_cuda.so" ]; then
    for name in "shows one symbol" "is loaded, and refuses a driver that is none" "refuses the toolkit's stub"; do
        skip "the plugin for GPUs $name" "built without CUDA"
    done
else
    folder real "$GFS_BUILD/gatherfs_cuda.so" gatherfs_cuda.so
    ok "the plugin for GPUs shows one symbol" one_symbol "$GFS_BUILD/gatherfs_cuda.so"
    ok "the plugin for GPUs is loaded, and refuses a driver that is none" refused $driven real/find_device cuda -- \
        "device cuda" cudaGetDeviceCount
    ok "auto is the CPU with a driver that is none" found $driven real/find_device auto -- "cpu: no GPU is used" cudaGetDeviceCount
    libraries=$(sed -n 's/^CUDA_LIBS = \([^ ]*\)\/libcudart_static\.a.*/\1/p' "$GFS_BUILD/Makefile")
    if [ -e "$libraries/stubs/libcuda.so" ]; then
        mkdir stub && ln -s "$libraries/stubs/libcuda.so" stub/libcuda.so.1
        ok "the plugin for GPUs refuses the toolkit's stub, and says what it is" \
            refused env LD_LIBRARY_PATH="$work/stub" real/find_device cuda -- cudaGetDeviceCount cudaErrorStubLibrary
    else
        skip "the plugin for GPUs refuses the toolkit's stub" "the toolkit has none"
    fi
fi

# ---- the emulated one

if [ ! -e "$GFS_BUILD/gatherfs_emulated.so" ]; then
    skip "the emulated GPU is opened" "built without --enable-emulation"
else
    folder emulated "$GFS_BUILD/gatherfs_emulated.so" gatherfs_emulated.so
    em=emulated/find_device
    ok "the emulated plugin shows one symbol" one_symbol "$GFS_BUILD/gatherfs_emulated.so"
    ok "the emulated GPU is opened" found $em emulated --open -- emulated "collectives nccl"
    ok "no GPU is said" refused env EMU_NO_DEVICE=1 $em emulated -- cudaGetDeviceCount CUDA_VISIBLE_DEVICES
    ok "too old a driver is said" refused env EMU_DRIVER_OLD=1 $em emulated -- cudaGetDeviceCount
fi

echo "1..$tests"
[ "$failures" = 0 ]
