#!/usr/bin/env bash
# tools/gpu-check: what it makes of a program that passes, fails, hangs and dies; what it says without a GPU; and its own program
# on the emulated GPU, or what of it takes little time.
set -u
. "${GFS_SRC:?}/tests/mpi/launch.sh"
check=$GFS_SRC/tools/gpu-check
program=${GFS_BUILD:?}/tests/cuda/gpu_check
dir=$(mktemp -d "${TMPDIR:-/tmp}/gfs-gpu-check-XXXXXX") || exit 99
trap 'rm -rf "$dir"' EXIT
export TMPDIR=$dir

# run NAME STATUS ARGUMENT...: in $dir/NAME what it said; it must end with that status.
run() {
    local name=$1 want=$2 status
    shift 2
    timeout --kill-after=5 "${SECONDS_MOST:-60}" "$check" "$@" >"$dir/$name" 2>&1 </dev/null
    status=$?
    [ $status -eq "$want" ] || { echo "# status $status"; sed 's/^/# /' "$dir/$name" | tail -n 40; return 1; }
}
gone() { ! grep -qs '^State:.[^Z]' "/proc/$1/status"; } # pid: it has ended, reaped or not
says() { grep -Eq -- "$2" "$dir/$1" || { sed 's/^/# /' "$dir/$1" | tail -n 40; return 1; }; }

if nvidia-smi -L >/dev/null 2>&1 || [ -e /dev/nvidiactl ]; then
    echo "# there is a GPU here"
else
    run none 1 && [ "$(wc -l <"$dir/none")" -eq 1 ] && says none '^gpu-check: no NVIDIA GPU on this machine'
    ok 'without a GPU: one line, and status 1' $?
fi
run option 2 --quick --ful && says option "unknown option '--ful'"
ok 'an unknown option is refused' $?
run both 2 --quick --full && run value 2 --only && run number 2 --device first
ok 'options that make no sense are refused' $?

# A program whose tests do as they are called.
cat >"$dir/program" <<'END'
#!/usr/bin/env bash
case $1 in
--list) printf '%s\t2\t%s\t%s\n' good test a failed test b silent test c hangs test d dies test e gone test f times bench g ;;
--info) echo 'GPU 0: a fake' ;;
--test) case $2 in
    good) printf 'result\tgood/one\tok\tfine\nresult\tgood/two\tnot run\tno X\nnote\tremarkable\n' ;;
    failed) printf 'result\tfailed\tFAILED\tbad numbers\n'; exit 1 ;;
    silent) ;;
    hangs) trap '' TERM; echo $$ >"$(dirname "$0")/pid"; while :; do sleep 0.1; done ;;
    dies) kill -SEGV $$ ;;
    gone) echo 'gone: no such thing' >&2; exit 3 ;;
    times) printf 'result\ttimes\tok\tx\nkernel\tgemm\tbf16 m 1\t0.5\t100 GB/s\t50 %%\nfigure\tall\t7 tokens/s\tat least 5\n' ;;
    esac ;;
esac
END
chmod +x "$dir/program"
# Where there is no GPU the program is called as on the emulation.
run fake 1 --emulated --program "$dir/program" --build-dir "$dir/fake.b" --report "$dir/report"
ok 'where tests fail the status is 1' $?
says fake '^good/one +ok +fine$' && says fake '^good/two +not run: no X$' && says fake '^ +remarkable$'
ok 'results are shown as they come' $?
says fake '^failed +FAILED +bad numbers$' && says fake '^silent +FAILED +it said nothing$'
ok 'a failure is shown, and a test that says nothing has failed' $?
says fake '^hangs +FAILED +hangs: killed after 2 s$' && gone "$(cat "$dir/pid")"
ok 'a test that hangs is killed' $?
says fake '^dies +FAILED +ended by signal 11' && says fake '^gone +FAILED +ended with status 3: gone: no such thing$'
ok 'a test that dies is told with its last words' $?
says fake '^hangs +FAILED: hangs: killed after 2 s$' && says fake '^2 passed, 5 failed, 5 not run, in'
ok 'the table and the sum have them all' $?
[ "$(wc -l <"$dir/report")" -gt 20 ] && cmp "$dir/report" <(grep -v '^this report: ' "$dir/fake")
ok 'the report is what was printed' $?
run stop 1 --emulated --program "$dir/program" --stop && ! grep -q '^silent' "$dir/stop" && says stop '^1 passed, 1 failed, 1 not run'
ok '--stop ends after the first failure' $?
run few 0 --emulated --program "$dir/program" --only good --only times && says few '^2 passed, 0 failed, 1 not run'
ok '--only chooses' $?
run nothing 1 --emulated --program "$dir/program" --only nonsense && says nothing 'no test is called nonsense'
ok '--only of nothing is an error' $?
run list 0 --emulated --program "$dir/program" --list && says list '^good +a$' && says list '^bench/torch '
ok '--list names the tests' $?

# What goes round a GPU: nvidia-smi, compute-sanitizer, llm.c and PyTorch.
mkdir -p "$dir/bin" "$dir/cuda/bin" "$dir/llm.c/dev/data/tinyshakespeare"
cat >"$dir/bin/nvidia-smi" <<'END'
#!/usr/bin/env bash
case $* in
-L) echo 'GPU 0: Fake (UUID: GPU-0)' ;;
*driver_version*) echo '0, 999.1, 700.00 W, 1980 MHz, 3201 MHz' ;;
esac
END
cat >"$dir/bin/compute-sanitizer" <<'END'
#!/usr/bin/env bash
echo '========= COMPUTE-SANITIZER'
case $2 in
memcheck) shift 4; exec "$@" ;;
racecheck) echo '========= Error: Race reported between Write access at kernel<4>'; exit 9 ;;
initcheck) echo '========= Error: Target application terminated before first instrumented API call'; exit 1 ;;
synccheck) kill -SEGV $$ ;;
esac
END
cat >"$dir/llm.c/train_gpt2cu" <<'END'
#!/usr/bin/env bash
[ "$*" = "-i $PWD/dev/data/tinyshakespeare/tiny_shakespeare_train.bin -j $PWD/dev/data/tinyshakespeare/tiny_shakespeare_train.bin \
-e d12 -b 64 -t 1024 -d 65536 -x 30 -v 1000000 -m 1 -s 0" ] || exit 1
for i in {1..30}; do echo "step   $i/30 | loss 11.0 (+nanz)| norm 15.3 (+nanz)| lr 3.00e-04 | $((i < 6 ? 900 : 100)).00 ms | 40.0% bf16 MFU | 5 tok/s"; done
END
cat >"$dir/python" <<'END'
#!/usr/bin/env bash
[ "$1" = -c ] && exit 0
case $1 in */tests/cuda/torch_gpt2.py) [ "$2 $3" = '--batch 64' ] && printf 'result\tbench/torch\tok\tx\nfigure\tbench/torch\t9 tokens/s\t\n' ;; esac
END
cat >"$dir/program" <<'END'
#!/usr/bin/env bash
case $1 in
--list) printf '%s\t9\t%s\t%s\n' kernels/add test a kernels/cast test b bench/train-bf16 bench c bench/train-bf16-tc bench d ;;
--info) echo "GPU 0: a fake; visible: ${CUDA_VISIBLE_DEVICES-all}" ;;
--test) case $2 in
    bench/*) printf 'result\t%s\tok\tx\nkernel\tgemm\tbf16 m 1\t0.5000\t100 GB/s\t50 %%\n' "$2"
        case $2 in *-tc) n=786432 ;; *) n=7 ;; esac
        printf 'figure\t%s\t%d tokens/s, 1.00 ms/step of 64 x 1024, MFU 40.0 %%\tat least 5\n' "$2" $n ;;
    *) printf 'result\t%s\tok\tx\n' "$2" ;;
    esac ;;
esac
END
touch "$dir/llm.c/dev/data/tinyshakespeare/tiny_shakespeare_train.bin"
chmod +x "$dir/bin"/* "$dir/llm.c/train_gpt2cu" "$dir/python" "$dir/program"
PATH=$dir/bin:$PATH run around 1 --program "$dir/program" --llmc "$dir/llm.c" --torch "$dir/python"
ok 'a sanitizer that finds something is a failure' $?
says around '^GPU 0: driver 999.1, power limit 700.00 W, at most 1980 MHz, memory 3201 MHz$'
ok 'the report names GPU and driver' $?
says around '^sanitizer/memcheck +ok +no error in 2 parts$' &&
    says around '^sanitizer/racecheck +FAILED +kernels/add: Error: Race reported between Write' &&
    says around '^sanitizer/initcheck +not run: Error: Target application terminated' &&
    says around '^sanitizer/synccheck +FAILED +kernels/add: ended by signal 11'
ok 'what compute-sanitizer finds, what it can not do, and its own end are told apart' $?
says around '^kernel +shape +ms +rate +of limit$' && says around '^gemm +bf16 m 1 +0.5000 +100 GB/s +50 %$'
ok 'there is a table of times' $?
says around '^bench/train-bf16 +7 tokens/s, 1.00 ms/step of 64 x 1024, MFU 40.0 % +at least 5$' &&
    says around '^bench/llm.c +655360 tokens/s, 100.00 ms/step of 64 x 1024$' && says around '^bench/torch +9 tokens/s$' &&
    says around '^tokens/s against llm.c +1.20 times its +at least 1.1$'
ok 'there is a table of figures, with llm.c and PyTorch at the same batch' $?
says around '^7 passed, 2 failed, 1 not run'
ok 'others beside ours are counted' $?
PATH=$dir/bin:$PATH run without 0 --program "$dir/program" --only bench && says without '^bench/llm.c +not run: no --llmc$' &&
    says without '^bench/torch +not run: no --torch$'
ok 'without their paths they are not run' $?

PATH=$dir/bin:$PATH run device 0 --program "$dir/program" --device 1 --only kernels && says device 'visible: 1$' &&
    CUDA_VISIBLE_DEVICES=4,7 PATH=$dir/bin:$PATH run device 0 --program "$dir/program" --device 1 --only kernels &&
    says device 'visible: 7$' && CUDA_VISIBLE_DEVICES=4 PATH=$dir/bin:$PATH run device 2 --program "$dir/program" --device 1
ok '--device chooses among those that can be seen' $?

if [ ! -x "$program" ]; then
    echo 'ok - the program on the emulated GPU # SKIP configured without --enable-emulation'
    tests=$((tests + 1))
    finish
fi
SECONDS_MOST=600 run whole 0 --emulated --program "$program" --only instructions --only kernels/add --only kernels-tc/gemm \
    --only engine/f32 --only engine/bf16-tc --only engine/offload-file --only ranks/3 --only nccl/bf16 --only nccl/killed \
    --only takes/bf16 --only snapshots/f32 --only bench/kernels-bf16-tc --only bench/read --only bench/snapshot
ok 'its program passes on the emulated GPU' $?
says whole '^14 passed, 0 failed, 0 not run' && says whole '^GPU 1: '
ok 'all that was asked for was run' $?
EMU_FAIL_AT=300 run broken 1 --emulated --program "$program" --only engine/f32 && says broken '^engine/f32 +FAILED +1 rank on emulated in f32: '
ok 'a GPU that fails is a failure, with its words' $?
EMU_DEVICES=1 run one 0 --emulated --program "$program" --only nccl && says one '^nccl/f32 +not run: one GPU$'
ok 'with one GPU there is nothing for NCCL' $?
finish
