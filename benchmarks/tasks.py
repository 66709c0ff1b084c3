#!/usr/bin/env python3
"""Questions of a task a second: `fovea eval --tasks` against lm-evaluation-harness on transformers, in turn, float32.

    benchmarks/tasks.py MODEL_FOLDER DATA --python PYTHON [--items 1000] [--pairs 3] [--threads N] [--batch 8] [--output FILE]

MODEL_FOLDER is read by both sides (`fovea export MODEL MODEL_FOLDER --dtype float32`); DATA has the file of HellaSwag
(docs/evaluation.md); PYTHON has lm-eval==0.4.13. Both sides answer the same first questions: from the records to the
log-likelihoods, loading left out. The harness gets the requests of its own HellaSwag task and computes `--batch` of them at a time.
Ours is also run with an eighth and with half of the questions: its peak memory must not grow with them.

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

from train_step import ROOT, Side, commit, cpu_kind, quartiles

FILE = "hellaswag/hellaswag_val_first1000.jsonl"


def ours(options: argparse.Namespace, items: int, dtype: str = "float32") -> tuple[float, float, dict]:
    """Questions a second, peak memory in MB, the scores."""
    command = [str(ROOT / "build/bin/fovea"), "eval", options.model, "--tasks", "hellaswag", "--data", options.data,
               "--limit", str(items), "--dtype", dtype, "--json", "--quiet"]
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"[bench] failed: {shlex.join(command)}")
    task = json.loads(text)["tasks"][0]
    return task["items"] / task["seconds"], usage.ru_maxrss / 1024, task["metrics"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--python", required=True)
    parser.add_argument("--items", default=1000, type=int)
    parser.add_argument("--pairs", default=3, type=int)
    parser.add_argument("--batch", default=8, type=int)
    parser.add_argument("--threads", default=len(os.sched_getaffinity(0)), type=int)
    parser.add_argument("--output", default="", help="- = none")
    options = parser.parse_args()
    pairs, memory, metrics = [], 0.0, {}
    peer = [options.python, "benchmarks/tasks_peer.py", options.model, str(pathlib.Path(options.data) / FILE),
            str(options.items), str(options.batch), str(options.threads)]
    with Side(peer) as theirs:
        about = json.loads(theirs.ask("about"))
        for n in range(options.pairs):
            if n % 2 == 0:
                speed, memory, metrics = ours(options, options.items)
                seconds = float(theirs.ask("run"))
            else:
                seconds = float(theirs.ask("run"))
                speed, memory, metrics = ours(options, options.items)
            pairs.append((speed, options.items / seconds))
            print(f"pair {n + 1}: {speed:.2f} questions/s, harness {options.items / seconds:.2f}", flush=True)
        harness = json.loads(theirs.ask("scores"))
    memories = {count: ours(options, count)[1] for count in (max(options.items // 8, 1), max(options.items // 2, 1))}
    memories[options.items] = memory
    bfloat16, _, bfloat16_metrics = ours(options, options.items, "bfloat16")
    report = {"benchmark": "tasks", "ratio": "questions a second, Fovea / lm-evaluation-harness, above 1 is faster",
              "command": shlex.join(["benchmarks/tasks.py", "MODEL_FOLDER", "DATA", "--python", "PYTHON", "--items", str(options.items),
                                     "--pairs", str(options.pairs), "--batch", str(options.batch)]),
              "commit": commit(), "date": datetime.date.today().isoformat(),
              "machine": {"kind": cpu_kind(), "threads": options.threads}, "peer": about,
              "model": pathlib.Path(options.model).name, "task": "hellaswag", "items": options.items,
              "questions_per_second": quartiles([a for a, _ in pairs]),
              "peer_questions_per_second": quartiles([b for _, b in pairs]),
              "speedup": quartiles([a / b for a, b in pairs]),
              "acc_norm": metrics["acc_norm"]["value"], "peer_acc_norm": harness["acc_norm"],
              "bfloat16": {"questions_per_second": round(bfloat16, 3), "acc_norm": bfloat16_metrics["acc_norm"]["value"]},
              "peak_memory_mb": {str(count): round(mb) for count, mb in memories.items()}}
    print(f"median x{report['speedup']['median']:.2f}; bfloat16 {bfloat16:.2f} questions/s; "
          f"peak memory {', '.join(f'{mb:.0f} MB for {count}' for count, mb in memories.items())} questions")
    if options.output != "-":
        path = pathlib.Path(options.output or ROOT / f"benchmarks/results/tasks-{cpu_kind()}.json")
        path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
