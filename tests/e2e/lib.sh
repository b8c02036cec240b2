# lib.sh - what the tests of whole runs share: a folder of their own, TAP, and an end that leaves nothing behind.
# shellcheck shell=bash

set -u
shopt -s nullglob
: "${GFS_BUILD:?is set by make check}" "${GFS_SRC:?is set by make check}"
gatherfs=$GFS_BUILD/gatherfs
work=$(mktemp -d "${TMPDIR:-/tmp}/gatherfs-e2e.XXXXXX") || exit 1
cd "$work" || exit 1
tests=0 failures=0

# Ends what this test started, by the pid in each lock, and takes its mounts away.
finish() {
    local lock pid dir
    trap - EXIT
    for lock in "$work"/*/lock; do
        pid=$(cat "$lock")
        dir=${lock%/lock}
        # Only our program, and only in this folder: a pid may have been given to another.
        if [ -n "$pid" ] && [ "$(readlink "/proc/$pid/exe")" = "$gatherfs" ] &&
            [ "$(readlink "/proc/$pid/cwd")" = "$work" ]; then
            kill -9 "$pid" 2>/dev/null
        fi
        ! grep -q " ${dir%.run} fuse\| ${dir%.run} .* - fuse.gatherfs" /proc/self/mountinfo || umount -l "${dir%.run}"
    done
    wait
    cd / && rm -rf "$work"
    echo "1..$tests"
    [ "$failures" = 0 ]
}
trap 'finish; exit $?' EXIT

say() { echo "# $*"; }
# A test: its name, then a command that must succeed.
ok() {
    local name=$1 status
    shift
    tests=$((tests + 1))
    "$@" >command.out 2>&1
    status=$?
    if [ $status = 0 ]; then
        echo "ok $tests - $name"
        return
    fi
    failures=$((failures + 1))
    echo "not ok $tests - $name"
    sed 's/^/# | /' command.out
    [ ! -s run.out ] || tail -n 15 run.out | sed 's/^/# run: /'
}
skip_all() {
    echo "1..0 # SKIP $*"
    trap - EXIT
    cd / && rm -rf "$work"
    exit 77
}

# Skips the whole test where nothing can be mounted; GFS_NO_MOUNT is the reason that tools/check found.
needs_mount() {
    [ -x "$GFS_BUILD/gatherfs-mountd" ] || skip_all "built without FUSE"
    [ -z "${GFS_NO_MOUNT-}" ] || skip_all "$GFS_NO_MOUNT"
    [ -c /dev/fuse ] || skip_all "there is no /dev/fuse"
    [ "$(id -u)" = 0 ] || command -v fusermount3 >/dev/null || skip_all "fusermount3 is not there"
}

# Waits for a command to succeed, at most SECONDS.
until_ok() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $deadline ] || { echo "did not come true: $*"; return 1; }
        sleep 0.05
    done
}

# start DIR OPTION...: a run in the background, without a mount; $! is in run_pid. Ready when it returns.
start() {
    local dir=$1
    shift
    timeout 120 "$gatherfs" run --no-mount --run-dir "$dir" "$@" >run.out 2>&1 &
    run_pid=$!
    until_ok 30 is_up_or_over "$dir"
}
is_up_or_over() { ! kill -0 "$run_pid" 2>/dev/null || state_is "$1" "paused|training|done|failed"; }
state_is() { "$gatherfs" status "$1" | grep -Eq "^state +($2)$"; }
step_is() { "$gatherfs" status "$1" | grep -Eq "^step +$2 of"; }
command_is() { "$gatherfs" command "$@"; }
# refused ERRNO DIR NAME VALUE [ID]
refused() {
    local errno=$1 text
    shift
    if text=$("$gatherfs" command "$@" 2>&1); then
        echo "was not refused"
        return 1
    fi
    echo "$text"
    grep -q "$errno:" <<<"$text"
}
ends() { # STATUS: the run ends with it, within 30 s
    local status
    wait "$run_pid"
    status=$?
    [ $status = "$1" ] || { echo "ended with $status, not $1"; return 1; }
}
said() { grep -Eq -- "$1" run.out || { echo "did not say: $1"; return 1; }; }
supervisor_of() { cat "$1/lock"; }
