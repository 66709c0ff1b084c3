#!/usr/bin/env python3
"""Greedy tokens of llama.cpp from GGUF files that Fovea wrote, against Fovea's own from the same files.

    PYTHON tests/peers/check_gguf.py MODEL.gguf [--count 12] [--tokens 32] [--types f32,f16,bf16,q8_0] [--fovea build/bin/fovea]

PYTHON has llama-cpp-python; its cache is float32 here. Fovea computes in float32. llama.cpp rounds the inputs of products to
the format of the weights (float16, bfloat16, 8 bits), so that near-ties of the likeliest tokens fall to either side: where
texts part, the lead of llama.cpp's token over Fovea's is printed. F32 must agree in every token.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import json
import subprocess
import sys
import tempfile

import llama_cpp
import numpy

PROMPTS = ["Once upon a time", "The capital of France is", "In 1905 Albert Einstein", "To bake bread you need", "Water boils at",
           "def add(a, b):", "The opposite of cold is", "My favourite season is", "A triangle has", "The largest planet is",
           "She opened the door and", "The recipe for happiness"]


def peer(path: str, prompts: list[str], tokens: int, threads: int) -> list[tuple[list[int], list[numpy.ndarray], llama_cpp.Llama]]:
    model = llama_cpp.Llama(path, n_ctx=256, n_threads=threads, n_threads_batch=threads, type_k=0, type_v=0, verbose=False)
    answers = []
    for prompt in prompts:
        model.reset()
        model.eval(model.tokenize(prompt.encode(), add_bos=False))
        made, seen = [], []
        for _ in range(tokens):
            logits = numpy.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(model.ctx, -1), (model.n_vocab(),)).copy()
            made.append(int(logits.argmax()))
            seen.append(logits)
            if made[-1] == model.token_eos():
                break
            model.eval([made[-1]])
        answers.append((made, seen, model))
    return answers


def ours(fovea: str, path: str, prompts: list[str], tokens: int) -> list[str]:
    lines = "".join(json.dumps({"prompt": p, "temperature": 0, "max_tokens": tokens}) + "\n" for p in prompts)
    command = [fovea, "generate", path, "--prompts", "-", "--dtype", "float32", "--quiet"]
    out = subprocess.run(command, input=lines, capture_output=True, text=True, check=True).stdout
    return [json.loads(line)["text"] for line in out.splitlines()]


def lead(made: list[int], seen: list[numpy.ndarray], model, text: str) -> float:
    """How far the token of llama.cpp stands before Fovea's where the texts part."""
    for n in range(len(made)):
        if not text.startswith(model.detokenize(made[:n + 1]).decode(errors="ignore")):
            rest = text[len(model.detokenize(made[:n]).decode(errors="ignore")):]
            other = model.tokenize(rest.encode(), add_bos=False)
            return float(seen[n][made[n]] - seen[n][other[0]]) if other else float("nan")
    return 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--count", type=int, default=len(PROMPTS))
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--types", default="f32,f16,bf16,q8_0")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--fovea", default="build/bin/fovea")
    args = parser.parse_args()
    prompts, failed = PROMPTS[:args.count], 0
    with tempfile.TemporaryDirectory() as folder:
        for kind in args.types.split(","):
            path = f"{folder}/{kind}.gguf"
            subprocess.run([args.fovea, "export", args.model, path, "--gguf", kind, "--quiet"], check=True, capture_output=True)
            texts = ours(args.fovea, path, prompts, args.tokens)
            same, leads = 0, []
            for text, (made, seen, model) in zip(texts, peer(path, prompts, args.tokens, args.threads), strict=True):
                whole = [token for token in made if token != model.token_eos()]
                if text == model.detokenize(whole).decode(errors="replace"):
                    same += 1
                else:
                    leads.append(round(lead(made, seen, model, text), 4))
            print(f"{kind:5} {same} of {len(prompts)} texts the same; leads where they part: {leads}", flush=True)
            failed += kind == "f32" and same < len(prompts)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
