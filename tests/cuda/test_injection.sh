#!/usr/bin/env bash
# Calls of CUDA that fail in the middle of a run: some of them, chosen by a seed.
export GFS_TEST_SEED=${GFS_TEST_SEED-$RANDOM}
exec "${GFS_BUILD:?}/tests/cuda/injection" "$@"
