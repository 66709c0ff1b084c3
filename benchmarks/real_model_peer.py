#!/usr/bin/env python3
"""Peer of the benchmarks with a real model: llama.cpp through llama-cpp-python.

    real_model_peer.py MODEL.gguf THREADS POSITION TOKENS        the protocol on stdin is that of real_model.cpp

Prompts are read in its own batches of 512; a token's likeliest successor is found in its logits, as the other side does.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import json
import sys
import time

import llama_cpp
import numpy


def main() -> None:
    path, threads, position, tokens = sys.argv[1], *map(int, sys.argv[2:5])
    model = llama_cpp.Llama(path, n_ctx=position + tokens, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False)
    prompt = [17 * i + 5 for i in range(position)]
    prompt = [100 + n % 1000 for n in prompt]

    def read() -> float:
        model.reset()
        start = time.perf_counter()
        model.eval(prompt)
        return (time.perf_counter() - start) * 1e3

    def write() -> float:
        token = 100
        start = time.perf_counter()
        for _ in range(tokens):
            model.eval([token])
            logits = llama_cpp.llama_get_logits_ith(model.ctx, -1)
            token = int(numpy.ctypeslib.as_array(logits, (model.n_vocab(),)).argmax())
        taken = (time.perf_counter() - start) * 1e3
        model.n_tokens = position  # eval() drops what stands behind it
        return taken

    texts = 0
    shared = None  # a context with a cache of its own for each text

    def write_together(count: int) -> float:
        nonlocal texts, shared
        if texts != count:
            settings = model.context_params
            settings.n_ctx, settings.n_seq_max, settings.kv_unified = count * (position + tokens), count, False
            texts, shared = count, llama_cpp.llama_init_from_model(model.model, settings)
            for text in range(count):
                for begin in range(0, position, 512):
                    decode([(token, begin + n, text) for n, token in enumerate(prompt[begin:begin + 512])])
        latest = [100] * count
        start = time.perf_counter()
        for n in range(tokens):
            decode([(token, position + n, text) for text, token in enumerate(latest)])
            logits = llama_cpp.llama_get_logits(shared)
            latest = numpy.ctypeslib.as_array(logits, (count, model.n_vocab())).argmax(axis=1).tolist()
        taken = (time.perf_counter() - start) * 1e3
        for text in range(count):
            llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(shared), text, position, -1)
        return taken

    def decode(items: list[tuple[int, int, int]]) -> None:
        """Tokens at their positions of their texts; logits of the last of each text."""
        batch = llama_cpp.llama_batch_init(len(items), 0, 1)
        batch.n_tokens = len(items)
        for n, (token, place, text) in enumerate(items):
            batch.token[n], batch.pos[n], batch.n_seq_id[n], batch.seq_id[n][0] = token, place, 1, text
            batch.logits[n] = n + 1 == len(items) or items[n + 1][2] != text
        code = llama_cpp.llama_decode(shared, batch)
        llama_cpp.llama_batch_free(batch)
        if code != 0:
            sys.exit(f"llama_decode: {code}")

    read()
    for line in sys.stdin:
        if line.strip() == "about":
            print(json.dumps({"llama_cpp_python": llama_cpp.__version__,
                              "system": llama_cpp.llama_print_system_info().decode().strip()}), flush=True)
        elif line.strip() == "prompt":
            print(read(), flush=True)
        elif line.strip() == "step":
            print(write(), flush=True)
        elif line.startswith("together "):
            print(write_together(int(line.split()[1])), flush=True)


if __name__ == "__main__":
    main()
