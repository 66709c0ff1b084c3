#!/usr/bin/env python3
"""Several processes of one thread against one process of as many threads: tokens a second of `fovea train`, in turn; and how
much of the sums of gradients the backward pass hides.

    benchmarks/ranks.py [--ranks 2] [--pairs 3] [--steps 20] [--sizes 30m,124m] [--parts speed,sums] [--output FILE]

Both sides train the same recipe on made text: the same rows a step, the same losses. Speeds are those that the program
reports, without loading and the first evaluation. OMP_NUM_THREADS gives each side the same cores.

Sums: runs with the sums beside the backward pass and runs with the sums after it (FOVEA_GRADIENT_SUMS), in turn. Each step's
line in metrics.jsonl says how long they took and for how long the step waited for them. Hidden is what the wait beside the
pass is shorter than the sums after it, as a share of these. The model is that of `fovea plan --ranks`.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
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


def fovea(words: list[str], variables: dict[str, str]) -> dict:
    command = [str(ROOT / "build/bin/fovea"), *words, "--json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | variables, check=False)
    if done.returncode != 0:
        sys.exit(f"[bench] {' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout)


def tokens_per_second(folder: pathlib.Path, path: pathlib.Path, ranks: int, threads: int) -> float:
    with tempfile.TemporaryDirectory(dir=folder) as run:
        words = ["train", str(path), f"run_folder={run}/run"] + ([f"--processes={ranks}"] if ranks > 1 else [])
        return fovea(words, {"OMP_NUM_THREADS": str(threads)})["tokens_per_second"]


def sums(folder: pathlib.Path, path: pathlib.Path, ranks: int, when: str) -> list[dict]:
    """Seconds of each step but the first two, which make the memory: of the sums, of the wait for them, of all."""
    keys = {"sums": "speed/gradient_sum_time", "wait": "speed/gradient_sum_wait_time", "step": "speed/curr_iter_time"}
    with tempfile.TemporaryDirectory(dir=folder) as run:
        fovea(["train", str(path), f"run_folder={run}/run", f"--processes={ranks}", "train.log_interval=1"],
              {"OMP_NUM_THREADS": "1", "FOVEA_GRADIENT_SUMS": when})
        lines = (pathlib.Path(run) / "run/metrics.jsonl").read_text().splitlines()
    return [{name: json.loads(line)[key] for name, key in keys.items()} for line in lines[2:]]


def hidden(folder: pathlib.Path, path: pathlib.Path, options: argparse.Namespace) -> dict:
    found = {"beside": [], "after": []}
    for n in range(options.pairs):
        for when in ("beside", "after") if n % 2 == 0 else ("after", "beside"):
            found[when].append(sums(folder, path, options.ranks, when))
    pairs = []
    for beside, after in zip(found["beside"], found["after"]):
        middle = {(name, key): statistics.median(step[key] for step in steps)
                  for name, steps in (("beside", beside), ("after", after)) for key in ("sums", "wait", "step")}
        pairs.append({"alone": middle["after", "sums"], "wait": middle["beside", "wait"], "step": middle["beside", "step"],
                      "hidden": 1.0 - middle["beside", "wait"] / middle["after", "sums"]})
    # A rank's speed is the plan's own measurement of this machine by as many threads.
    plan = fovea(["plan", str(path), f"--ranks={options.ranks}", "--link=loopback"], {"OMP_NUM_THREADS": "1"})["ranks"]
    return {"seconds_of_sums_alone": quartiles([pair["alone"] for pair in pairs]),
            "seconds_waited": quartiles([pair["wait"] for pair in pairs]),
            "seconds_of_step": quartiles([pair["step"] for pair in pairs]),
            "hidden": quartiles([pair["hidden"] for pair in pairs]),
            "model": {"seconds_of_sums": plan["gradient_seconds"],
                      "hidden": 1.0 - plan["exposed_seconds"] / plan["gradient_seconds"]}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", default=2, type=int)
    parser.add_argument("--pairs", default=3, type=int)
    parser.add_argument("--steps", default=20, type=int)
    parser.add_argument("--sizes", default="30m,124m")
    parser.add_argument("--parts", default="speed,sums")
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
            model = report["models"][size] = {}
            for n in range(options.pairs if "speed" in options.parts else 0):
                sides = [(options.ranks, 1), (1, options.ranks)]
                speeds = {ranks: tokens_per_second(folder, path, ranks, threads)
                          for ranks, threads in (sides if n % 2 == 0 else sides[::-1])}
                pairs.append((speeds[options.ranks], speeds[1]))
                print(f"{size}, pair {n + 1}: {pairs[-1][0]:.0f} tokens/s in {options.ranks} processes, "
                      f"{pairs[-1][1]:.0f} in one", flush=True)
            if pairs:
                model |= {"tokens_per_second": quartiles([a for a, _ in pairs]),
                          "one_process": quartiles([b for _, b in pairs]), "ratio": quartiles([a / b for a, b in pairs])}
            if "sums" in options.parts:
                model["sums"] = hidden(folder, path, options)
                print(f"{size}: {model['sums']}", flush=True)
    text = json.dumps(report, indent=1) + "\n"
    if options.output:
        pathlib.Path(options.output).write_text(text)
    print(text)


if __name__ == "__main__":
    main()
