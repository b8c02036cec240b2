#!/usr/bin/env bash
# No process holds the whole model: its state is larger than what each rank may allocate, and it trains and saves all the same.
. "${GFS_SRC:?is set by make check}/tests/e2e/lib.sh" || exit 1

[ "${GFS_MPI_NAME:-openmpi}" != none ] || skip_all "built without MPI: one rank holds everything"
for i in $(seq 400); do echo "$i bottles of beer on the wall, $i bottles of beer"; done >text
cat >config.json <<'END'
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 257, "n_positions": 64, "n_embd": 512,
 "n_layer": 6, "n_head": 8, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": true,
 "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 256, "eos_token_id": 256}
END
model=(--model ./config.json --data text --ranks 3 --global-batch 3 --seq-len 32 --set threads=1)
limit_kb=$((256 * 1024))

ranks_of() { pgrep -f "gatherfs-rank --run-dir $work/$1 "; }
pss_kb() { # DIR: of all its ranks
    local pid sum=0 kb
    for pid in $(ranks_of "$1"); do
        kb=$(awk '$1 == "Pss:" { print $2 }' "/proc/$pid/smaps_rollup") && sum=$((sum + kb))
    done
    echo $sum
}
# Of `gatherfs plan`: state of the world, and for each rank what is gathered with its gradients and the activations.
planned_kb() {
    "$gatherfs" plan "${model[@]}" | awk '
        /^ *gathered: / { each += $(NF - 2) } /^ *their gradients/ { each += $(NF - 2) } /^ *activations/ { each += $(NF - 2) }
        /^state of the world/ { state = $5 } END { printf "%d\n", (state + 3 * each) / 1024 }'
}
state_kb() { "$gatherfs" plan "${model[@]}" | awk '/^state of the world/ { printf "%d\n", $5 / 1024 }'; }
# 40 MB a rank: programs, libraries, what MPI keeps, and 16 MB of memory for takes, touched at the start.
is_bounded() {
    local pss limit
    pss=$(pss_kb "$1")
    limit=$(($(planned_kb) * 115 / 100 + 3 * 40 * 1024))
    echo "sum of PSS $pss KB, limit $limit KB"
    say "$1: sum of PSS $pss KB, planned $(planned_kb) KB, limit $limit KB" >&3
    [ "$pss" -gt 0 ] && [ "$pss" -le $limit ]
}
exec 3>&1

ok "the state is larger than a rank's limit" [ "$(state_kb)" -gt $limit_kb ]
ulimit -S -d $limit_kb || skip_all "the limit can't be set"
for comm in mpi node; do
    start "$comm" "${model[@]}" --comm $comm --steps 1000 --paused
    ok "$comm: it starts under RLIMIT_DATA of 256 MB" state_is "$comm" paused
    ok "$comm: ... trains" "$gatherfs" command $comm step 2
    ok "$comm: ... its ranks' memory is bounded" is_bounded $comm
    ok "$comm: ... saves" "$gatherfs" command $comm snapshot one
    ok "$comm: ... a whole snapshot" "$gatherfs" ckpt verify $comm one
    kill -TERM "$run_pid"
    ok "$comm: ... and ends" ends 0
done

# One rank has all of it: without its optimizer state, which is half, it fits.
one=("${model[@]}" --ranks 1)
ulimit -S -d $(($(state_kb) - 4096))
start whole "${one[@]}" --steps 1
ok "one rank: its state is larger than its limit" ends 1
ok "one rank: ... which is said" said "bytes for .* on device cpu"
start away "${one[@]}" --offload "optimizer=file:$work" --steps 1000 --paused
ok "one rank, optimizer state in a file: it starts" state_is away paused
ok "one rank, optimizer state in a file: ... trains" "$gatherfs" command away step 2
ok "one rank, optimizer state in a file: ... saves" "$gatherfs" command away snapshot one
ok "one rank, optimizer state in a file: ... a whole snapshot" "$gatherfs" ckpt verify away one
kill -TERM "$run_pid"
ok "one rank, optimizer state in a file: ... and ends" ends 0
