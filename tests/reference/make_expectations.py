#!/usr/bin/env python3
"""What PyTorch and transformers compute for small GPT-2s, for tests/unit/test_reference.c.

Usage: make_expectations.py > expected_gpt2.txt

Weights need no file: they are made here as the project makes them (src/device/philox.h). All is computed in float64 from
float32 weights. Lines: `case NAME`, `config JSON` (or `preset NAME`), `batch B T`, then values as `KIND ... VALUE`.
"""
import json
import sys

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

SEED = 42
LR, DECAY, CLIP, STEPS = 1e-2, 0.1, 1.0, 3


def philox(counter, key):
    """Philox 4x32-10 (Salmon et al., 2011) of counters (n, 4)."""
    c = [counter[:, i].astype(np.uint64) for i in range(4)]
    k = [key & 0xFFFFFFFF, key >> 32]
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        a = c[0] * np.uint64(0xD2511F53)
        b = c[2] * np.uint64(0xCD9E8D57)
        c = [(b >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]), b & low,
             (a >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]), a & low]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, axis=1)


def normal(elems, sequence, std):
    blocks = np.arange((elems + 3) // 4, dtype=np.uint64)
    counter = np.stack([blocks & np.uint64(0xFFFFFFFF), blocks >> np.uint64(32),
                        np.full_like(blocks, sequence), np.zeros_like(blocks)], axis=1)
    w = philox(counter, SEED).astype(np.float64)
    out = np.empty((len(blocks), 4))
    for pair in (0, 2):
        radius = np.sqrt(-2 * np.log((w[:, pair] + 1) * 2.0**-32))
        angle = 2 * np.pi * (w[:, pair + 1] * 2.0**-32)
        out[:, pair], out[:, pair + 1] = radius * np.cos(angle), radius * np.sin(angle)
    return (np.float64(np.float32(std)) * out.reshape(-1)[:elems]).astype(np.float32)


def names_of(layers):
    names = ["wte.weight", "wpe.weight"]
    for i in range(layers):
        for part in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"):
            names += [f"h.{i}.{part}.weight", f"h.{i}.{part}.bias"]
    return ["transformer." + n for n in names + ["ln_f.weight", "ln_f.bias"]]


def tokens_of(B, T, vocab):
    """harness_tokens of tests/unit/model_harness.c."""
    x, rows = 12345, []
    for _ in range(B):
        row = []
        for _ in range(T + 1):
            x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
            row.append((x >> 8) % vocab)
        rows.append(row)
    t = torch.tensor(rows)
    return t[:, :-1], t[:, 1:]


def make_model(config):
    model = GPT2LMHeadModel(config).double().eval()
    tensors = dict(model.named_parameters())
    names = names_of(config.n_layer)
    assert sorted(names) == sorted(tensors), "names differ"
    with torch.no_grad():
        for i, name in enumerate(names):
            p = tensors[name]
            if p.dim() == 1:
                p.fill_(1.0 if ".ln_" in name and name.endswith("weight") else 0.0)
                continue
            std = config.initializer_range
            if name.endswith("c_proj.weight"):
                std /= np.sqrt(2 * config.n_layer)
            p.copy_(torch.from_numpy(normal(p.numel(), i, std)).view_as(p))
    return model, [(n, tensors[n]) for n in names]


def indices_of(numel):
    return sorted({0, numel // 3, numel // 2, numel - 1})


def print_case(name, header, config, B, T):
    config._attn_implementation = "eager"
    model, tensors = make_model(config)
    tokens, targets = tokens_of(B, T, config.vocab_size)
    print(f"case {name}\n{header}\nbatch {B} {T}")
    for n, p in tensors:
        for i in indices_of(p.numel()):
            print(f"init {n} {i} {p.detach().reshape(-1)[i].item():.9g}")
    groups = [{"params": [p for _, p in tensors if p.dim() >= 2], "weight_decay": DECAY},
              {"params": [p for _, p in tensors if p.dim() < 2], "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=1e-8)
    print(f"optimizer {LR} {DECAY} {CLIP}")
    for step in range(STEPS):
        adamw.zero_grad()
        logits = model(tokens).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, config.vocab_size), targets.reshape(-1))
        loss.backward()
        print(f"loss {loss.item():.12g}")
        if step == 0:
            for n, p in tensors:
                g = p.grad.reshape(-1)
                print(f"grad_norm {n} {g.norm().item():.9g}")
                for i in indices_of(p.numel()):
                    print(f"grad {n} {i} {g[i].item():.9g}")
        norm = torch.nn.utils.clip_grad_norm_([p for _, p in tensors], CLIP)
        print(f"norm {norm.item():.12g}")
        adamw.step()
    for n, p in tensors:
        for i in indices_of(p.numel()):
            # A key's bias changes no probability: its gradient is rounding, which AdamW blows up.
            if abs(p.grad.reshape(-1)[i]) > 1e-9:
                print(f"param {n} {i} {p.detach().reshape(-1)[i].item():.9g}")


def main():
    off = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    odd = {"model_type": "gpt2", "n_layer": 2, "n_head": 3, "n_embd": 15, "n_positions": 11, "n_inner": 37,
           "vocab_size": 41, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, **off}
    print_case("odd", "config " + json.dumps(odd), GPT2Config(**odd, bos_token_id=0, eos_token_id=0), 2, 9)
    tiny = GPT2Config(n_layer=4, n_head=4, n_embd=128, n_positions=128, vocab_size=257, bos_token_id=256,
                      eos_token_id=256, **off)
    print_case("tiny", "preset gpt2:tiny", tiny, 3, 65)
    return 0


if __name__ == "__main__":
    sys.exit(main())
