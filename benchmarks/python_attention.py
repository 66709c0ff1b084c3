#!/usr/bin/env python3
"""The Python package against PyTorch, in turn in one process, on one thread: call overhead, attention, Multi-Token, a model.

    PYTHONPATH=build/python-package <python of `make python-peers`> benchmarks/python_attention.py [--output FILE]
        [--only overhead,attention,multi_token,decode,model] [--pairs 7] [--length 2048] [--dtype float32]

attention: forward and backward of one layer of SmolLM2-135M's shape. --dtype is that of attention and model. multi_token: forward and backward beside the
plain composition of python/tests/eager.py, whose maps are quadratic. decode: 64 tokens one by one over --length earlier
ones, of the same layer; SDPA reads a buffer that is filled likewise. model: forward and backward of SmolLM2-135M's
architecture with random weights, loss included. Times are CPU time of the process: other work on the machine does not count.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
import argparse
import json
import pathlib
import statistics
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python/tests"))
from eager import attend  # noqa: E402
from train_step import commit, cpu_kind, quartiles  # noqa: E402

import fovea  # noqa: E402
import fovea.transformers  # noqa: E402

HEADS, KV_HEADS, WIDTH = 9, 3, 64


def cost(action) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def compare(name: str, ours, other, pairs: int, warm: bool = False) -> dict:
    if not warm:
        ours(), other()
    taken = [(cost(ours), cost(other)) for _ in range(pairs)]
    ratio = quartiles([b / a for a, b in taken])
    print(f"{name:60} {statistics.median(a for a, _ in taken) * 1e3:10.3f} ms  ratio {ratio['median']:.2f}", flush=True)
    return {"name": name, "pairs": pairs, "fovea_ms": quartiles([a * 1e3 for a, _ in taken]),
            "other_ms": quartiles([b * 1e3 for _, b in taken]), "ratio": ratio}


def rows(length: int, dtype=torch.float32):
    return [torch.randn(1, h, length, WIDTH, dtype=dtype, requires_grad=True) for h in (HEADS, KV_HEADS, KV_HEADS)]


def sdpa(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def overhead(options) -> dict:
    """1000 calls on one token of one head, without gradients: fovea_ms and other_ms are microseconds a call."""
    q, k, v = (torch.randn(1, 1, 1, WIDTH) for _ in range(3))

    @torch.no_grad()
    def calls(function):
        for _ in range(1000):
            function(q, k, v)

    return compare("1000 calls on one token vs SDPA", lambda: calls(fovea.attention), lambda: calls(sdpa), options.pairs)


def attention(options) -> dict:
    q, k, v = rows(options.length, getattr(torch, options.dtype))
    run = [lambda f=f: torch.autograd.grad(f(q, k, v).sum(), (q, k, v)) for f in (fovea.attention, sdpa)]
    return compare(f"layer, forward + backward vs SDPA, {options.dtype} T={options.length}", *run, options.pairs)


def multi_token(options) -> dict:
    length = options.length // 2
    q, k, v = rows(length)
    kernel = (torch.randn(HEADS, 6, 11) * 0.1).requires_grad_()
    run = [lambda: torch.autograd.grad(fovea.attention(q, k, v, multi_token=fovea.MultiToken(before=kernel)).sum(),
                                       (q, k, v, kernel)),
           lambda: torch.autograd.grad(attend(q, k, v, before=kernel)[0].sum(), (q, k, v, kernel))]
    return compare(f"Multi-Token 6 x 11, forward + backward vs composition, float32 T={length}", *run, options.pairs)


def decode(options) -> dict:
    length, tokens = options.length, 64
    q, k, v = (x.detach() for x in rows(length + tokens))
    cache, buffers = fovea.Cache(length + tokens), [torch.empty_like(x) for x in (k, v)]
    fovea.decode(*(x[:, :, :length] for x in (q, k, v)), cache)
    for buffer, x in zip(buffers, (k, v)):
        buffer[:, :, :length] = x[:, :, :length]

    def ours():
        cache.truncate(length)
        for n in range(length, length + tokens):
            fovea.decode(*(x[:, :, n : n + 1] for x in (q, k, v)), cache)

    @torch.no_grad()
    def theirs():
        for n in range(length, length + tokens):
            for buffer, x in zip(buffers, (k, v)):
                buffer[:, :, n : n + 1] = x[:, :, n : n + 1]
            torch.nn.functional.scaled_dot_product_attention(q[:, :, n : n + 1], *(x[:, :, : n + 1] for x in buffers),
                                                             enable_gqa=True)

    return compare(f"decoding {tokens} tokens over T={length} vs SDPA, float32", ours, theirs, options.pairs)


def model(options) -> dict:
    import transformers

    fovea.transformers.register()
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, max_position_embeddings=8192, tie_word_embeddings=True)
    torch.manual_seed(0)
    tokens = torch.randint(0, 49152, (1, options.length))
    net = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="fovea", dtype=options.dtype)

    def step(implementation, count=options.length):
        net.set_attn_implementation(implementation)
        net(tokens[:, :count], labels=tokens[:, :count]).loss.backward()
        net.zero_grad()

    step("fovea", 64), step("sdpa", 64)  # a step of the whole length takes half a minute
    return compare(f"SmolLM2-135M, forward + backward vs SDPA, {options.dtype} T={options.length}", lambda: step("fovea"),
                   lambda: step("sdpa"), min(options.pairs, 3), warm=True)


def main() -> None:
    cases = {f.__name__: f for f in (overhead, attention, multi_token, decode, model)}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--only", default=",".join(cases))
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = [cases[name](options) for name in options.only.split(",")]
    if not options.output:
        return
    content = {"benchmark": "python_attention", "ratio": "PyTorch / Fovea, above 1 Fovea is faster; CPU time of one thread",
               "commands": {}, "machine": {"cpu": cpu_kind(), "device": "cpu", "torch": torch.__version__},
               "results": []}
    if options.output.exists():
        content = json.loads(options.output.read_text())
    names = {x["name"] for x in results}
    content["results"] = [x for x in content["results"] if x["name"] not in names] + results
    content["commands"][f"--only {options.only} --pairs {options.pairs} --length {options.length} --dtype {options.dtype}"] = commit()
    options.output.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
