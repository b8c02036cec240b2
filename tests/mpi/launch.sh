# launch.sh - sourced by the tests of this folder: starts ranks, and prints TAP.

tests=0
failures=0

# ok NAME STATUS: one line of TAP.
ok() {
    tests=$((tests + 1))
    if [ "$2" -eq 0 ]; then
        echo "ok $tests - $1"
    else
        failures=$((failures + 1))
        echo "not ok $tests - $1"
    fi
}

finish() {
    echo "1..$tests"
    [ "$failures" -eq 0 ]
    exit
}

have_mpi() { [ -n "${GFS_MPI_LAUNCHER-}" ]; }

# launch N PROGRAM ARGUMENT...: N ranks; one needs no launcher. What takes longer than LAUNCH_SECONDS
# hangs.
launch() {
    local n=$1
    shift
    local command=("$@")
    if [ "$n" -gt 1 ]; then
        case $GFS_MPI_NAME in
        openmpi) command=("$GFS_MPI_LAUNCHER" --oversubscribe --bind-to none -n "$n" "$@") ;;
        *) command=("$GFS_MPI_LAUNCHER" -n "$n" "$@") ;;
        esac
    fi
    timeout --kill-after=5 "${LAUNCH_SECONDS:-120}" "${command[@]}" </dev/null
}
