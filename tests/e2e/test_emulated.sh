#!/usr/bin/env bash
# The whole program with its state on an emulated GPU: run, look, save, lose a rank, resume elsewhere, devices that fail.
. "${GFS_SRC:?is set by make check}/tests/e2e/lib.sh" || exit 1

[ -x "$GFS_BUILD/gatherfs_emulated.so" ] || skip_all "configured without --enable-emulation"
for i in $(seq 400); do echo "$i bottles of beer on the wall, $i bottles of beer"; done >text
cat >config.json <<'END'
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 257, "n_positions": 16, "n_embd": 24, "n_layer": 2,
 "n_head": 3, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": true,
 "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 256, "eos_token_id": 256}
END
ranks=2
[ "${GFS_MPI_NAME:-openmpi}" != none ] || ranks=1
common=(--model ./config.json --data text --global-batch 4 --seq-len 13 --set threads=1 --steps 1000 --paused)
small=("${common[@]}" --device emulated --ranks $ranks)

loss_now() { "$gatherfs" status "$1" | awk '$1 == "loss" { print $2 }'; }
loss_at() { # DIR STEP
    sqlite3 "$1/run.db" "SELECT loss FROM steps WHERE step = $2 ORDER BY epoch DESC LIMIT 1"
}
# close A B: two numbers to 1e-5 of each other
close() { awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; if (d < 0) d = -d; print a, b; exit !(a > 1 && d <= 2e-5 * a) }'; }
# What each rank wrote to a snapshot, after the page of header that names it.
shards_sum() { (cd "$1/snapshots/$2" && for f in rank-*; do tail -c +4097 "$f"; done | sha256sum); }
stop() {
    kill -TERM "$run_pid"
    ends 0
}
does_not_start() { # PATTERN, then environment and options
    local pattern=$1
    shift
    run_pid=
    env "$@" timeout 60 "$gatherfs" run --no-mount --run-dir refused.$RANDOM "${small[@]}" >run.out 2>&1
    [ $? = 1 ] && said "$pattern"
}

# ---- what a GPU says when it can't be used

ok "no GPU: said in a line" does_not_start "no CUDA-capable device" EMU_NO_DEVICE=1
ok "a driver that is too old: said in a line" does_not_start "driver" EMU_DRIVER_OLD=1
ok "a GPU in exclusive use: said in a line" does_not_start "busy|exclusive|unavailable" EMU_EXCLUSIVE=1
ok "a GPU without memory: what it was for" does_not_start "cudaMalloc .* out of memory" EMU_MEMORY=1000000
# The service thread runs already, and has nothing to do with memory that is taken back again.
fails_as_it_starts() {
    local n
    for n in 28 32 34 $(seq 80 4 110); do
        does_not_start "^error: .*: cudaError|^error: .*[(]cudaError" EMU_FAIL_AT="$n:cudaErrorMemoryAllocation" || return 1
    done
}
ok "a GPU that fails as memory is made ready: said, wherever it is" fails_as_it_starts

# ---- train, save, lose a rank

start cpu "${common[@]}" --device cpu --ranks $ranks
ok "the CPU trains" "$gatherfs" command cpu step 6
stop
start gpu "${small[@]}"
ok "the emulated GPU trains" "$gatherfs" command gpu step 4
ok "... saves" "$gatherfs" command gpu snapshot four
ok "... a whole snapshot" "$gatherfs" ckpt verify gpu four
rank=$(pgrep -f "gatherfs-rank --run-dir $work/gpu " | tail -n 1)
kill -9 "$rank"
ok "a rank is killed: the run goes on from its snapshot" until_ok 60 eval 'state_is gpu paused && step_is gpu 4'
ok "... with the same state" "$gatherfs" command gpu snapshot again
ok "... bit for bit" [ "$(shards_sum gpu four)" = "$(shards_sum gpu again)" ]
ok "... and trains" "$gatherfs" command gpu step 2
ok "the loss is that of the CPU" close "$(loss_now gpu)" "$(loss_at cpu 6)"
ok "it ends" stop

# ---- resume where there is another device, and another number of ranks

cp -r gpu moved
start moved --device cpu --ranks 1 --paused
ok "its last snapshot resumes on a CPU" step_is moved 6
ok "... and trains" "$gatherfs" command moved step 2
ok "... and ends" stop
start gpu --offload optimizer=host --paused
ok "it resumes with its optimizer state in host memory" "$gatherfs" command gpu step 2
ok "... with the loss of the CPU" close "$(loss_now gpu)" "$(loss_at moved 8)"
ok "... saves" "$gatherfs" command gpu snapshot eight
ok "... a whole snapshot" "$gatherfs" ckpt verify gpu eight
ok "... and ends" stop
start moved --device emulated --dtype bf16 --offload "optimizer=file:$work" --paused
ok "a CPU's snapshot resumes in bf16, with state in a file" "$gatherfs" command moved step 2
ok "... saves" "$gatherfs" command moved snapshot ten
ok "... a whole snapshot" "$gatherfs" ckpt verify moved ten
ok "... and ends" stop

# ---- a GPU that fails in the middle

# About the tenth step of the first attempt; each later attempt fails as well, until the run gives up.
EMU_FAIL_AT=4000:cudaErrorIllegalAddress
export EMU_FAIL_AT
start broken "${small[@]}"
unset EMU_FAIL_AT
ok "before its GPU fails it saves" eval '"$gatherfs" command broken step 1 && "$gatherfs" command broken snapshot good'
hears_why() { # ERRNO PATTERN DIR NAME VALUE
    local errno=$1 pattern=$2 text
    shift 2
    text=$(refused "$errno" "$@") && echo "$text" && grep -Eq "$pattern" <<<"$text"
}
ok "who waits for a step hears of a run that has failed, and why" hears_why EIO "illegal memory access" broken target 1000
ok "a GPU that fails: the run ends, or goes on" until_ok 100 eval '! kill -0 $run_pid 2>/dev/null || [ "$(grep -c "world: epoch" run.out)" -ge 3 ]'
ok "... with the error and the operation" said "illegal memory access"
kill -TERM "$run_pid" 2>/dev/null
wait "$run_pid"
ok "... and the snapshot is whole" "$gatherfs" ckpt verify broken good

# Only copies for snapshots ask anything of the GPU, after the first step.
EMU_FAIL_AT=700:cudaErrorLaunchFailure
export EMU_FAIL_AT
start rests "${small[@]}"
unset EMU_FAIL_AT
rests_until_it_fails() {
    local i
    "$gatherfs" command rests step 1 || return 1
    for i in $(seq 100); do
        "$gatherfs" command rests snapshot "s$i" || return 1
        ! said "a copy out of the device: .* unspecified launch failure .*: the ranks are started again" >/dev/null || return 0
    done
    echo "nothing failed"
    return 1
}
ok "a GPU that fails while the run rests: its ranks are started again, and write the snapshot" rests_until_it_fails
ok "... with the state that was there" eval 'step_is rests 1 && "$gatherfs" ckpt verify rests'
ok "... and it ends" stop

# ---- GPUs that talk by NCCL

if [ $ranks = 2 ]; then
    export EMU_DEVICES=2
    start nccl "${small[@]}" --dtype bf16
    ok "two ranks on two GPUs talk by NCCL" said "comm nccl"
    ok "... train" "$gatherfs" command nccl step 3
    ok "... save" "$gatherfs" command nccl snapshot three
    kill -9 "$(pgrep -f "gatherfs-rank --run-dir $work/nccl " | tail -n 1)"
    ok "a peer is killed: the run goes on from its snapshot" until_ok 60 eval 'state_is nccl paused && step_is nccl 3'
    ok "... and trains" "$gatherfs" command nccl step 1
    ok "... and ends" stop
    export NCCL_DOUBLE_HANG=1:30
    start hang "${small[@]}" --set comm_timeout=1
    ok "before a peer hangs the run saves" eval '"$gatherfs" command hang step 1 && "$gatherfs" command hang snapshot good'
    (exec "$gatherfs" command hang step 40 >/dev/null 2>&1) &
    ok "a peer that hangs is given up: the ranks are started again" until_ok 60 eval 'grep -q "no progress" run.out && [ "$(grep -c "world: epoch" run.out)" -ge 3 ]'
    kill -TERM "$run_pid" 2>/dev/null
    wait "$run_pid"
    ok "... and the snapshot is whole" "$gatherfs" ckpt verify hang good
    unset EMU_DEVICES NCCL_DOUBLE_HANG
fi

# ---- with a mount

if [ -x "$GFS_BUILD/gatherfs-mountd" ] && [ -z "${GFS_NO_MOUNT-}" ] && [ -c /dev/fuse ]; then
    mkdir m
    timeout 120 "$gatherfs" run "${small[@]}" --dtype bf16 --offload optimizer=host m >run.out 2>&1 &
    run_pid=$!
    ok "a run with a mount starts" until_ok 60 eval '[ "$(cat m/status/state)" = paused ]'
    ok "... trains" eval 'echo 3 >m/control/step'
    ok "... saves" eval 'echo now >m/control/snapshot'
    ok "tensors read as the snapshot has them" eval '
        for array in params exp_avg exp_avg_sq; do
            for f in m/live/$array/*; do cmp "$f" "m/snapshots/now/${f#m/live/}" || exit 1; done
        done'
    ok "gradients read" eval 'for f in m/live/grads/*; do cat "$f" >/dev/null || exit 1; done'
    ok "a pin" mkdir m/pins/p
    sum=$(cat m/pins/p/params/* m/pins/p/exp_avg/* | sha256sum)
    (echo 1000 >m/control/target) 2>/dev/null & # returns when it is reached
    reads=0
    while [ "$(cat m/status/step)" -lt 12 ] && [ $reads -lt 400 ]; do
        cat m/live/params/* m/live/exp_avg/* >/dev/null || break
        reads=$((reads + 1))
    done
    ok "reading while it trains, $reads times everything" [ "$(cat m/status/step)" -ge 12 ]
    ok "... did not change the pin" [ "$(cat m/pins/p/params/* m/pins/p/exp_avg/* | sha256sum)" = "$sum" ]
    ok "a snapshot is copied out" cp -r m/snapshots/now/hf hf
    ok "the GPU's memory is told by kind" grep -Eq "^device/params" m/ranks/0/memory
    ok "it ends" stop
    grep -q " $work/m fuse" /proc/self/mountinfo && umount -l m

    # Each tensor needs whole pages in a rank, and all together more than this.
    mkdir little
    timeout 120 "$gatherfs" run "${common[@]}" --device cpu --ranks 1 --set take_memory=200K little >run.out 2>&1 &
    run_pid=$!
    ok "a run with little memory for readers starts" until_ok 60 eval '[ "$(cat little/status/state)" = paused ]'
    ok "... and all is read, one after the other" sh -c 'echo 1 >little/control/step && for f in little/live/*/*.npy; do cat "$f" || exit 1; done >/dev/null'
    ok "... it ends" stop
    grep -q " $work/little fuse" /proc/self/mountinfo && umount -l little
fi
finish
