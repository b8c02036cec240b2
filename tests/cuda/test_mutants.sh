#!/usr/bin/env bash
# Some of the seeded faults of tests/cuda/mutants, chosen by GFS_TEST_SEED or else by the commit: each must be caught.
set -u
commit=$(git -C "${GFS_SRC:?is set by make check}" rev-parse HEAD 2>/dev/null) || commit=$(date +%Y%m%d)
seed=${GFS_TEST_SEED-$((16#${commit:0:8}))}
for tool in rsync patch; do
    command -v $tool >/dev/null || { echo "1..0 # SKIP $tool is not installed"; exit 77; }
done
echo "# seed $seed; all of them: tests/cuda/mutants/run --all"
exec timeout --kill-after=10 600 "$GFS_SRC/tests/cuda/mutants/run" --seed "$seed" --count "${GFS_MUTANTS-3}"
