#!/usr/bin/env python3
"""A study of one's own attention: sigmoid weights, in a few lines of PyTorch, beside Fovea's softmax and Multi-Token.

    python examples/own_attention.py README.md --out runs/own
    fovea compare runs/own/compare.json        # verdicts over the seeds, runs/own/compare.html

All variants train the small GPT of small_gpt.py on bytes of one text, with the same starts and order of data per seed.
Needs the Python package (docs/python.md).

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
import argparse
import math
import time
from pathlib import Path

import torch
from small_gpt import GPT
from torch import nn

import fovea
import fovea.comparison

CONTEXT, ROWS, HEADS = 128, 8, 4


class SigmoidAttention(fovea.nn.Attention):
    """Yours goes here. A key's weight is sigmoid(logit - log(keys seen)): weights do not compete for a sum of 1.

    x [b, t, width] to [b, t, width]. The projections are those of the base class, so all variants start alike.
    """

    def forward(self, x, cache=None):
        q, k, v = (f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        place = torch.arange(x.shape[1])
        distance = place[:, None] - place
        slopes = 2.0 ** (-8.0 * torch.arange(1, HEADS + 1) / HEADS)  # of ALiBi
        logits = q @ k.mT / math.sqrt(q.shape[-1]) - slopes[:, None, None] * distance
        weights = torch.sigmoid(logits - torch.log(place + 1.0)[:, None]).masked_fill(distance < 0, 0.0)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(2))


VARIANTS = {
    "softmax": ("fovea.nn.Attention", lambda width: fovea.nn.Attention(width, HEADS, bias=fovea.Alibi())),
    "sigmoid": ("SigmoidAttention of this file", lambda width: SigmoidAttention(width, HEADS)),
    "multi-token": ("fovea.nn.MultiTokenAttention", lambda width: fovea.nn.MultiTokenAttention(width, HEADS, bias=fovea.Alibi())),
}


def loss_of(model, rows):
    return nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


@torch.no_grad()
def score(model, text):
    """Nats per byte over windows of the text that do not overlap, at most 64."""
    starts = range(0, min(len(text) - CONTEXT - 1, 64 * CONTEXT), CONTEXT)
    return loss_of(model, torch.stack([text[n : n + CONTEXT + 1] for n in starts])).item()


def train(make_attention, text, held_out, seed, steps, width):
    """One run: what Comparison.add_run takes."""
    torch.manual_seed(seed)
    model, data = GPT(make_attention, width=width, layers=2), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses, validation, seconds = [], [], 0.0
    for step in range(1, steps + 1):
        start = time.perf_counter()
        at = torch.randint(len(text) - CONTEXT, (ROWS,), generator=data).tolist()
        loss = loss_of(model, torch.stack([text[n : n + CONTEXT + 1] for n in at]))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        seconds += time.perf_counter() - start
        losses.append((step, loss.item()))
        if step % max(1, steps // 4) == 0 or step == steps:
            validation.append((step, score(model, held_out) / math.log(2)))
    return {"seed": seed, "parameters": sum(p.numel() for p in model.parameters()), "seconds": seconds, "losses": losses,
            "validation": validation, "bits_per_byte": validation[-1][1], "loss": validation[-1][1] * math.log(2)}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("text", type=Path)
    arguments.add_argument("--out", type=Path, default=Path("runs/own"))
    arguments.add_argument("--steps", type=int, default=150)
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--width", type=int, default=64)
    given = arguments.parse_args()
    text = torch.frombuffer(bytearray(given.text.read_bytes()), dtype=torch.uint8).long()
    part = max(len(text) // 10, CONTEXT + 2)
    if len(text) < 2 * part:
        arguments.error(f"expected a text of {2 * CONTEXT + 4} bytes or more; got {len(text)}")
    results = fovea.comparison.Comparison("An attention of one's own", reference="softmax", text=given.text, steps=given.steps,
                                          tokens=given.steps * ROWS * CONTEXT, validation_bytes=part)
    for seed in range(given.seeds):
        for name, (description, make_attention) in VARIANTS.items():
            run = train(make_attention, text[:-part], text[-part:], seed, given.steps, given.width)
            results.add_run(name, description=description, **run)
            print(f"{name:12} seed {seed}  {run['bits_per_byte']:.4f} bits per byte  {run['seconds']:.1f} s", flush=True)
    results.save(given.out / "compare.json")
    print(f"fovea compare {given.out / 'compare.json'}")


if __name__ == "__main__":
    main()
