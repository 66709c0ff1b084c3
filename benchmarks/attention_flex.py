#!/usr/bin/env python3
"""Fused attention against compiled FlexAttention, forward, in turn in one process: causal, window, soft-cap, documents.

    <python of `make python-peers`> benchmarks/attention_flex.py [--output FILE] [--dtypes float32,bfloat16] [--pairs 21]
                                                                 [--budget SECONDS] [--build BUILD]

FlexAttention is compiled (torch.compile); it has no backward on the CPU. Ours is torch.ops.fovea.attention. --output merges
the cases into FILE, as attention_pointwise does.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import functools
import json
import pathlib
import statistics
import time

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

ROOT = pathlib.Path(__file__).resolve().parent.parent
WINDOW, CAP, DOCUMENTS, WIDTH = 256, 30.0, 8, 64


def causal(b, h, i, j):
    return i >= j


def windowed(b, h, i, j):
    return (i >= j) & (i - j < WINDOW)


def capped(score, b, h, i, j):
    return CAP * torch.tanh(score / CAP)


def cases(length: int):
    """Name, FlexAttention's mask and score rules, our spec and keywords."""
    labels = torch.arange(length) * DOCUMENTS // length

    def documents(b, h, i, j):
        return (i >= j) & (labels[i] == labels[j])

    offsets = torch.tensor([length * n // DOCUMENTS for n in range(DOCUMENTS + 1)])
    yield "causal", causal, None, "", {}
    yield f"window {WINDOW}", windowed, None, json.dumps({"mask": {"window": WINDOW}}), {}
    yield "soft-cap", causal, capped, json.dumps({"soft_cap": CAP}), {}
    yield f"{DOCUMENTS} documents", documents, None, "", {"document_offsets": offsets}


def seconds(action) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def quartiles(x: list[float]) -> dict[str, float]:
    q1, median, q3 = statistics.quantiles(x, n=4, method="inclusive")
    return {"q1": q1, "median": median, "q3": q3}


def measure(options, ours, other) -> dict:
    ours(), other()
    pairs, spent = [], 0.0
    while len(pairs) < options.pairs and (len(pairs) < 5 or spent < options.budget):
        pairs.append((seconds(ours), seconds(other)))
        spent += sum(pairs[-1])
    return {"pairs": len(pairs), "fovea_ms": quartiles([a * 1e3 for a, _ in pairs]),
            "other_ms": quartiles([b * 1e3 for _, b in pairs]), "ratio": quartiles([b / a for a, b in pairs]),
            "threads": torch.get_num_threads()}


def write(path: str, results: list[dict], command: str) -> None:
    file = pathlib.Path(path)
    content = json.loads(file.read_text()) if file.exists() else {"benchmark": "attention_pointwise", "results": []}
    names = {x["name"] for x in results}
    content["results"] = [x for x in content["results"] if x["name"] not in names] + results
    content.setdefault("commands", {})[f"attention_flex.py {command}"] = torch.__version__
    file.write_text(json.dumps(content, indent=2) + "\n")


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output")
    parser.add_argument("--build", default=ROOT / "build", type=pathlib.Path)
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--budget", type=float, default=5.0)
    options = parser.parse_args()
    torch.ops.load_library(options.build / "lib/libfovea_ops.so")
    torch.set_num_threads(1)
    compiled, results, length = torch.compile(flex_attention), [], options.length
    for dtype in options.dtypes.split(","):
        q, k, v = (torch.randn(1, 2, length, WIDTH, dtype=getattr(torch, dtype)) for _ in range(3))
        for name, mask, score, spec, keywords in cases(length):
            block_mask = create_block_mask(mask, None, None, length, length, device="cpu")
            other = functools.partial(compiled, q, k, v, block_mask=block_mask, score_mod=score)
            ours = functools.partial(torch.ops.fovea.attention, q, k, v, spec, **keywords)
            difference = (ours()[0].float() - other().float()).abs().max().item()
            assert difference < (1e-4 if dtype == "float32" else 5e-2), f"{name}: results differ by {difference}"
            result = {"name": f"forward vs FlexAttention, {name}, {dtype} d={WIDTH} T={length} H=2"}
            result |= measure(options, ours, other)
            results.append(result)
            print(f"{result['name']:64} {result['fovea_ms']['median']:9.3f} ms  ratio {result['ratio']['median']:.2f} "
                  f"({result['ratio']['q1']:.2f} to {result['ratio']['q3']:.2f})", flush=True)
    if options.output:
        write(options.output, results, f"--dtypes {options.dtypes} --length {length}")


if __name__ == "__main__":
    main()
