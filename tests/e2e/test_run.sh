#!/usr/bin/env bash
# Real ranks and a real mount: start, commands, the death of each process, the end.
# What `sh -c` runs is expanded there.
# shellcheck disable=SC2016
. "${GFS_SRC:?is set by make check}/tests/e2e/lib.sh" || exit 1

needs_mount

ranks=2
[ "${GFS_MPI_NAME:-openmpi}" != none ] || ranks=1
for i in $(seq 400); do echo "$i bottles of beer on the wall, $i bottles of beer"; done >text
tiny=(--model gpt2:tiny --data text --ranks "$ranks" --global-batch 4 --seq-len 32 --set threads=1)

start_mounted() { # MNT OPTION...
    local mnt=$1
    shift
    timeout 120 "$gatherfs" run "$@" "$mnt" >run.out 2>&1 &
    run_pid=$!
    until_ok 40 is_up_or_over "$mnt.run"
}
value() { cat "$1/status/$2"; }
value_is() { [ "$(value "$1" "$2")" = "$3" ]; }
is_mounted() { grep -q " $work/$1 " /proc/self/mountinfo; }
is_gone() { ! is_mounted "$1"; }
run_ends() { ends "$1" && is_gone mnt; }
supervisor() { cat mnt.run/lock; }

start_mounted mnt "${tiny[@]}" --steps 500 --paused
ok "the mount is there" is_mounted mnt
ok "... and named first" said "state is under $work/mnt"
ok "the state is paused" value_is mnt state paused
ok "echo 3 > control/step" sh -c 'echo 3 >mnt/control/step'
ok "... returns at step 3" value_is mnt step 3
ok "... with a loss" grep -Eq '^[0-9]+\.[0-9]+$' mnt/status/loss
ok "ranks/0/memory has what memory is for" grep -Eq '^(host|device)/activations[[:space:]][1-9]' mnt/ranks/0/memory
ok "... and ranks/0/device what computes" grep -Eq '^device[[:space:]](cpu|cuda)$' mnt/ranks/0/device
ok "... as status/device" sh -c '[ "device$(printf "\t")$(cat mnt/status/device)" = "$(head -n 1 mnt/ranks/0/device)" ]'
ok "a row a step" sh -c '[ $(wc -l <mnt/status/metrics.tsv) = 4 ]'
ok "a snapshot" sh -c 'echo before >mnt/control/snapshot && test -s mnt/snapshots/before/hf/model.safetensors'
ok "... is whole" "$gatherfs" ckpt verify mnt.run before
ok "mkdir pins/p" mkdir mnt/pins/p
weight=params/transformer.h.0.attn.c_attn.weight.npy
ok "... can be read" sh -c "cat mnt/pins/p/$weight >pinned"
ok "... and is what is live" cmp pinned mnt/live/$weight
ok "rmdir pins/p" rmdir mnt/pins/p
ok "a command that fails" sh -c '! echo nothing >mnt/control/restore'
ok "... is explained" grep -q "no such snapshot" mnt/status/last_error
ok "mkdir snapshots/x is refused" sh -c '! mkdir mnt/snapshots/x'
ok "a second run on this mount is refused" \
    sh -c "'$gatherfs' run --run-dir other ${tiny[*]} mnt 2>&1 | grep -q 'another run is mounted'"

cpu_of_all() { # in ticks
    local pid sum=0 stat
    for pid in $(supervisor) $(pgrep -P "$(supervisor)") $(pgrep -f "gatherfs-rank --run-dir $work/mnt.run "); do
        read -ra stat < <(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null) || continue
        sum=$((sum + stat[11] + stat[12]))
    done
    echo $sum
}
is_idle() {
    local before after
    before=$(cpu_of_all)
    sleep 5
    after=$(cpu_of_all)
    echo "$((after - before)) ticks in 5 s"
    [ $((after - before)) -le 5 ]
}
ok "a paused run uses under 1% of a core" is_idle

survives_mountd() {
    echo 100 >mnt/control/step &
    local writer=$! daemon
    sleep 0.05
    daemon=$(pgrep -P "$(supervisor)" gatherfs-mountd) && kill -9 "$daemon" || return
    wait $writer && value_is mnt step 103
}
ok "a step that waits survives the death of the daemon" survives_mountd

survives_rank() {
    echo 150 >mnt/control/step &
    local writer=$!
    sleep 0.05
    kill -9 "$(pgrep -f "gatherfs-rank --run-dir $work/mnt.run " | tail -n 1)" || return
    wait $writer && value_is mnt step 253
}
ok "a step that waits survives the death of a rank" survives_rank
ok "... started again from the snapshot" grep -q "from snapshot before" mnt/status/events
ok "... as another attempt" value_is mnt attempt 2

exec 7<mnt/README
(cd mnt/status && exec sleep 20) &
sleeper=$!
ok "stop, with files open" sh -c "echo 1 >mnt/control/stop"
ok "... ends the run, unmounted" run_ends 0
exec 7<&-
kill $sleeper
ok "... with a snapshot of the last step" test -d mnt.run/snapshots/step-0000000253

start_mounted mnt --paused
ok "it goes on where it was" value_is mnt step 253
ok "umount ends the run" umount mnt
ok "... exit 0" run_ends 0
start_mounted mnt
kill -INT "$(supervisor)"
ok "Ctrl-C ends it: exit 0" run_ends 0
start_mounted mnt --paused
kill -9 "$(supervisor)"
wait
ok "a killed supervisor takes all with it" until_ok 5 sh -c "! pgrep -f '[g]atherfs-rank --run-dir $work/mnt.run '"
ok "... the mount too, or it is dead" sh -c '! ls mnt/status >/dev/null 2>&1 || ! test -e mnt/status'
start_mounted mnt --paused
ok "the next start sweeps" value_is mnt state paused
ok "gatherfs stop MNT" "$gatherfs" stop mnt
ok "... exit 0" run_ends 0

# ---- a rank that is there and says nothing
start_mounted quiet "${tiny[@]}" --steps 1000 --set comm_timeout=1 --paused
echo 3 >quiet/control/step
echo saved >quiet/control/snapshot
kill -STOP "$(cat quiet/ranks/$((ranks - 1))/pid)"
ok "a rank that is stopped for long is replaced" timeout 40 sh -c "echo 2 >quiet/control/step"
ok "... with words" said "gave no sign of life for 10 s: the ranks are started again"
ok "... and the steps are made" value_is quiet step 5
ok "... it ends" "$gatherfs" stop quiet
wait

# ---- offline
ok "gatherfs mount" "$gatherfs" mount --background mnt.run off
ok "... says offline" value_is off state offline
ok "... shows the snapshots" cmp pinned off/snapshots/before/$weight
ok "... and ends with umount" umount off
ok "... its process too" until_ok 5 sh -c "! pgrep -f '[g]atherfs mount --background mnt.run off'"

# ---- what is refused
mkdir full && touch full/file
ok "a mountpoint with files is refused" sh -c "'$gatherfs' run --run-dir r ${tiny[*]} full 2>&1 | grep -q 'full is not empty'"
ok "... and left alone" test -e full/file
echo x >short
ok "a text that is too short is refused in one line" sh -c "
    timeout 60 '$gatherfs' run --model gpt2:tiny --data short --ranks 1 short.mnt >short.out 2>&1
    [ \$? = 1 ] && [ \$(grep -c 'short' short.out) -le 3 ] && grep -q 'error' short.out"
ok "... and leaves no mount" is_gone short.mnt
