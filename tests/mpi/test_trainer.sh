#!/usr/bin/env bash
# The same training on 1, 2 and 3 ranks: losses, gradients, initial values, repetition, memory.
set -u
. "${GFS_SRC:?}/tests/mpi/launch.sh"
driver=${GFS_BUILD:?}/tests/mpi/trainer_driver
dir=$(mktemp -d "${TMPDIR:-/tmp}/gfs-trainer-XXXXXX") || exit 99
trap 'rm -rf "$dir"' EXIT

awk 'BEGIN { srand(7); for (i = 0; i < 6000; i++) printf "%s%s", substr("the of and to in is that for it as", int(rand() * 30) + 1, int(rand() * 5) + 1), rand() < 0.1 ? "\n" : " " }' >"$dir/text"
common=(model=gpt2:tiny data="$dir/text" seq_len=32 global_batch=8 steps=20 warmup_steps=5 threads=1)

# train NAME RANKS KNOB=VALUE...: its lines in $dir/NAME, its arrays in $dir/NAME.d; fails with it.
train() {
    local name=$1 n=$2
    shift 2
    mkdir -p "$dir/$name.d"
    launch "$n" "$driver" --dump "$dir/$name.d" --memory ranks="$n" "${common[@]}" "$@" \
        >"$dir/$name" 2>"$dir/$name.err" || { sed 's/^/# /' "$dir/$name.err"; return 1; }
}

# close_losses A B LIMIT COUNT: COUNT losses each, relative difference at most LIMIT.
close_losses() {
    paste <(grep '^step' "$dir/$1") <(grep '^step' "$dir/$2") | awk -v limit="$3" -v count="$4" '
        { a = $4; for (i = 5; i <= NF; i++) if ($i == "loss") b = $(i + 1)
          d = a - b; if (d < 0) d = -d; if (!(d <= limit * a)) { bad++; print "# step " $2 ": " a " and " b } n++ }
        END { exit !(n == count && bad == 0) }'
}

# close_arrays A B LIMIT ARRAY...: norm of the difference over the norm.
close_arrays() {
    local a=$1 b=$2 limit=$3
    shift 3
    "$driver" --compare "$dir/$a.d" "$dir/$b.d" >"$dir/compare" || return 1
    sed 's/^/# difference of /' "$dir/compare"
    for array in "$@"; do
        awk -v array="$array" -v limit="$limit" '$1 == array { ok = $3 <= limit } END { exit !ok }' \
            "$dir/compare" || return 1
    done
}

# same A B: the same losses and the same bits in all arrays.
same() {
    cmp <(grep '^step' "$dir/$1" | sed 's/ ms .*//') <(grep '^step' "$dir/$2" | sed 's/ ms .*//') &&
        diff -r "$dir/$1.d" "$dir/$2.d"
}

train one 1 wrap=none
ok 'one rank trains' $?
awk '/^step 1 /{ a = $4 } /^step 20 /{ b = $4 } END { exit !(a > 5 && a < 6 && b < a - 1) }' "$dir/one"
ok 'the loss falls from ln(257)' $?
train again 1 wrap=none && same one again
ok 'one rank repeats bit for bit' $?
for wrap in block size:200000; do
    train wrapped 1 wrap="$wrap" && same one wrapped
    ok "one rank, wrap $wrap: the same bits as without units" $?
done
train micro 1 wrap=block micro_batch=3 && close_losses one micro 1e-5 20
ok 'one rank, 8 sequences in microbatches of 3: the losses of one microbatch' $?
for home in host "file:$dir" file:/dev/shm; do
    train away 1 wrap=block offload="optimizer=$home" && same one away
    ok "one rank, optimizer state in ${home%%:*}: the same bits as without" $?
done
train away 1 wrap=none offload="optimizer=file:$dir" && same one away
ok 'one rank, one unit, optimizer state in a file: the same bits' $?
train nowhere 1 offload="optimizer=file:$dir/none"
ok 'optimizer state in a directory that is none is refused' $(($? == 0 ? 1 : 0))
grep -q "optimizer=file:$dir/none: .*No such file" "$dir/nowhere.err"
ok 'and the reason names it' $?
train hot 1 wrap=block steps=30 lr=1000 warmup_steps=0 clip=0
ok 'steps whose gradient is not finite are skipped, and training goes on' \
    $(($(grep -c ' skipped$' "$dir/hot") > 0 && $(grep -c '^step 30 ' "$dir/hot") == 1 ? 0 : 1))

if ! have_mpi; then
    finish
fi

for n in 2 3; do
    for wrap in none block size:200000; do
        train "n$n" "$n" wrap="$wrap" && close_losses one "n$n" 1e-5 20
        ok "$n ranks, wrap $wrap: the losses of one rank" $?
        close_arrays one "n$n" 1e-4 params exp_avg
        ok "$n ranks, wrap $wrap: the parameters of one rank" $?
    done
    train "n$n.mpi" "$n" comm=mpi && close_losses one "n$n.mpi" 1e-5 20
    ok "$n ranks, comm mpi: the losses of one rank" $?
    train "n$n.again" "$n" wrap=size:200000 && same "n$n" "n$n.again"
    ok "$n ranks repeat bit for bit" $?
    train "n$n.mpi2" "$n" comm=mpi && same "n$n.mpi" "n$n.mpi2"
    ok "$n ranks, comm mpi: repeat bit for bit" $?
    train "n$n.away" "$n" wrap=size:200000 offload="optimizer=file:$dir" && same "n$n" "n$n.away"
    ok "$n ranks, optimizer state in a file: the same bits as without" $?
    for m in 1 4; do
        train "n$n.micro$m" "$n" micro_batch=$m && close_losses one "n$n.micro$m" 1e-5 20
        ok "$n ranks, microbatches of $m: the losses of one" $?
    done
done

train grads1 1 steps=1 wrap=none && train grads3 3 steps=1 micro_batch=1 &&
    close_arrays grads1 grads3 1e-5 grads
ok 'gradients summed over shards and microbatches are those of one rank' $?
train init1 1 steps=1 lr=0 wrap=none && train init3 3 steps=1 lr=0 wrap=block &&
    cmp "$dir/init1.d/params.f32" "$dir/init3.d/params.f32"
ok 'initial values do not depend on ranks and units' $?
train few1 1 global_batch=2 && train few4 4 global_batch=2 && close_losses few1 few4 1e-5 20
ok 'ranks without a sequence add nothing and take part' $?
train few4m 4 global_batch=2 comm=mpi && close_losses few1 few4m 1e-5 20
ok 'ranks without a sequence, comm mpi' $?

train alone 2 steps=1 2>/dev/null ranks=3
ok 'a world of another size than expected is refused' $(($? == 0 ? 1 : 0))
grep -q 'expected 3 ranks, but .* started 2' "$dir/alone.err"
ok 'and the reason names both sizes' $?

# memory LINE-FIELDS: pss of all ranks against what training should need, with what a process needs
# anyway (MPI, BLAS) taken off; at most 15% and 24 MB a rank more.
for comm in node mpi; do
    train "memory.$comm" 3 model=gpt2:10M steps=2 global_batch=3 comm="$comm"
    grep '^memory' "$dir/memory.$comm" | sed 's/^/# /'
    awk '/^memory/ { pss = $3 - $5; ok = pss <= 1.15 * $7 + 3 * 24e6 } END { exit !ok }' \
        "$dir/memory.$comm"
    ok "memory of 3 ranks, comm $comm: shards, the root and two units" $?
done
awk '/^memory/ { ok = $9 < 0.75 * $11 } END { exit !ok }' "$dir/memory.mpi"
ok 'no process of comm mpi holds the whole model with its state' $?
finish
