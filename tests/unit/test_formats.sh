#!/bin/sh
# What numpy, safetensors and transformers make of our files, where they are installed.
command -v python3 >/dev/null || { echo "no python3 here"; exit 77; }
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
"$GFS_BUILD/tests/unit/write_formats" "$dir" || { echo "1..1"; echo "not ok 1 - write_formats"; exit 1; }
TRANSFORMERS_OFFLINE=1 HF_HUB_OFFLINE=1 python3 "$GFS_SRC/tests/unit/read_formats.py" "$dir"
