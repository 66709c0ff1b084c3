#!/usr/bin/env python3
"""A real model in Fovea and in llama.cpp or transformers, type by type: reading a prompt, and decoding behind it.

    benchmarks/real_model.py MODEL.gguf --python PYTHON [--position 512] [--pairs 9] [--threads N] [--types f32,bf16,q8_0,stored]
                            [--together 8] [--activations auto|exact|int16|int8] [--peer llama.cpp|transformers] [--append] [--output FILE]

PYTHON has llama-cpp-python, or for --peer transformers that (`make python-peers`), which knows f32
and bf16, one text. For each type the model is exported once; both sides then take turns in
processes of their own, with the same number of threads. `bf16` is compared with llama.cpp's f16,
which is its faster one; `stored` is the given file on both sides. Beside packed weights all else is
in the dtype that `fovea generate` takes by itself. --activations is that of `fovea generate`, for
q8_0 and stored; llama.cpp always rounds to 8 bits. --together N also writes N texts at once, a
cache each, beside one text; 0 leaves that out. --append adds rows to the result file, as for
another position. Decoding reads all weights and the cache once a token: those bytes over the time,
over the measured read bandwidth, is the share.

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
    "q8_0": ("q8_0", "q8_0", "auto", "stored"),
    "stored": ("", "", "auto", "stored"),
}
PEERS = {"llama.cpp": "real_model_peer.py", "transformers": "real_model_transformers.py"}


def exported(options: argparse.Namespace, folder: str, gguf: str) -> str:
    if not gguf:
        return options.model
    path = f"{folder}/{gguf}.gguf"
    if not pathlib.Path(path).exists():
        subprocess.run([str(ROOT / "build/bin/fovea"), "export", options.model, path, "--gguf", gguf], check=True, stdout=subprocess.DEVNULL)
    return path


def exported_folder(options: argparse.Namespace, folder: str, dtype: str) -> str:
    path = f"{folder}/{dtype}"
    subprocess.run([str(ROOT / "build/bin/fovea"), "export", options.model, path, "--dtype", dtype], check=True, stdout=subprocess.DEVNULL)
    return path


def auto_dtype() -> str:
    """What `fovea generate --dtype auto` takes on this machine."""
    told = subprocess.run([str(ROOT / "build/bin/fovea"), "info", "--json"], check=True, capture_output=True, text=True).stdout
    return "bfloat16" if json.loads(told)["bfloat16_in_hardware"] else "float32"


def compare(options: argparse.Namespace, folder: str, name: str) -> dict:
    ours_gguf, peer_gguf, dtype, weights = TYPES[name]
    if dtype == "auto":
        dtype = auto_dtype()
    threads, position = str(options.threads), str(options.position)
    worker = [str(ROOT / "build/bin/real_model_worker"), exported(options, folder, ours_gguf), threads, position, dtype, weights]
    with Side(worker) as ours:
        about = json.loads(ours.ask("about"))
        ours.ask(f"activations {options.activations}")
        of_peer = exported(options, folder, peer_gguf) if options.peer == "llama.cpp" else exported_folder(options, folder, dtype)
        peer = [options.python, f"benchmarks/{PEERS[options.peer]}", of_peer, threads, position, str(about["tokens"])]
        with Side(peer) as theirs:
            peer_about = json.loads(theirs.ask("about"))
            questions = ["prompt", "step", *([f"together {options.together}"] if options.together else [])]
            for side in (ours, theirs):  # warm-up; both have read the prompt once
                for question in questions[1:]:
                    side.ask(question)
            bandwidth, prompts, steps, together = [float(ours.ask("bandwidth"))], [], [], []
            for n in range(options.pairs):
                sides = (ours, theirs) if n % 2 == 0 else (theirs, ours)
                taken = {side: [float(side.ask(question)) for question in questions] for side in sides}
                for times, one, other in zip((prompts, steps, together), taken[ours], taken[theirs]):
                    times.append((one, other))
                bandwidth.append(float(ours.ask("bandwidth")))
    machine, tokens, best = about.pop("machine"), about["tokens"], max(bandwidth)
    needed = about["weight_bytes"] + about["cache_bytes"]
    row = {"type": name, "dtype": dtype, "activations": options.activations, **about, "pairs": options.pairs, "peer": {"file": (peer_gguf or "the same file") if options.peer == "llama.cpp" else dtype, **peer_about},
           "tokens_per_second": quartiles([tokens * 1e3 / a for a, _ in steps]),
           "peer_tokens_per_second": quartiles([tokens * 1e3 / b for _, b in steps]),
           "decode_speedup": quartiles([b / a for a, b in steps]),
           "prompt_tokens_per_second": quartiles([options.position * 1e3 / a for a, _ in prompts]),
           "peer_prompt_tokens_per_second": quartiles([options.position * 1e3 / b for _, b in prompts]),
           "prompt_speedup": quartiles([b / a for a, b in prompts]),
           "read_bandwidth_gb_per_s": quartiles(bandwidth),
           "share_of_bandwidth": quartiles([needed * tokens / 1e6 / a / best for a, _ in steps])}
    if together:
        texts, pairs = options.together, list(zip(together, steps))
        row |= {"texts_together": texts,
                "together_tokens_per_second": quartiles([texts * tokens * 1e3 / a for a, _ in together]),
                "peer_together_tokens_per_second": quartiles([texts * tokens * 1e3 / b for _, b in together]),
                "together_speedup": quartiles([b / a for a, b in together]),
                "together_over_one": quartiles([texts * one[0] / all_[0] for all_, one in pairs]),
                "peer_together_over_one": quartiles([texts * one[1] / all_[1] for all_, one in pairs])}
        print(f"{name:7} {texts} texts together {row['together_tokens_per_second']['median']:.1f} tokens/s, x{row['together_over_one']['median']:.2f} "
              f"of one; {options.peer} {row['peer_together_tokens_per_second']['median']:.1f}, x{row['peer_together_over_one']['median']:.2f}", flush=True)
    print(f"{name:7} decode {row['tokens_per_second']['median']:7.1f} tokens/s, {options.peer} {row['peer_tokens_per_second']['median']:7.1f}, "
          f"x{row['decode_speedup']['median']:.2f}, {row['share_of_bandwidth']['median']:.0%} of {best:.1f} GB/s; "
          f"prompt {row['prompt_tokens_per_second']['median']:7.0f} tokens/s, {options.peer} {row['peer_prompt_tokens_per_second']['median']:7.0f}, "
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
    parser.add_argument("--together", default=8, type=int)
    parser.add_argument("--activations", default="auto", choices=("auto", "exact", "int16", "int8"))
    parser.add_argument("--peer", choices=tuple(PEERS), default="llama.cpp")
    parser.add_argument("--append", action="store_true")
    parser.add_argument("--output", default="", help="- = none")
    options = parser.parse_args()
    if options.peer == "transformers" and (options.together or not set(options.types.split(",")) <= {"f32", "bf16"}):
        parser.error("expected --together 0 --types f32,bf16 with --peer transformers")
    if options.activations in ("int16", "int8") and not set(options.types.split(",")) <= {"q8_0", "stored"}:
        parser.error("expected --types q8_0,stored with --activations int16 or int8")
    with tempfile.TemporaryDirectory() as folder:
        rows = [compare(options, folder, name) for name in options.types.split(",")]
    machine = [row.pop("machine") for row in rows][0]
    command = shlex.join(["benchmarks/real_model.py", *sys.argv[1:]])
    report = {"benchmark": "real_model", "ratio": "times, the peer / Fovea, above 1 Fovea is faster", "commands": {command: commit()},
              "date": datetime.date.today().isoformat(), "machine": {**machine, "kind": cpu_kind()},
              "model": pathlib.Path(options.model).name, "rows": rows}
    if options.output != "-":
        path = pathlib.Path(options.output or ROOT / f"benchmarks/results/real-model-{cpu_kind()}.json")
        if options.append and path.exists():
            kept = json.loads(path.read_text())
            report["commands"] = kept["commands"] | report["commands"]
            report["rows"] = kept["rows"] + rows
        path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
