#!/bin/sh
# The small exploration: the protocol holds, and no rule of it can be left out unnoticed.
#
# usage: run-small.sh [PROGRAM]; without it the program is looked for where make leaves it.
set -u

here=$(dirname "$0")
program=${1:-${GFS_BUILD:-.}/tests/takes-model/takes-model}
[ -x "$program" ] || program=$here/takes-model
if [ ! -x "$program" ]; then
    echo "1..0 # SKIP takes-model is not built"
    exit 77
fi

out=$(mktemp) || exit 99
trap 'rm -f "$out"' EXIT
trap 'exit 99' HUP INT TERM
n=0
failed=0

# report STATUS WANTED STATEMENT: one line of the protocol of tests, and the output if it failed
report() {
    n=$((n + 1))
    if [ "$1" -eq "$2" ]; then
        echo "ok $n - $3"
    else
        echo "not ok $n - $3"
        echo "# exit status $1, wanted $2"
        sed 's/^/# /' "$out" | tail -n 80
        failed=1
    fi
}

rules=$("$program" --list-rules | cut -d' ' -f1)
echo "1..$(($(echo "$rules" | wc -l) + 1))"
"$program" >"$out" 2>&1
status=$?
sed 's/^/# /' "$out" | grep ' holds$'
report $status 0 takes_are_of_one_version_and_always_answered
for rule in $rules; do
    "$program" --without "$rule" >"$out" 2>&1
    status=$?
    grep '^violation:' "$out" | sed 's/^/# /'
    # a bound of the model that is too small is no counterexample
    grep -q '^violation: bound' "$out" && status=3
    report $status 1 "leaving_out_$(echo "$rule" | tr - _)_is_noticed"
done
exit $failed
