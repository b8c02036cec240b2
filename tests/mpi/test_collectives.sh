#!/usr/bin/env bash
# Collectives of each communicator on 1 to 4 ranks.
set -u
. "${GFS_SRC:?}/tests/mpi/launch.sh"
bin=${GFS_BUILD:?}/tests/mpi

# cases N COMM PROGRAM: the program prints its own lines; a rank that dies prints none.
cases() {
    local n=$1 comm=$2 program=$3 line printed=0 status
    while IFS= read -r line; do
        case $line in
        'ok - '*) ok "${line#ok - }${4-}" 0 && printed=$((printed + 1)) ;;
        'not ok - '*) ok "${line#not ok - }${4-}" 1 && printed=$((printed + 1)) ;;
        'status '*) status=${line#status } ;;
        *) echo "# $line" ;;
        esac
    done < <(launch "$n" "$bin/$program" "$n" "$comm" 2>&1; echo "status $?")
    [ "$printed" -gt 0 ] && [ "${status:-1}" -eq 0 ]
    ok "$comm, $n ranks: ends well${4-}" $?
}

cases 1 self comm_cases
if have_mpi; then
    for n in 1 2 3 4; do
        cases "$n" node comm_cases
        cases "$n" mpi comm_cases
    done
    cases 3 mpi comm_cases_split ', messages of 1000 elements'
fi
finish
