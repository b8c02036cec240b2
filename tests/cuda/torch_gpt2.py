#!/usr/bin/env python3
"""Times GPT-2 124M in PyTorch, for tools/gpu-check: bf16 autocast, torch.compile, scaled dot product attention, fused
AdamW, on random tokens.

The model is nanoGPT's: pre-norm blocks, GELU by tanh, tied embeddings, no dropout; its vocabulary is rounded up to 50304.
Prints lines as tests/cuda/gpu_check.h has them."""

import argparse
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

VOCAB = 50304


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.attn_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.mlp_proj = nn.Linear(4 * width, width)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in self.c_attn(self.ln_1(x)).split(C, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, layers, width, heads, context):
        super().__init__()
        self.wte = nn.Embedding(VOCAB, width)
        self.wpe = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, VOCAB, bias=False)
        self.lm_head.weight = self.wte.weight
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


def optimizer_of(model, device):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=device == "cuda")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    device = args.device
    if device == "cuda" and not torch.cuda.is_available():
        print(f"result\tbench/torch\tnot run\tPyTorch {torch.__version__} sees no GPU")
        return
    model = GPT2(args.layers, 768, 12, args.seq).to(device)
    optimizer = optimizer_of(model, device)
    step_of = model if args.no_compile else torch.compile(model)
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None

    times = []
    for step in range(args.steps):
        tokens = torch.randint(VOCAB - 47, (args.batch, args.seq + 1), device=device)
        synchronize()
        start = time.perf_counter()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = step_of(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        synchronize()
        times.append(time.perf_counter() - start)

    ms = 1e3 * statistics.median(times[len(times) // 3 :])
    tokens_per_s = args.batch * args.seq / ms * 1e3
    print(f"figure\tbench/torch\t{tokens_per_s:.0f} tokens/s, {ms:.2f} ms/step of {args.batch} x {args.seq}\t")
    print(f"result\tbench/torch\tok\tPyTorch {torch.__version__}, {args.batch} x {args.seq} tokens, loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
