#!/usr/bin/env python3
"""Peer of the training-step benchmark: the same model in PyTorch eager at its best settings.

    train_step_peer.py SIZES float32|autocast|cast THREADS [cuda]

SIZES is the JSON that `train_step_worker` answers to "about"; the protocol on stdin is the worker's (train_step.cpp).
Eager means no torch.compile; everything else is as fast as PyTorch offers it: scaled_dot_product_attention with
is_causal, stacked projections, F.rms_norm, foreach gradient clipping, fused AdamW, gradients set to None.

bfloat16 has two forms, and the benchmark takes the faster one: `autocast` (PyTorch's own, weights cast where used), and
`cast` (a bfloat16 copy of the float32 masters made once a step, everything between in bfloat16).

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import contextlib
import ctypes
import json
import signal
import sys
import time

import torch
import torch.nn.functional as F


class TokenStream:
    """The worker's linear congruential generator."""

    def __init__(self) -> None:
        self.state = 1

    def next(self) -> int:
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return self.state >> 56

    def batch(self, rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        text = torch.tensor([[self.next() for _ in range(length + 1)] for _ in range(rows)])
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def rotate(x_bhtd: torch.Tensor, cos_td: torch.Tensor, sin_td: torch.Tensor) -> torch.Tensor:
    """Half-split RoPE; sin_td carries the sign of the first half."""
    half = x_bhtd.shape[-1] // 2
    return x_bhtd * cos_td + x_bhtd.roll(half, -1) * sin_td


class Layer(torch.nn.Module):
    def __init__(self, sizes: dict) -> None:
        super().__init__()
        self.sizes = sizes
        width, ffn, d = sizes["width"], sizes["ffn_width"], sizes["head_dim"]
        self.split = [sizes["heads"] * d, sizes["kv_heads"] * d, sizes["kv_heads"] * d]
        self.input_norm = torch.nn.Parameter(torch.ones(width))
        self.qkv = matrix(sum(self.split), width)
        self.out = matrix(width, self.split[0])
        if sizes["qk_norm"]:
            self.q_gain, self.k_gain = torch.nn.Parameter(torch.ones(d)), torch.nn.Parameter(torch.ones(d))
        self.post_norm = torch.nn.Parameter(torch.ones(width))
        self.gate_up = matrix(2 * ffn, width)
        self.down = matrix(width, ffn)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        s, eps = self.sizes, self.sizes["norm_eps"]
        y = F.rms_norm(x, (s["width"],), self.input_norm, eps)
        q, k, v = (part.unflatten(-1, (-1, s["head_dim"])) for part in F.linear(y, self.qkv).split(self.split, -1))
        if s["qk_norm"]:
            q = F.rms_norm(q, (s["head_dim"],), self.q_gain.to(q.dtype), eps)
            k = F.rms_norm(k, (s["head_dim"],), self.k_gain.to(k.dtype), eps)
        q, k = (rotate(part.transpose(1, 2), cos, sin) for part in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True,
                                               enable_gqa=s["heads"] != s["kv_heads"])
        x = x + F.linear(mixed.transpose(1, 2).flatten(2), self.out)
        gate, up = F.linear(F.rms_norm(x, (s["width"],), self.post_norm, eps), self.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.down)


def matrix(rows: int, columns: int) -> torch.nn.Parameter:
    std = columns**-0.5
    return torch.nn.Parameter(torch.nn.init.trunc_normal_(torch.empty(rows, columns), 0.0, std, -3 * std, 3 * std))


class Model(torch.nn.Module):
    def __init__(self, sizes: dict) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding = matrix(sizes["vocabulary"], sizes["width"])
        self.layers = torch.nn.ModuleList(Layer(sizes) for _ in range(sizes["layers"]))
        self.norm = torch.nn.Parameter(torch.ones(sizes["width"]))
        if not sizes["tied"]:
            self.head = matrix(sizes["vocabulary"], sizes["width"])
        d, length = sizes["head_dim"], sizes["length"]
        angle = torch.outer(torch.arange(length, dtype=torch.float64),
                            sizes["theta"] ** (-torch.arange(0, d, 2, dtype=torch.float64) / d))
        self.register_buffer("cos", angle.cos().repeat(1, 2).float())
        self.register_buffer("sin", torch.cat([-angle.sin(), angle.sin()], 1).float())

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        x = F.embedding(tokens, self.embedding).to(dtype)
        cos, sin = self.cos.to(dtype), self.sin.to(dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        x = F.rms_norm(x, (self.sizes["width"],), self.norm, self.sizes["norm_eps"])
        logits = F.linear(x, self.embedding if self.sizes["tied"] else self.head)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Worker:
    def __init__(self, sizes: dict, form: str, device: str) -> None:
        torch.manual_seed(0)
        self.sizes, self.form, self.device, self.tokens = sizes, form, device, TokenStream()
        self.model = Model(sizes).to(device)
        self.used = list(self.model.parameters())
        # cast: the model holds the bfloat16 copy, and the optimizer the masters.
        self.masters = [torch.nn.Parameter(p.detach().clone()) for p in self.used] if form == "cast" else self.used
        if form == "cast":
            self.model.to(torch.bfloat16)
        groups = [{"params": [p for p in self.masters if p.dim() > 1], "weight_decay": sizes["weight_decay"]},
                  {"params": [p for p in self.masters if p.dim() < 2], "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=sizes["learning_rate"], betas=tuple(sizes["betas"]), fused=True)

    def step(self) -> tuple[float, float]:
        tokens, targets = self.tokens.batch(self.sizes["rows"], self.sizes["length"])
        start = time.perf_counter()
        tokens, targets = tokens.to(self.device), targets.to(self.device)
        if self.form == "cast":
            with torch.no_grad():
                torch._foreach_copy_(self.used, self.masters)
        dtype = torch.float32 if self.form == "float32" else torch.bfloat16
        autocast = torch.autocast(self.device, torch.bfloat16) if self.form == "autocast" else contextlib.nullcontext()
        with autocast:
            # Under autocast the residual stream stays float32, as PyTorch's own recipe has it.
            loss = self.model(tokens, targets, torch.float32 if self.form == "autocast" else dtype)
        loss.backward()
        if self.form == "cast":
            for master, used in zip(self.masters, self.used):
                master.grad, used.grad = used.grad.float(), None
        torch.nn.utils.clip_grad_norm_(self.masters, self.sizes["clip"], foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        return 1e3 * (time.perf_counter() - start), value


def peak_memory(device: str) -> int:
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def main() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a killed driver leaves no worker behind
    sizes, form, threads = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    device = sys.argv[4] if len(sys.argv) > 4 else "cpu"
    torch.set_num_threads(threads)
    worker = Worker(sizes, form, device)
    for line in sys.stdin:
        command = line.strip()
        if command == "about":
            answer = json.dumps({"torch": torch.__version__, "python": sys.version.split()[0], "form": form,
                                 "threads": torch.get_num_threads(),
                                 "parameters": sum(p.numel() for p in worker.used)})
        elif command == "step":
            answer = "{:.4f} {:.6f}".format(*worker.step())
        elif command == "memory":
            answer = str(peak_memory(device))
        elif command == "quit":
            return
        else:
            sys.exit(f"train_step_peer: expected about, step, memory or quit; got '{command}'")
        print(answer, flush=True)


if __name__ == "__main__":
    main()
