#!/usr/bin/env bash
# The engine on the emulated GPU: the trainer of tests/mpi, whole, in every order of streams, held against the CPU.
set -u
. "${GFS_SRC:?}/tests/mpi/launch.sh"
driver=${GFS_BUILD:?}/tests/mpi/trainer_driver
dir=$(mktemp -d "${TMPDIR:-/tmp}/gfs-engine-XXXXXX") || exit 99
trap 'rm -rf "$dir"' EXIT

awk 'BEGIN { srand(7); for (i = 0; i < 900; i++) printf "%s ", substr("the of and to in is that for it as", int(rand() * 30) + 1, int(rand() * 5) + 1) }' >"$dir/text"
# Widths that are no whole vectors, a context longer than the sequences, three units.
cat >"$dir/config.json" <<'END'
{"model_type": "gpt2", "vocab_size": 257, "n_positions": 16, "n_embd": 24, "n_layer": 2, "n_head": 3,
 "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": true,
 "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 256, "eos_token_id": 256}
END
common=(model="$dir/config.json" data="$dir/text" seq_len=13 global_batch=5 steps=4 warmup_steps=2 threads=1)

# train NAME RANKS KNOB=VALUE...: its lines in $dir/NAME, its arrays in $dir/NAME.d
train() {
    local name=$1 n=$2
    shift 2
    rm -rf "$dir/$name.d"
    mkdir -p "$dir/$name.d"
    launch "$n" "$driver" --dump "$dir/$name.d" ranks="$n" "${common[@]}" device=emulated "$@" \
        >"$dir/$name" 2>"$dir/$name.err" || { sed 's/^/# /' "$dir/$name.err" | tail -n 5; return 1; }
}

# near A B LIMIT: all arrays and losses.
near() {
    "$driver" --compare "$dir/$1.d" "$dir/$2.d" >"$dir/compare" || return 1
    sed 's/^/# difference of /' "$dir/compare"
    awk -v limit="$3" '!($3 <= limit) { bad++ } END { exit !(NR == 4 && bad == 0) }' "$dir/compare" || return 1
    paste <(grep '^step' "$dir/$1") <(grep '^step' "$dir/$2") | awk -v limit="$3" '
        { a = $4; for (i = 5; i <= NF; i++) if ($i == "loss") b = $(i + 1)
          d = a - b; if (d < 0) d = -d; if (!(d <= limit * a)) bad++; n++ } END { exit !(n == 4 && bad == 0) }'
}
same() { # A B: the same losses and the same bits in all arrays
    cmp <(grep '^step' "$dir/$1" | sed 's/ ms .*//') <(grep '^step' "$dir/$2" | sed 's/ ms .*//') &&
        diff -r "$dir/$1.d" "$dir/$2.d"
}
# fails NAME PATTERN: NAME's training must have failed, within its time, saying so.
fails() {
    [ "$2" -ne 0 ] && [ "$2" -ne 124 ] && grep -Eq "$3" "$dir/$1.err"
}

if [ -x "$GFS_BUILD/tests/unit/test_reference" ]; then
    GFS_TEST_DEVICE=emulated timeout 300 "$GFS_BUILD/tests/unit/test_reference" >"$dir/reference" 2>&1
    status=$?
    [ $status = 0 ] || sed 's/^/# /' "$dir/reference"
    ok 'GPT-2 and AdamW: what PyTorch computed' $status
fi

train cpu 1 device=cpu
ok 'the CPU trains' $?
train one 1 && near cpu one 1e-5
ok 'one rank: what the CPU gets' $?
for order in eager random; do
    for seed in 1 2; do
        EMU_ORDER=$order EMU_SEED=$seed train order 1 && same one order
        ok "one rank, streams run $order, seed $seed: the same bits" $?
    done
done
train micro 1 micro_batch=2 && near one micro 1e-5
ok 'one rank, microbatches of 2: what one gives' $?
train root 1 wrap=none && same one root
ok 'one rank, one unit: the same bits' $?

train bf16 1 dtype=bf16 && near cpu bf16 2e-2
ok 'one rank, bf16: within 2e-2 of f32' $?
train grads16 1 dtype=bf16 reduce_dtype=bf16 && near cpu grads16 2e-2
ok 'one rank, gradients in bf16 too: within 2e-2' $?
EMU_ORDER=random EMU_SEED=3 train order 1 dtype=bf16 micro_batch=2 && train micro 1 dtype=bf16 micro_batch=2 && same micro order
ok 'one rank, bf16, streams in another order: the same bits' $?

for home in host "file:$dir"; do
    for dtype in f32 bf16; do
        EMU_ORDER=random train away 1 dtype=$dtype offload="optimizer=$home" && same "${dtype/f32/one}" away
        ok "one rank, $dtype, optimizer state in ${home%%:*}: the same bits as without" $?
    done
done

# 1.6 M parameters, 16 bytes each, and 72 MB of workspaces: half of the moments' 13 MB is what lacks.
sed 's/"n_embd": 24/"n_embd": 128/; s/"n_layer": 2/"n_layer": 8/; s/"n_head": 3/"n_head": 4/' "$dir/config.json" >"$dir/wide.json"
for offload in none optimizer=host; do
    EMU_MEMORY=92000000 train "wide.${offload%=*}" 1 model="$dir/wide.json" steps=1 offload=$offload
    status=$?
    if [ $offload = none ]; then
        fails wide.none $status 'for exp_avg on device emulated: cudaMalloc .*out of memory'
        ok 'a GPU that is too small for the optimizer state refuses it' $?
    else
        ok 'a GPU that is too small for the optimizer state trains with it in host memory' $status
    fi
done

if have_mpi; then
    for n in 2 3; do
        for comm in node mpi; do
            train "n$n" "$n" comm=$comm && near one "n$n" 1e-5
            ok "$n ranks on one GPU, comm $comm: what one rank gets" $?
        done
        EMU_ORDER=random EMU_SEED=$n train again "$n" comm=mpi && same "n$n" again
        ok "$n ranks on one GPU, streams in another order: the same bits" $?
        EMU_DEVICES=$n train nccl "$n" comm=nccl && near one nccl 1e-5
        ok "$n ranks on $n GPUs, comm nccl: what one rank gets" $?
        EMU_DEVICES=$n EMU_ORDER=random train again "$n" && grep -q 'comm nccl' "$dir/again" && same nccl again
        ok "$n ranks on $n GPUs: nccl is chosen, and repeats bit for bit" $?
        EMU_DEVICES=$n train nccl16 "$n" comm=nccl dtype=bf16 reduce_dtype=bf16 micro_batch=1 && near cpu nccl16 2e-2
        ok "$n ranks on $n GPUs, all in bf16: within 2e-2" $?
    done
    train few1 1 global_batch=2 && EMU_DEVICES=3 train few3 3 global_batch=2 && near few1 few3 1e-5
    ok 'ranks without a sequence add nothing and take part' $?
    EMU_DEVICES=2 train away 2 dtype=bf16 offload=optimizer=host && EMU_DEVICES=2 train here 2 dtype=bf16 && same here away
    ok '2 ranks, optimizer state in host memory: the same bits as without' $?

    train shared 2 comm=nccl
    fails shared $? 'share a GPU, which NCCL refuses; use comm = node or mpi'
    ok 'nccl between ranks on one GPU is refused with what would do' $?
    EMU_DEVICES=2 NCCL_DOUBLE_HANG=1:7 LAUNCH_SECONDS=60 train hang 2 comm=nccl comm_timeout=1
    fails hang $? 'no progress|did not|timed out|within'
    ok 'a rank that never answers ends the others' $?
    EMU_DEVICES=2 NCCL_DOUBLE_ASYNC_ERROR=1:9 LAUNCH_SECONDS=60 train async 2 comm=nccl comm_timeout=5
    fails async $? nccl
    ok 'an asynchronous error of nccl ends the step' $?
fi
finish
