#!/usr/bin/env bash
# The supervisor with a double in place of the ranks: commands, resuming, faults.
# What `sh -c` runs is expanded there.
# shellcheck disable=SC2016
. "${GFS_SRC:?is set by make check}/tests/e2e/lib.sh" || exit 1
export GATHERFS_RANK_PROGRAM=$GFS_BUILD/tests/e2e/fake_rank
echo text >data
run=(--data data --ranks 1)

# ---- commands
start a "${run[@]}" --steps 1000 --paused
ok "a run started with --paused rests at step 0" step_is a 0
ok "step N returns when N steps are made" command_is a step 3
ok "... and the run rests there" step_is a 3
ok "... paused" state_is a paused
ok "target S is the absolute step" command_is a target 5
ok "target S again does no harm" command_is a target 5
ok "an id that comes again is the same command" command_is a step 2 once
ok "... it was" command_is a step 2 once
ok "... made once" step_is a 7
ok "an id with another value is EINVAL" refused EINVAL a step 3 once
ok "step 0 is ERANGE" refused ERANGE a step 0
ok "step -1 is ERANGE" refused ERANGE a step -1
ok "step x is EINVAL" refused EINVAL a step x
ok "beyond the target is ERANGE" refused ERANGE a step 100000
ok "... with what to do" grep -q "larger --steps" run.out
ok "a step that overflows is ERANGE" refused ERANGE a step 18446744073709551615
ok "an unknown command is EINVAL" refused EINVAL a stpe 1
ok "run 2 is ERANGE" refused ERANGE a run 2
ok "a knob is set" command_is a lr 5e-4
ok "a knob's bad syntax is EINVAL" refused EINVAL a lr fast
ok "a knob's bad value is ERANGE" refused ERANGE a lr -1
ok "a fixed knob is no command" refused EINVAL a seed 2
ok "a snapshot is made" command_is a snapshot first
ok "... under its name" test -f a/snapshots/first/manifest.json
ok "the same name is EEXIST" refused EEXIST a snapshot first
ok "a bad name is EINVAL" refused EINVAL a snapshot ../x
ok "a pin is made" command_is a pin p
ok "a second is more than max_pins" refused ENOBUFS a pin q
ok "a pin is let go" command_is a rmdir-pin p
ok "once" refused ENOENT a rmdir-pin p
ok "restoring what is not there is ENOENT" refused ENOENT a restore nothing
ok "steps go on" command_is a step 3
ok "a snapshot is restored" command_is a restore first
ok "... with its step" step_is a 7

waits_then() { # EXPECTED COMMAND...: a waiting step ends with it after the command
    local expected=$1 status
    shift
    "$gatherfs" command a step 900 >waiting.out 2>&1 &
    local waiting=$!
    sleep 0.3
    "$@" || return
    wait $waiting
    status=$?
    cat waiting.out
    if [ "$expected" = 0 ]; then [ $status = 0 ]; else grep -q "$expected:" waiting.out; fi
}
ok "run 0 ends a step that waits: ECANCELED" waits_then ECANCELED "$gatherfs" command a run 0
ok "abort ends it: ECANCELED" waits_then ECANCELED "$gatherfs" command a abort 1
ok "... and the run pauses" until_ok 5 state_is a paused
ok "restore ends it: ECANCELED" waits_then ECANCELED "$gatherfs" command a restore first
two_at_once() {
    local before
    before=$("$gatherfs" status a | awk '$1 == "step" { print $2 }')
    "$gatherfs" command a step 5 & local one=$!
    "$gatherfs" command a step 8 & local two=$!
    wait $one && wait $two && step_is a $((before + 8))
}
ok "run 0" command_is a run 0
ok "... pauses" until_ok 5 state_is a paused
ok "two steps at once are both reached" two_at_once
ok "a snapshot is removed" command_is a rmdir-snapshot first
ok "... durably" test ! -e a/snapshots/first
ok "no temporary or deleted folder stays" until_ok 5 sh -c '! ls -A a/snapshots | grep -q "^\."'
ok "stop ends the run" "$gatherfs" stop a
ok "... with exit 0" ends 0
ok "... and a snapshot" sh -c 'ls a/snapshots | grep -q "^step-"'
ok "the socket is gone" test ! -e a/socket

# ---- resuming
last=$(awk 'END { print $1 }' a/metrics.tsv)
start a --paused
ok "the same directory goes on at the same step" step_is a "$last"
ok "knobs are kept" grep -qx "lr = 0.0005" a/config
ok "a second supervisor is refused, with the pid of the first" \
    sh -c "'$gatherfs' run --no-mount --run-dir a 2>&1 | grep -q \"in use by process \$(cat a/lock)\""
kill -9 "$(supervisor_of a)"
ok "a killed supervisor leaves no rank" until_ok 5 sh -c "! pgrep -f '[f]ake_rank --run-dir $work/a '"
wait
ok "a changed fixed knob is refused by name" \
    sh -c "'$gatherfs' run --no-mount --run-dir a --seed 9 2>&1 | grep -q 'seed is fixed for a run: it was 1, and now is 9'"
ok "changed data is refused" \
    sh -c "FAKE_FINGERPRINT=2 '$gatherfs' run --no-mount --run-dir a 2>&1 | grep -q 'data is fixed for a run'"
printf 'half a row' >>a/metrics.tsv
start a --paused
ok "a row cut short is taken away" sh -c "! grep -q half a/metrics.tsv"
ok "stop again" "$gatherfs" stop a
ends 0
start a "${run[@]}" --new --seed 9 --paused
ok "--new starts over" step_is a 0
ok "... and keeps the old run" test -f a.1/config
"$gatherfs" stop a
ends 0

# ---- the end of a run
start b "${run[@]}" --steps 10
ok "the target is reached: exit 0" ends 0
ok "... with a snapshot of the last step" test -d b/snapshots/step-0000000010
ok "a row a step" sh -c "[ \$(wc -l <b/metrics.tsv) = 11 ]"
ok "started again there is nothing to do" sh -c "timeout 20 '$gatherfs' run --no-mount --run-dir b | grep -q 'nothing to do'"
start b --steps 20 --stay
ok "--stay: done" until_ok 20 state_is b "done"
ok "... at the target" step_is b 20
ok "... where there is nothing to run" refused ERANGE b run 1
ok "... but a snapshot to restore" command_is b restore step-0000000010
ok "... and to go on from" command_is b step 3
"$gatherfs" stop b
ends 0

# ---- devices
start g --data data --paused --device cpu --ranks 1
ok "the device is the one that rank 0 names" sh -c "'$gatherfs' status g | grep -qx 'device *fake'"
command_is g step 2 >/dev/null
ok "without a peak there is no MFU" sh -c "! '$gatherfs' status g | grep -q MFU"
"$gatherfs" stop g
ends 0
# 64 tokens in 20 ms are 3200 a second, at 1000 each.
FAKE_PEAK=32000000 FAKE_NOTE='no GPU is used: a note' start g --paused --log-every 1
ok "what a rank says of its device is told" said '^no GPU is used: a note$'
ok "a knob that is no rank's business" command_is g step 2
ok "with a peak there is" sh -c "'$gatherfs' status g | grep -qx 'MFU *10%'"
ok "... in the line of progress too" said 'tokens/s  MFU 10%'
"$gatherfs" stop g
ends 0
FAKE_GPUS=1 start h --data data --paused
ok "without --ranks there is one a GPU" sh -c "'$gatherfs' status h | grep -q '^ranks *1 '"
ok "... which is kept" grep -qx "ranks = 1" h/config
"$gatherfs" stop h
ends 0
FAKE_GPUS=0 start h --paused
ok "... also where there is none later" state_is h paused
"$gatherfs" stop h
ends 0
if [ "${GFS_MPI_NAME:-openmpi}" != none ]; then
    # The double fits no world of several.
    FAKE_GPUS=3 start h --ranks 0
    ok "--ranks 0 chooses again" said 'of 3 ranks starts'
    ends 1
    FAKE_GPUS=3 start i --data data --device cpu
    ok "the CPU has as many ranks as ever" said 'of 2 ranks starts'
    ends 1
fi
start i --data data --device cuda
ok "a GPU that is asked for and not there is an error: exit 1" ends 1
ok "... with the reason" said 'device = cuda: no GPU: the double has none'
start i --data data --ranks 1 --reduce-dtype bf16
ok "settings that do not fit are refused: exit 1" ends 1
ok "... with what does" said 'reduce_dtype = bf16, and dtype = f32: expected f32, or bf16 for both'
start i --data data --ranks 1 --offload optimizer=disk
ok "so is a bad offload" ends 1
ok "... with what is expected" said 'expected none, optimizer=host or optimizer=file:DIR'
ok "... before anything is started" sh -c '! grep -q starts run.out'
start i --data data --ranks 1 --paused --offload optimizer=file:moments
ok "the directory of an offload is kept absolute" grep -qx "offload = optimizer=file:$work/moments" i/config
"$gatherfs" stop i
ends 0

# ---- faults
FAKE_BYE=22:'data/x: shorter than one sequence' start c "${run[@]}" 
ok "an error of the configuration is final: exit 1" ends 1
ok "... and said once" sh -c '[ $(grep -c "shorter than one sequence" run.out) = 1 ]'
ok "... and nothing is fixed yet" test ! -e c/config
FAKE_WORLD=3 start c "${run[@]}"
ok "ranks of another MPI are noticed" ends 1
ok "... in words" said "finds itself in a world of 3, not of 1"

kill_rank() { # DIR: the one rank of a run
    local pid
    pid=$(pgrep -P "$(supervisor_of "$1")" fake_rank) && kill -9 "$pid"
}
start d "${run[@]}" --paused
command_is d step 4 >/dev/null
command_is d snapshot four >/dev/null
restarts() {
    "$gatherfs" command d step 30 & local waiting=$!
    sleep 0.2
    kill_rank d || return
    wait $waiting && step_is d 34
}
ok "a step survives the death of the rank" restarts
ok "... which started again from the newest snapshot" said "from snapshot four"
for i in 2 3; do
    kill_rank d
    ok "restart $i" until_ok 10 grep -q "epoch $((i + 1)) is ready" run.out
done
command_is d snapshot five >/dev/null
for i in 4 5 6; do
    kill_rank d
    ok "restart $i, after a new snapshot" until_ok 10 grep -q "epoch $((i + 1)) is ready" run.out
done
"$gatherfs" command d target 900 >waiting.out 2>&1 & waiting=$!
sleep 0.2
kill_rank d
ok "three restarts without a new snapshot: exit 1" ends 1
wait $waiting
ok "... what waited gets EIO and the reason" grep -q "EIO: .*the run has failed: " waiting.out

FAKE_BROKEN=five start d "${run[@]}" --paused
ok "a damaged snapshot is named, an older one is tried" said "snapshot five is damaged"
ok "... and taken" step_is d 4
"$gatherfs" stop d
ends 0

export FAKE_FULL=$work/full FAKE_POOR=$work/poor
start e "${run[@]}" --paused
command_is e step 2 >/dev/null
touch full
ok "a full disk: the snapshot gets ENOSPC" refused ENOSPC e snapshot x
ok "... and leaves nothing" sh -c '[ -z "$(ls -A e/snapshots)" ]'
ok "... and the run goes on" command_is e step 1
ok "stop with a full disk fails" sh -c "! timeout 20 '$gatherfs' stop e"
ok "... and the run is paused, not thrown away" state_is e paused
rm full
touch poor
ok "no memory for a pin: ENOBUFS" refused ENOBUFS e pin p
rm poor
ok "stop with room again" "$gatherfs" stop e
ok "... exit 0" ends 0
start e --paused
command_is e step 1 >/dev/null
touch full
kill -INT "$(supervisor_of e)"
ok "Ctrl-C with a full disk pauses" until_ok 10 said "could not be written"
sleep 0.3 # two signals within 0.2 s are one wish
kill -INT "$(supervisor_of e)"
ok "a second Ctrl-C ends at once: exit 1" ends 1
rm full

FAKE_STEP_MS=2000 start f "${run[@]}"
kill -TERM "$(supervisor_of f)"
ok "stopping waits for the step" until_ok 5 state_is f stopping
sleep 0.3
kill -INT "$(supervisor_of f)"
ok "a second signal ends at once: exit 1" ends 1
start f "${run[@]}" --steps 100000 --set snapshot_every=1 --set keep=2
ok "automatic snapshots" until_ok 15 sh -c '[ $(grep -c "of step .* is durable" run.out) -ge 4 ]'
ok "... keep only the newest two" sh -c '[ $(ls f/snapshots | grep -c ^step-) -le 2 ]'
kill -HUP "$(supervisor_of f)"
ok "a hangup stops: exit 0" ends 0
