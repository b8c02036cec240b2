#!/usr/bin/env bash
# The engine on the emulated GPU under the race detector: it finds no race in training, with takes beside it, on one rank and two.
# An argument is a regular expression: only the trainings that it matches, and takes with "takes" alone.
# shellcheck source=tests/mpi/launch.sh
. "${GFS_SRC:?is set by make check}/tests/mpi/launch.sh"
# shellcheck source=tests/e2e/lib.sh
. "$GFS_SRC/tests/e2e/lib.sh" || exit 1
only=${1-}
trainer=$GFS_BUILD/tests/cuda/trainer_race

for i in $(seq 400); do echo "$i bottles of beer on the wall, $i bottles of beer"; done >text
cat >config.json <<'END'
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 257, "n_positions": 16, "n_embd": 24, "n_layer": 2,
 "n_head": 3, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": true,
 "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 256, "eos_token_id": 256}
END

# trains RANKS KNOB=VALUE...: two steps without a race
trains() {
    local n=$1
    shift
    launch "$n" "$trainer" ranks="$n" model=./config.json data=./text seq_len=13 global_batch=5 steps=2 warmup_steps=2 threads=1 \
        device=emulated "$@" >train.out 2>&1 || { grep -m3 '^race:' train.out || tail -n 5 train.out; return 1; }
    grep -q '^step 2 loss' train.out
}

# check NAME COMMAND...: a case.
check() {
    [[ ! $1 =~ $only ]] || ok "$@"
}

check "f32" trains 1
check "bf16, two microbatches" trains 1 dtype=bf16 micro_batch=2
check "bf16 gradients, one unit" trains 1 dtype=bf16 reduce_dtype=bf16 wrap=none
check "optimizer state in host memory" trains 1 dtype=bf16 offload=optimizer=host
check "optimizer state in a file" trains 1 offload=optimizer=file:.
sed 's/"n_positions": 16, "n_embd": 24, "n_layer": 2/"n_positions": 200, "n_embd": 64, "n_layer": 1/; s/"n_head": 3/"n_head": 1/' \
    config.json >wide.json
check "attention by tensor cores, tiles in a ring" trains 1 model=./wide.json seq_len=200 global_batch=1 dtype=bf16 tensor_cores=on
ranks=1
if have_mpi; then
    ranks=2
    EMU_DEVICES=2 check "two ranks by NCCL, five units" trains 2 comm=nccl wrap=size:1
    EMU_DEVICES=2 check "two ranks by NCCL, bf16, optimizer state in host memory" trains 2 comm=nccl dtype=bf16 offload=optimizer=host
    check "two ranks on one GPU, staged, five units, two microbatches" trains 2 comm=node dtype=bf16 wrap=size:1 micro_batch=2
fi

# Takes come from another thread of the rank, on another stream, while it trains.
[ "${only:-takes}" = takes ] || exit
export GATHERFS_RANK_PROGRAM=$GFS_BUILD/tests/cuda/rank_race
for offload in none optimizer=host; do
    dir=run.${offload%=*}
    start "$dir" --model ./config.json --data text --global-batch 4 --seq-len 13 --set threads=1 --steps 1000 --paused \
        --device emulated --ranks $ranks --offload $offload
    ok "a run, offload $offload, trains" "$gatherfs" command "$dir" step 2
    ok "... saves" "$gatherfs" command "$dir" snapshot a
    "$gatherfs" command "$dir" run 1 >/dev/null 2>&1
    ok "... saves while it trains" "$gatherfs" command "$dir" snapshot b
    ok "... again" "$gatherfs" command "$dir" snapshot c
    kill -TERM "$run_pid"
    ok "... and ends" ends 0
    ok "... without a race" eval '! grep -h "^race:\|world: epoch 2" run.out "$dir"/log/*'
done
finish
