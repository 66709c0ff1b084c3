#!/usr/bin/env python3
"""Perplexity of a real model in Fovea and in llama.cpp, for each format of its weights, on the same text.

    PYTHON tests/peers/check_perplexity.py MODEL.gguf TEXT [--documents 16] [--words 150] [--fovea build/bin/fovea] [--output FILE]

PYTHON has llama-cpp-python. Fovea writes MODEL as F32, F16, BF16 and Q8_0; llama.cpp quantises the F32 file to Q4_0 and
Q4_1. TEXT is cut into documents of so many words; both sides read the end mark before each document and score all its
tokens. llama.cpp rounds activations to 8 bits where weights are packed, Fovea does so with --activations int8; that and
the exact form are measured, and each must agree within 0.5 %.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import llama_cpp
import numpy

BOUND = 0.005
READ = {"f32": "f32", "f16": "f32", "bf16": "bf16", "q8_0": "stored", "q4_0": "stored", "q4_1": "stored"}  # --weights
QUANTISED = {"q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, "q4_1": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_1}


def write_model(fovea: str, model: str, kind: str, folder: str) -> str:
    path = f"{folder}/{kind}.gguf"
    if kind not in QUANTISED:
        subprocess.run([fovea, "export", model, path, "--gguf", kind, "--quiet"], check=True, capture_output=True)
        return path
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.pure, options.nthread = QUANTISED[kind], True, 1
    code = llama_cpp.llama_model_quantize(f"{folder}/f32.gguf".encode(), path.encode(), options)
    if code != 0:
        sys.exit(f"llama.cpp could not quantise to {kind}: {code}")
    return path


def peer(path: str, documents: list[str], threads: int) -> tuple[float, int]:
    """NLL and targets."""
    model = llama_cpp.Llama(path, n_ctx=1024, n_batch=1024, n_threads=threads, n_threads_batch=threads, logits_all=True, verbose=False)
    total, count = 0.0, 0
    for text in documents:
        ids = model.tokenize(text.encode(), add_bos=False, special=False)
        model.reset()
        model.eval([model.token_eos(), *ids])
        logits = model.scores[:len(ids)].astype(numpy.float64)
        logits -= logits.max(axis=1, keepdims=True)
        total -= float((logits[numpy.arange(len(ids)), ids] - numpy.log(numpy.exp(logits).sum(axis=1))).sum())
        count += len(ids)
    return total, count


def ours(fovea: str, path: str, weights: str, activations: str, documents: str) -> tuple[float, int]:
    command = [fovea, "eval", path, "--text", documents, "--weights", weights, "--activations", activations, "--json", "--quiet"]
    total = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["total"]
    return total["nll"], total["tokens"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--documents", type=int, default=16)
    parser.add_argument("--words", type=int, default=150)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--fovea", default="build/bin/fovea")
    parser.add_argument("--types", default=",".join(READ), help="f32 first: the others' loss is against it")
    parser.add_argument("--output", default="")
    args = parser.parse_args()
    words = pathlib.Path(args.text).read_text().split()
    step = len(words) // args.documents
    documents = [" ".join(words[n * step:n * step + args.words]) for n in range(args.documents)]
    rows, failed = [], 0
    with tempfile.TemporaryDirectory() as folder:
        lines = pathlib.Path(folder, "documents.jsonl")
        lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
        for kind in args.types.split(","):
            path = write_model(args.fovea, args.model, kind, folder)
            peer_nll, peer_tokens = peer(path, documents, args.threads)
            for activations in ("exact", "int8") if READ[kind] == "stored" else ("exact",):
                nll, tokens = ours(args.fovea, path, READ[kind], activations, str(lines))
                if tokens != peer_tokens:
                    sys.exit(f"{kind}: {tokens} tokens against {peer_tokens}")
                mine, theirs = math.exp(nll / tokens), math.exp(peer_nll / tokens)
                good = abs(mine / theirs - 1) <= BOUND
                failed += not good
                rows.append({"type": kind, "activations": activations, "tokens": tokens, "perplexity": round(mine, 4),
                             "peer_perplexity": round(theirs, 4)})
                loss = mine / rows[0]["perplexity"] - 1
                print(f"{'ok  ' if good else 'FAIL'} {kind:5} {activations:5} {tokens} tokens: perplexity {mine:.4f}, llama.cpp {theirs:.4f} "
                      f"({mine / theirs - 1:+.3%}); against f32 {loss:+.2%}", flush=True)
    if args.output:
        pathlib.Path(args.output).write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
