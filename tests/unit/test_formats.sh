#!/bin/sh
# What numpy, safetensors and transformers make of our files, where they are installed.
command -v python3 >/dev/null || { echo "no python3 here"; exit 77; }
# A python3 of the user's own may lack what Debian's has.
python=python3
python3 -c 'import numpy' 2>/dev/null || [ ! -x /usr/bin/python3 ] || python=/usr/bin/python3
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
"$GFS_BUILD/tests/unit/write_formats" "$dir" || { echo "1..1"; echo "not ok 1 - write_formats"; exit 1; }
TRANSFORMERS_OFFLINE=1 HF_HUB_OFFLINE=1 $python "$GFS_SRC/tests/unit/read_formats.py" "$dir"
