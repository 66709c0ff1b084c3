#!/usr/bin/env python3
"""Memory of a process where the weights of layers are cut: `fovea train` alone, with train.shard=moments and with all.

    benchmarks/sharded_memory.py [--ranks 2,4] [--layers 24] [--width 768] [--limit BYTES] [--output FILE]

Prints the largest resident memory of any process of a run (VmHWM), less that of a run of one small layer, beside the
training state of the model: 16 bytes a parameter. --limit refuses more data to each process (RLIMIT_DATA).

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import datetime
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

from train_step import ROOT, commit, cpu_kind

STEPS, LENGTH = 3, 64


def recipe(folder: pathlib.Path, layers: int, width: int, rows: int) -> pathlib.Path:
    text = folder / "text.txt"
    if not text.exists():
        text.write_text("".join(f"line {n} of a text that nobody wrote\n" for n in range(2000)))
    path = folder / f"{layers}x{width}.yaml"
    path.write_text(json.dumps({
        "name": path.stem, "data": {"sources": [{"path": str(text)}], "cache": str(folder / "cache")},
        "model": {"layers": layers, "width": width, "heads": 8, "context": LENGTH},
        "train": {"steps": STEPS, "batch_rows": rows, "evaluation_tokens": 256, "gradient_checkpointing": True,
                  "checkpoint_interval": 0, "resume": "never", "device": "cpu", "dtype": "float32"}}))
    return path


def peak_of(process: int) -> int:
    """VmHWM of a process in bytes; 0 where it has gone."""
    try:
        lines = pathlib.Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return max((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), default=0)


def family(process: int) -> list[int]:
    try:
        children = pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        children = []
    return [process, *map(int, children)]


def train(folder: pathlib.Path, path: pathlib.Path, ranks: int, shard: str, limit: int) -> tuple[int, float | None, str]:
    """The largest peak of its processes, the last loss (none where the run failed), and its errors."""
    with tempfile.TemporaryDirectory(dir=folder) as run:
        command = [str(ROOT / "build/bin/fovea"), "train", str(path), f"run_folder={run}/run", f"train.shard={shard}",
                   "--json", "--quiet"]
        command += [f"--processes={ranks}"] if ranks > 1 else []
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env=os.environ | {"OMP_NUM_THREADS": "1"},
                              preexec_fn=(lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)))
                              if limit else None) as program:
            peak = 0
            while program.poll() is None:
                peak = max([peak, *map(peak_of, family(program.pid))])
                time.sleep(0.01)
            out, err = program.communicate()
        return peak, json.loads(out)["loss"] if program.returncode == 0 else None, err


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--layers", default=24, type=int)
    parser.add_argument("--width", default=768, type=int)
    parser.add_argument("--limit", default=0, type=int, help="bytes of data of each process; 0 = none")
    parser.add_argument("--output", default="")
    options = parser.parse_args()
    ranks = [int(n) for n in options.ranks.split(",")]
    rows = max(ranks)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        program = train(folder, recipe(folder, 1, 64, rows), 2, "moments", 0)[0]
        path = recipe(folder, options.layers, options.width, rows)
        plan = subprocess.run([str(ROOT / "build/bin/fovea"), "plan", str(path), "--json", "--flops", "1e12"],
                              capture_output=True, text=True, check=True)
        state = 16 * json.loads(plan.stdout)["parameters"]["total"]
        runs = {}
        for count, shard in [(1, "moments"), *((n, shard) for n in ranks for shard in ("moments", "all"))]:
            peak, loss, error = train(folder, path, count, shard, options.limit)
            name = f"ranks {count}, {shard}"
            runs[name] = {"peak_bytes": peak, "loss": loss}
            if loss is None:
                runs[name]["error"] = error.strip().splitlines()[0] if error.strip() else "killed"
            above = (peak - program) / 1e6
            print(f"{count} ranks, {shard}: {above:.0f} MB above the program, state {state / 1e6:.0f} MB, loss {loss}",
                  flush=True)
    report = {"benchmark": "sharded_memory", "commit": commit(), "date": datetime.date.today().isoformat(),
              "machine": {"kind": cpu_kind(), "cores": len(os.sched_getaffinity(0))}, "layers": options.layers,
              "width": options.width, "limit_bytes": options.limit, "state_bytes": state, "program_bytes": program,
              "runs": runs}
    text = json.dumps(report, indent=1) + "\n"
    if options.output:
        pathlib.Path(options.output).write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
