#!/usr/bin/env python3
"""Share of a training step that waits for data, of the runs under the given folders, and the time of `fovea --help`.

    benchmarks/loader_share.py [--program build/bin/fovea] RUN_FOLDER...

The share is the median over the lines of metrics.jsonl of speed/data_load_time / speed/curr_iter_time (target: under
0.02). A comparison's folder counts as all of its runs.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

HELP_RUNS = 5


def shares(path: pathlib.Path) -> list[float]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line["speed/data_load_time"] / line["speed/curr_iter_time"] for line in lines
            if line.get("speed/curr_iter_time", 0) > 0]


def help_seconds(program: str) -> float:
    times = []
    for _ in range(HELP_RUNS):
        start = time.perf_counter()
        subprocess.run([program, "--help"], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=pathlib.Path, metavar="RUN_FOLDER")
    parser.add_argument("--program", default="build/bin/fovea")
    options = parser.parse_args()
    for folder in options.folders:
        values = [share for path in sorted(folder.rglob("metrics.jsonl")) for share in shares(path)]
        if not values:
            sys.exit(f"[bench] no metrics.jsonl with step times under '{folder}': expected the folder of a run")
        print(f"loader share of {folder}: median {statistics.median(values):.5f}, largest {max(values):.5f}, "
              f"{len(values)} steps (target: median under 0.02)")
    if not pathlib.Path(options.program).exists():
        sys.exit(f"[bench] '{options.program}' is missing; run: make build")
    print(f"fovea --help: median {help_seconds(options.program):.3f} s of {HELP_RUNS} (target: under 0.5)")


if __name__ == "__main__":
    main()
