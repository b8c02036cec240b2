#!/usr/bin/env python3
"""The stored expectations are what this PyTorch and this transformers compute."""
import math
import os
import subprocess
import sys

here = os.path.dirname(os.path.abspath(__file__))


def differ(want, got):
    w, g = want.split(), got.split()
    if w[:-1] != g[:-1]:
        return True
    try:
        return not math.isclose(float(w[-1]), float(g[-1]), rel_tol=1e-6, abs_tol=1e-10)
    except ValueError:
        return w != g


with open(os.path.join(here, "expected_gpt2.txt")) as f:
    stored = f.read().splitlines()
made = subprocess.run([sys.executable, os.path.join(here, "make_expectations.py")], check=True, text=True,
                      stdout=subprocess.PIPE).stdout.splitlines()
wrong = [(w, g) for w, g in zip(stored, made) if differ(w, g)]
ok = not wrong and len(stored) == len(made)
print("1..1")
for w, g in wrong[:10]:
    print(f"# stored: {w}\n# made:   {g}")
print("ok 1 - expected_gpt2.txt is what PyTorch computes" if ok else "not ok 1 - expected_gpt2.txt differs")
sys.exit(0 if ok else 1)
