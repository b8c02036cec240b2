#!/usr/bin/env bash
# The engine on the emulated GPU: the trainer of tests/mpi, whole, in every order of streams, held against the CPU.
# An argument is a regular expression: only the cases that it matches.
# shellcheck disable=SC2016,SC2317 # the code of a case is expanded, and its functions are called, where it runs
set -u
only=${1-}
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

# need NAME RANKS KNOB=VALUE...: what several cases are held against, trained once.
need() { [ -e "$dir/$1.there" ] || { train "$@" && : >"$dir/$1.there"; }; }

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

# check NAME CODE: a case.
check() {
    [[ $1 =~ $only ]] || return 0
    eval "$2"
    ok "$1" $?
}

reference() {
    GFS_TEST_DEVICE=emulated timeout 300 "$GFS_BUILD/tests/unit/test_reference" >"$dir/reference" 2>&1 && return
    sed 's/^/# /' "$dir/reference"
    return 1
}
if [ -x "$GFS_BUILD/tests/unit/test_reference" ]; then
    check 'GPT-2 and AdamW: what PyTorch computed' reference
fi

cpu='need cpu 1 device=cpu'
one='need one 1'
check 'the CPU trains' "$cpu"
check 'one rank: what the CPU gets' "$cpu && $one && near cpu one 1e-5"
for order in eager random; do
    for seed in 1 2; do
        check "one rank, streams run $order, seed $seed: the same bits" \
            "$one && EMU_ORDER=$order EMU_SEED=$seed train order 1 && same one order"
    done
done
check 'one rank, microbatches of 2: what one gives' "$one && train micro 1 micro_batch=2 && near one micro 1e-5"
check 'one rank, one unit: the same bits' "$one && train root 1 wrap=none && same one root"

check 'one rank, bf16: within 2e-2 of f32' "$cpu && need bf16 1 dtype=bf16 && near cpu bf16 2e-2"
check 'one rank, gradients in bf16 too: within 2e-2' \
    "$cpu && train grads16 1 dtype=bf16 reduce_dtype=bf16 && near cpu grads16 2e-2"
check 'one rank, bf16, streams in another order: the same bits' \
    'EMU_ORDER=random EMU_SEED=3 train order 1 dtype=bf16 micro_batch=2 &&
        train micro 1 dtype=bf16 micro_batch=2 && same micro order'

for home in host "file:$dir"; do
    for dtype in f32 bf16; do
        check "one rank, $dtype, optimizer state in ${home%%:*}: the same bits as without" \
            "need ${dtype/f32/one} 1 dtype=$dtype && EMU_ORDER=random train away 1 dtype=$dtype 'offload=optimizer=$home' &&
                same ${dtype/f32/one} away"
    done
done

# 1.6 M parameters, 16 bytes each, and 72 MB of workspaces: half of the moments' 13 MB is what lacks.
sed 's/"n_embd": 24/"n_embd": 128/; s/"n_layer": 2/"n_layer": 8/; s/"n_head": 3/"n_head": 4/' "$dir/config.json" >"$dir/wide.json"
small() { EMU_MEMORY=92000000 train "$1" 1 model="$dir/wide.json" steps=1 offload="$2"; }
check 'a GPU that is too small for the optimizer state refuses it' \
    "small wide none; fails wide \$? 'for exp_avg(_sq)? on device emulated: cudaMalloc .*out of memory'"
check 'a GPU that is too small for the optimizer state trains with it in host memory' 'small wide optimizer=host'

if have_mpi; then
    for n in 2 3; do
        check "$n ranks on one GPU, comm node, five units, microbatches of 1: what one rank gets" \
            "$one && train node $n comm=node wrap=size:1 micro_batch=1 && near one node 1e-5"
        check "$n ranks on one GPU, comm mpi: what one rank gets" \
            "$one && need n$n.mpi $n comm=mpi && near one n$n.mpi 1e-5"
        check "$n ranks on one GPU, streams in another order: the same bits" \
            "need n$n.mpi $n comm=mpi && EMU_ORDER=random EMU_SEED=$n train again $n comm=mpi && same n$n.mpi again"
        nccl="EMU_DEVICES=$n need nccl$n $n comm=nccl wrap=size:1"
        check "$n ranks on $n GPUs, comm nccl, five units: what one rank gets" "$one && $nccl && near one nccl$n 1e-5"
        check "$n ranks on $n GPUs: nccl is chosen, and repeats bit for bit" \
            "$nccl && EMU_DEVICES=$n EMU_ORDER=random train again $n wrap=size:1 && grep -q 'comm nccl' '$dir/again' && same nccl$n again"
        check "$n ranks on $n GPUs, all in bf16: within 2e-2" \
            "$cpu && EMU_DEVICES=$n train nccl16 $n comm=nccl dtype=bf16 reduce_dtype=bf16 micro_batch=1 &&
                near cpu nccl16 2e-2"
    done
    check 'ranks without a sequence add nothing and take part' \
        'train few1 1 global_batch=2 && EMU_DEVICES=3 train few3 3 global_batch=2 && near few1 few3 1e-5'
    check '2 ranks, optimizer state in host memory: the same bits as without' \
        'EMU_DEVICES=2 train away 2 dtype=bf16 offload=optimizer=host && EMU_DEVICES=2 train here 2 dtype=bf16 && same here away'

    check 'nccl between ranks on one GPU is refused with what would do' \
        "train shared 2 comm=nccl; fails shared \$? 'share a GPU, which NCCL refuses; use comm = node or mpi'"
    check 'a rank that never answers ends the others' \
        "EMU_DEVICES=2 NCCL_DOUBLE_HANG=1:7 LAUNCH_SECONDS=60 train hang 2 comm=nccl comm_timeout=1
            fails hang \$? 'no progress|did not|timed out|within'"
    check 'an asynchronous error of nccl ends the step' \
        "EMU_DEVICES=2 NCCL_DOUBLE_ASYNC_ERROR=1:9 LAUNCH_SECONDS=60 train async 2 comm=nccl comm_timeout=5
            fails async \$? nccl"
    # Three gathers and three reductions are a step.
    check 'an error of the last collective of a step ends that step' \
        "EMU_DEVICES=2 NCCL_DOUBLE_ASYNC_ERROR=1:6 LAUNCH_SECONDS=60 train async 2 comm=nccl comm_timeout=5
            fails async \$? 'rank 1: step 1: nccl' && ! grep -q '^step 1 ' \"\$dir/async\""
fi
finish
