#!/usr/bin/env python3
"""Peer of the benchmarks with a real model: `transformers`, its cache and its best attention on this machine (sdpa).

    real_model_transformers.py FOLDER THREADS POSITION TOKENS        the protocol on stdin is that of real_model.cpp

The model computes in the dtype of its files; a prompt is read whole, with the logits of its last token alone.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import json
import sys
import time

import torch
import transformers


def main() -> None:
    folder, threads, position, tokens = sys.argv[1], *map(int, sys.argv[2:5])
    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto", attn_implementation="sdpa").eval()
    prompt = torch.tensor([[100 + (17 * i + 5) % 1000 for i in range(position)]])

    def read() -> tuple[float, transformers.DynamicCache]:
        cache = transformers.DynamicCache(config=model.config)
        start = time.perf_counter()
        model(prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return (time.perf_counter() - start) * 1e3, cache

    def write(cache: transformers.DynamicCache) -> float:
        token = torch.full((1, 1), 100)
        start = time.perf_counter()
        for _ in range(tokens):
            token = model(token, past_key_values=cache, use_cache=True).logits[:, -1].argmax(-1)[:, None]
        taken = (time.perf_counter() - start) * 1e3
        cache.crop(-tokens)  # back to the start: transformers 5 takes what to remove
        return taken

    with torch.inference_mode():
        _, cache = read()
        for line in sys.stdin:
            if line.strip() == "about":
                print(json.dumps({"transformers": transformers.__version__, "torch": torch.__version__, "dtype": str(model.dtype)}), flush=True)
            elif line.strip() == "prompt":
                print(read()[0], flush=True)
            elif line.strip() == "step":
                print(write(cache), flush=True)


if __name__ == "__main__":
    main()
