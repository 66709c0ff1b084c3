#!/usr/bin/env python3
"""A small GPT on bytes, whose attention is one call: swap it for Multi-Token Attention by `--multi-token`.
With `--write N` it then writes N bytes, each from a cache of the text before.

Needs the Python package (docs/python.md): python examples/small_gpt.py README.md --steps 100

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
import argparse
from pathlib import Path

import torch
from torch import nn

import fovea


class Block(nn.Module):
    def __init__(self, width, attention):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = attention
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, cache=None):
        x = x + self.attention(self.norms[0](x), cache=cache)
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self, make_attention, width=128, layers=3):
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(Block(width, make_attention(width)) for _ in range(layers))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 256))

    def forward(self, tokens, caches=None):
        x = self.embedding(tokens)
        for n, block in enumerate(self.blocks):
            x = block(x, caches[n] if caches else None)
        return self.head(x)

    @torch.no_grad()
    def write(self, tokens, count):
        """tokens [1, t] and the `count` likeliest bytes behind them, one after another."""
        caches, new = [fovea.Cache() for _ in self.blocks], tokens
        for _ in range(count):
            new = self(new, caches)[:, -1:].argmax(-1)
            tokens = torch.cat([tokens, new], 1)
        return tokens


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("text", type=Path)
    arguments.add_argument("--multi-token", action="store_true")
    arguments.add_argument("--steps", type=int, default=100)
    arguments.add_argument("--write", type=int, default=0)
    given = arguments.parse_args()

    # The swap: a module for another. ALiBi stands for positions in both.
    def make_attention(width):
        module = fovea.nn.MultiTokenAttention if given.multi_token else fovea.nn.Attention
        return module(width, 4, bias=fovea.Alibi())

    torch.manual_seed(0)
    text = torch.frombuffer(bytearray(given.text.read_bytes()), dtype=torch.uint8).long()
    model = GPT(make_attention)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(given.steps):
        starts = torch.randint(len(text) - 129, (8,)).tolist()
        batch = torch.stack([text[n : n + 129] for n in starts])
        loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 20 == 0 or step == given.steps - 1:
            print(f"step {step:4}  loss {loss.item():.3f}")
    if given.write:
        written = bytes(model.write(text[None, :64], given.write)[0].tolist())
        print("written", repr(written[64:].decode(errors="replace")))


if __name__ == "__main__":
    main()
