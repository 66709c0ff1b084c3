#!/usr/bin/env python3
"""Several processes of one thread against one process of as many threads: tokens a second of `fovea train`, in turn.

    benchmarks/ranks.py [--ranks 2] [--pairs 3] [--steps 20] [--sizes 30m,124m] [--output FILE]

Both sides train the same recipe on made text: the same rows a step, the same losses. Speeds are those that the program
reports, without loading and the first evaluation. OMP_NUM_THREADS gives each side the same cores.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from train_step import ROOT, commit, cpu_kind, quartiles

# layers, width, heads, rows of a step, sequence length
SIZES = {"1m": (4, 128, 4, 16, 256), "30m": (6, 512, 8, 8, 512), "124m": (12, 768, 12, 4, 512)}


def recipe(folder: pathlib.Path, size: str, steps: int) -> pathlib.Path:
    layers, width, heads, rows, length = SIZES[size]
    text = folder / "text.txt"
    if not text.exists():
        text.write_text("".join(f"line {n} of a text that nobody wrote, {n * n} times\n" for n in range(60000)))
    path = folder / f"{size}.yaml"
    path.write_text(json.dumps({
        "name": size, "data": {"sources": [{"path": str(text)}], "cache": str(folder / "cache")},
        "model": {"layers": layers, "width": width, "heads": heads, "context": length},
        "train": {"steps": steps, "batch_rows": rows, "sequence_length": length, "evaluation_tokens": length,
                  "checkpoint_interval": 0, "resume": "never", "device": "cpu"}}))
    return path


def tokens_per_second(folder: pathlib.Path, path: pathlib.Path, ranks: int, threads: int) -> float:
    with tempfile.TemporaryDirectory(dir=folder) as run:
        command = [str(ROOT / "build/bin/fovea"), "train", str(path), f"run_folder={run}/run", "--json", "--quiet"]
        command += [f"--processes={ranks}"] if ranks > 1 else []
        done = subprocess.run(command, capture_output=True, text=True,
                              env=os.environ | {"OMP_NUM_THREADS": str(threads)}, check=False)
        if done.returncode != 0:
            sys.exit(f"[bench] {' '.join(command)}: {done.stderr}")
        return json.loads(done.stdout)["tokens_per_second"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", default=2, type=int)
    parser.add_argument("--pairs", default=3, type=int)
    parser.add_argument("--steps", default=20, type=int)
    parser.add_argument("--sizes", default="30m,124m")
    parser.add_argument("--output", default="")
    options = parser.parse_args()
    report = {"benchmark": "ranks", "ratio": "tokens a second, processes of one thread / threads of one process",
              "commit": commit(), "date": datetime.date.today().isoformat(),
              "machine": {"kind": cpu_kind(), "cores": len(os.sched_getaffinity(0))},
              "ranks": options.ranks, "steps": options.steps, "models": {}}
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for size in options.sizes.split(","):
            path, pairs = recipe(folder, size, options.steps), []
            for n in range(options.pairs):
                sides = [(options.ranks, 1), (1, options.ranks)]
                speeds = {ranks: tokens_per_second(folder, path, ranks, threads)
                          for ranks, threads in (sides if n % 2 == 0 else sides[::-1])}
                pairs.append((speeds[options.ranks], speeds[1]))
                print(f"{size}, pair {n + 1}: {pairs[-1][0]:.0f} tokens/s in {options.ranks} processes, "
                      f"{pairs[-1][1]:.0f} in one", flush=True)
            report["models"][size] = {"tokens_per_second": quartiles([a for a, _ in pairs]),
                                      "one_process": quartiles([b for _, b in pairs]),
                                      "ratio": quartiles([a / b for a, b in pairs])}
    text = json.dumps(report, indent=1) + "\n"
    if options.output:
        pathlib.Path(options.output).write_text(text)
    print(text)


if __name__ == "__main__":
    main()
