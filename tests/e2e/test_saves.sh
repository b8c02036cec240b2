#!/usr/bin/env bash
# kill -9 at random moments during 30 saves, and a disk that is too small: whatever is listed is whole.
. "${GFS_SRC:?is set by make check}/tests/e2e/lib.sh" || exit 1

ranks=2
[ "${GFS_MPI_NAME:-openmpi}" != none ] || ranks=1
for i in $(seq 400); do echo "$i bottles of beer on the wall, $i bottles of beer"; done >text
tiny=(--model gpt2:tiny --data text --ranks "$ranks" --global-batch 4 --seq-len 32 --set threads=1 --set keep=0)
seed=${GFS_SEED:-$$}
RANDOM=$seed
say "seed $seed: GFS_SEED repeats it"

ranks_of() { pgrep -f "gatherfs-rank --run-dir $work/$1 "; }
launcher_of() { pgrep -P "$(supervisor_of "$1")" -f -- "gatherfs-rank --run-dir $work/$1 "; }
ensure_up() {
    if ! kill -0 "$run_pid" 2>/dev/null; then start saves "${tiny[@]}" --steps 100000 --paused; fi
    until_ok 30 state_is saves "paused|training"
}

during=0 unanswered=0
verify_all() { "$gatherfs" ckpt verify saves >verify.out 2>&1 || { cat verify.out; return 1; }; }
save_and_kill() { # NUMBER
    local pid pids
    ensure_up || return 1
    "$gatherfs" command saves step 1 >/dev/null 2>&1
    mapfile -t pids < <(ranks_of saves; supervisor_of saves; launcher_of saves)
    "$gatherfs" command saves snapshot "s$1" >command.txt 2>&1 &
    local saving=$!
    sleep "0.0$((RANDOM % 3))$((RANDOM % 10))"
    pid=${pids[RANDOM % ${#pids[@]}]}
    [ ! -d "saves/snapshots/s$1" ] && [ -d "saves/snapshots/.tmp-s$1" ] && during=$((during + 1))
    [ -z "$pid" ] || kill -9 "$pid" 2>/dev/null
    sleep 0.1
    verify_all || return 1
    # Who was told that it is durable finds it.
    if wait "$saving"; then
        [ -s "saves/snapshots/s$1/manifest.json" ] || { echo "s$1 was answered and is not listed"; return 1; }
    else
        unanswered=$((unanswered + 1)) # its supervisor is dead
    fi
    verify_all
}

start saves "${tiny[@]}" --steps 100000 --paused
ok "a first snapshot" "$gatherfs" command saves snapshot first
whole=0
for i in $(seq 30); do
    if save_and_kill "$i" >save.out 2>&1; then whole=$((whole + 1)); else sed 's/^/# /' save.out; fi
done
listed=$("$gatherfs" ckpt list saves | grep -c '^[a-z]')
say "$during kills came while a file was being written, $unanswered saves had no answer, $listed snapshots are listed"
ok "every listed snapshot verifies after each of 30 kills" [ $whole = 30 ]
ensure_up
ok "... and the run goes on" "$gatherfs" command saves step 2
ok "... and saves" "$gatherfs" command saves snapshot last
ok "... nothing half written is left" sh -c '! ls -a saves/snapshots | grep -q "^\.tmp"'
kill -TERM "$run_pid"
ok "... and ends well" ends 0

# One rank: the launcher of more has files of its own that are larger.
(ulimit -f 2048 && exec timeout 120 "$gatherfs" run --no-mount --run-dir limited "${tiny[@]}" --ranks 1 --steps 100000 --paused) >run.out 2>&1 &
run_pid=$!
until_ok 30 is_up_or_over limited
ok "files that may not grow, and memory that is shared: a snapshot is refused" refused ENOBUFS limited snapshot one
ok "... training goes on" "$gatherfs" command limited step 2
pid=$(supervisor_of limited)
kill -INT "$pid"
ok "... the last snapshot can't be written either" until_ok 10 said "could not be written.*no memory"
sleep 0.5
kill -INT "$pid"
ok "... the second Ctrl-C ends it" ends 1

if [ "$(id -u)" = 0 ] && unshare -m --propagation unchanged true 2>/dev/null; then
    mkdir small
    mount -t tmpfs -o size=16m,mode=0700 gatherfs-test small
    # One rank: the launcher of more keeps files of its own there.
    start small/run "${tiny[@]}" --ranks 1 --steps 100000 --paused
    ok "a snapshot fits into 16 MB" "$gatherfs" command small/run snapshot one
    ok "a second one does not" refused ENOSPC small/run snapshot two
    ok "... the first is whole" "$gatherfs" ckpt verify small/run
    ok "... the second is not listed" sh -c "! '$gatherfs' ckpt list small/run | grep -q two"
    ok "... training goes on" "$gatherfs" command small/run step 2
    pid=$(supervisor_of small/run)
    kill -TERM "$pid"
    ok "a run whose last snapshot does not fit is not thrown away" until_ok 10 state_is small/run paused
    ok "... and says so" grep -qi "space" run.out
    kill -INT "$pid"
    sleep 0.5
    kill -INT "$pid" 2>/dev/null
    ok "... the second Ctrl-C ends it" ends 1
    ok "... the snapshot is still whole" "$gatherfs" ckpt verify small/run
    umount -l small
    if [ "${GFS_MPI_NAME:-openmpi}" = openmpi ]; then
        mount -t tmpfs -o size=4m,mode=0700 gatherfs-test small
        ok "too little room for the launcher is said at once" sh -c \
            "! timeout 20 '$gatherfs' run --no-mount --run-dir small/run --data text --ranks 2 >start.out 2>&1 && grep -q 'make room' start.out"
        umount -l small
    fi
else
    say "not root: no tmpfs of 16 MB"
fi
