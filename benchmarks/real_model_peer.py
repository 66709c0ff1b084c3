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

    read()
    for line in sys.stdin:
        if line.strip() == "about":
            print(json.dumps({"llama_cpp_python": llama_cpp.__version__,
                              "system": llama_cpp.llama_print_system_info().decode().strip()}), flush=True)
        elif line.strip() == "prompt":
            print(read(), flush=True)
        elif line.strip() == "step":
            print(write(), flush=True)


if __name__ == "__main__":
    main()
