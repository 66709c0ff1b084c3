#!/usr/bin/env python3
"""A real model in Fovea and in llama.cpp, type by type: reading a prompt, and decoding behind it.

    benchmarks/real_model.py MODEL.gguf --python PYTHON [--position 512] [--pairs 9] [--threads N] [--types f32,bf16,q8_0,stored]
                            [--output FILE]

PYTHON has llama-cpp-python. For each type the model is exported once; both sides then take turns in processes of their own,
with the same number of threads. `bf16` is compared with llama.cpp's f16, which is its faster one; `stored` is the given
file on both sides. Decoding reads all weights and the cache once a token: those bytes over the time, over the measured read
bandwidth, is the share.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import datetime
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

from train_step import ROOT, Side, commit, cpu_kind, quartiles

TYPES = {  # ours: (--gguf of what ours reads, of what the peer reads, dtype, --weights)
    "f32": ("f32", "f32", "float32", "f32"),
    "bf16": ("bf16", "f16", "bfloat16", "bf16"),
    "q8_0": ("q8_0", "q8_0", "bfloat16", "stored"),
    "stored": ("", "", "bfloat16", "stored"),
}


def exported(options: argparse.Namespace, folder: str, gguf: str) -> str:
    if not gguf:
        return options.model
    path = f"{folder}/{gguf}.gguf"
    if not pathlib.Path(path).exists():
        subprocess.run([str(ROOT / "build/bin/fovea"), "export", options.model, path, "--gguf", gguf], check=True, stdout=subprocess.DEVNULL)
    return path


def compare(options: argparse.Namespace, folder: str, name: str) -> dict:
    ours_gguf, peer_gguf, dtype, weights = TYPES[name]
    threads, position = str(options.threads), str(options.position)
    worker = [str(ROOT / "build/bin/real_model_worker"), exported(options, folder, ours_gguf), threads, position, dtype, weights]
    with Side(worker) as ours:
        about = json.loads(ours.ask("about"))
        peer = [options.python, "benchmarks/real_model_peer.py", exported(options, folder, peer_gguf), threads, position, str(about["tokens"])]
        with Side(peer) as theirs:
            peer_about = json.loads(theirs.ask("about"))
            bandwidth, prompts, steps = [float(ours.ask("bandwidth"))], [], []
            for n in range(options.pairs + 1):
                sides = (ours, theirs) if n % 2 == 0 else (theirs, ours)
                taken = {}
                for side in sides:
                    taken[side] = float(side.ask("prompt")), float(side.ask("step"))
                if n == 0:
                    continue  # warm-up
                prompts.append((taken[ours][0], taken[theirs][0]))
                steps.append((taken[ours][1], taken[theirs][1]))
                bandwidth.append(float(ours.ask("bandwidth")))
    machine, tokens, best = about.pop("machine"), about["tokens"], max(bandwidth)
    needed = about["weight_bytes"] + about["cache_bytes"]
    row = {"type": name, "dtype": dtype, **about, "peer": {"file": peer_gguf or "the same file", **peer_about},
           "tokens_per_second": quartiles([tokens * 1e3 / a for a, _ in steps]),
           "peer_tokens_per_second": quartiles([tokens * 1e3 / b for _, b in steps]),
           "decode_speedup": quartiles([b / a for a, b in steps]),
           "prompt_tokens_per_second": quartiles([options.position * 1e3 / a for a, _ in prompts]),
           "peer_prompt_tokens_per_second": quartiles([options.position * 1e3 / b for _, b in prompts]),
           "prompt_speedup": quartiles([b / a for a, b in prompts]),
           "read_bandwidth_gb_per_s": quartiles(bandwidth),
           "share_of_bandwidth": quartiles([needed * tokens / 1e6 / a / best for a, _ in steps])}
    print(f"{name:7} decode {row['tokens_per_second']['median']:7.1f} tokens/s, llama.cpp {row['peer_tokens_per_second']['median']:7.1f}, "
          f"x{row['decode_speedup']['median']:.2f}, {row['share_of_bandwidth']['median']:.0%} of {best:.1f} GB/s; "
          f"prompt {row['prompt_tokens_per_second']['median']:7.0f} tokens/s, llama.cpp {row['peer_prompt_tokens_per_second']['median']:7.0f}, "
          f"x{row['prompt_speedup']['median']:.2f}", flush=True)
    return {"machine": machine, **row}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--python", required=True)
    parser.add_argument("--position", default=512, type=int)
    parser.add_argument("--pairs", default=9, type=int)
    parser.add_argument("--threads", default=len(os.sched_getaffinity(0)), type=int)
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--output", default="", help="- = none")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [compare(options, folder, name) for name in options.types.split(",")]
    machine = [row.pop("machine") for row in rows][0]
    report = {"benchmark": "real_model", "ratio": "times, llama.cpp / Fovea, above 1 is faster",
              "command": shlex.join(["benchmarks/real_model.py", *sys.argv[1:]]), "commit": commit(),
              "date": datetime.date.today().isoformat(), "machine": {**machine, "kind": cpu_kind()},
              "model": pathlib.Path(options.model).name, "pairs": options.pairs, "rows": rows}
    if options.output != "-":
        path = pathlib.Path(options.output or ROOT / f"benchmarks/results/real-model-{cpu_kind()}.json")
        path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
