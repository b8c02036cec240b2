#!/usr/bin/env python3
"""hf/ of a snapshot, loaded by transformers, gives the loss that the run itself computes next.

The text is one sequence long, so every sequence of every batch is the same, and the loss of step s + 1 (metrics.tsv: the loss
that made update s + 1) is the loss of the model that the snapshot of step s holds."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

BUILD = os.environ["GFS_BUILD"]
TEXT = "In the beginning God created the heaven and the earth. Ünïcode – too: ☃! And the earth was without form, and void"
number = failed = 0


def test(name, ok, detail=""):
    global number, failed
    number += 1
    failed += not ok
    print(f"{'ok' if ok else 'not ok'} {number} - {name}", flush=True)
    if detail:
        print(f"# {detail}", flush=True)


def command(run_dir, *words):
    subprocess.run([os.path.join(BUILD, "gatherfs"), "command", run_dir, *words], check=True)


def hf_of(run_dir, name, folder):
    """Copies hf/ out of an offline mount."""
    mnt = os.path.join(folder, "mnt")
    os.mkdir(mnt)
    p = subprocess.Popen([os.path.join(BUILD, "gatherfs"), "mount", run_dir, mnt])
    try:
        source = os.path.join(mnt, "snapshots", name, "hf")
        for _ in range(100):
            if os.path.isdir(source):
                break
            time.sleep(0.1)
        shutil.copytree(source, os.path.join(folder, "hf"))
    finally:
        p.send_signal(signal.SIGINT)
        p.wait(20)
    return os.path.join(folder, "hf")


def main():
    no_mount = os.environ.get("GFS_NO_MOUNT") or ("" if os.path.exists("/dev/fuse") else "there is no /dev/fuse")
    if no_mount:
        print(f"1..0 # SKIP {no_mount}")
        return 77
    folder = tempfile.mkdtemp(prefix="gatherfs-hf.")
    data = TEXT.encode()
    seq_len = len(data) - 1  # the last token is a target only
    run_dir = os.path.join(folder, "run")
    try:
        with open(os.path.join(folder, "text"), "wb") as f:
            f.write(data)
        ranks = "1" if os.environ.get("GFS_MPI_NAME") == "none" else "2"
        run = subprocess.Popen(
            [os.path.join(BUILD, "gatherfs"), "run", "--no-mount", "--run-dir", run_dir, "--model", "gpt2:tiny", "--data",
             os.path.join(folder, "text"), "--ranks", ranks, "--global-batch", "4", "--seq-len", str(seq_len), "--steps", "1000",
             "--paused"], stdout=subprocess.DEVNULL)
        for _ in range(300):
            if os.path.exists(os.path.join(run_dir, "socket")):
                break
            time.sleep(0.1)
        command(run_dir, "step", "20")
        command(run_dir, "snapshot", "twenty")
        command(run_dir, "step", "1")
        with open(os.path.join(run_dir, "metrics.tsv")) as f:
            row = f.read().split("\n")[21].split("\t")
        command(run_dir, "stop", "1")
        run.wait(30)
        ours = float(row[4])

        hf = hf_of(run_dir, "twenty", folder)
        tokenizer = AutoTokenizer.from_pretrained(hf)
        ids = tokenizer(TEXT).input_ids
        test("the tokenizer has a token a byte", len(ids) == len(data), f"{len(ids)} tokens of {len(data)} bytes")
        test("... and gives the text back", tokenizer.decode(ids) == TEXT)
        model, info = AutoModelForCausalLM.from_pretrained(hf, output_loading_info=True)
        test("the model loads with no key missing or left over",
             not info["missing_keys"] and not info["unexpected_keys"], str(info))
        ids = torch.tensor([ids])
        with torch.no_grad():
            logits = model(ids[:, :-1]).logits
        theirs = torch.nn.functional.cross_entropy(logits[0].double(), ids[0, 1:]).item()
        test("its loss is ours", row[0] == "21" and abs(theirs - ours) < 1e-5 * ours,
             f"step {row[0]}: ours {ours:.8g}, transformers {theirs:.8g}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"1..{number}")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
