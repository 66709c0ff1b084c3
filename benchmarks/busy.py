#!/usr/bin/env python3
"""What is left of Fovea's speed beside other programs: training, decoding and `eval` while processes burn the cores.

    benchmarks/busy.py --text FILE [--cases demo,30m,decode,eval] [--disturbers 0,1,2,4] [--nice 0] [--rounds 3]
                       [--seconds 6] [--threads N] [--program build/bin/fovea] [--output FILE] [--append]

The program itself runs, as a user would start it. Each round measures every number of disturbers in turn, so that whatever else
happens on the machine meets all of them; the share of the quiet speed is taken within a round. A disturber counts in a loop, at
the priority of --nice. FILE is a text of 1 MB or more. `demo` is the model of recipes/demo.yaml, `30m` has 8 layers of width 512
and is also the model of `decode` and `eval`. --append keeps the rows of the file whose case and priority are not measured again.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

from train_step import ROOT, commit, cpu_kind, quartiles

THIRTY_MILLION = ["model.layers=8", "model.width=512", "model.heads=8", "model.ffn_width=1792", "model.context=512",
                  "train.batch_rows=2"]
EVAL_BYTES = 24_576
GOAL = 0.55  # of the quiet speed, beside one process on two cores


class Disturbers:
    """Processes that use a core each as long as they may."""

    def __init__(self, count: int, nice: int) -> None:
        self.count, self.nice, self.processes = count, nice, []

    def __enter__(self) -> "Disturbers":
        command = [sys.executable, "-c", "while True: pass"]
        self.processes = [subprocess.Popen(["nice", "-n", str(self.nice), *command]) for _ in range(self.count)]
        time.sleep(0.3 if self.count else 0.0)
        return self

    def __exit__(self, *_) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


class Cases:
    """Each case returns tokens (of `eval`: bytes) a second."""

    def __init__(self, options: argparse.Namespace, folder: pathlib.Path) -> None:
        self.options, self.folder, self.runs = options, folder, 0
        self.short = folder / "short.txt"
        self.short.write_bytes(pathlib.Path(options.text).read_bytes()[:EVAL_BYTES])
        self.model = ""

    def run(self, *arguments: str) -> subprocess.CompletedProcess:
        environment = os.environ | {"FOVEA_CACHE": str(self.folder / "cache"), "OMP_NUM_THREADS": str(self.options.threads)}
        command = [self.options.program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
        if done.returncode != 0:
            sys.exit(f"[bench] failed: {shlex.join(command)}\n{done.stderr}")
        return done

    def train(self, *overrides: str) -> dict:
        self.runs += 1
        done = self.run("train", "recipes/demo.yaml", f"data.sources.0.path={self.options.text}", "train.dtype=float32",
                        f"run_folder={self.folder}/run-{self.runs}", "train.evaluation_tokens=512",
                        "train.evaluation_interval=0", *overrides, "--json", "--quiet")
        return json.loads(done.stdout)

    def timed(self, *overrides: str) -> float:
        return self.train("train.steps=0", f"train.seconds={self.options.seconds}", *overrides)["tokens_per_second"]

    def demo(self) -> float:
        return self.timed()

    def thirty_million(self) -> float:
        return self.timed(*THIRTY_MILLION)

    def model_folder(self) -> str:
        self.model = self.model or self.train("train.steps=1", *THIRTY_MILLION)["checkpoint"]
        return self.model

    def decode(self) -> float:
        done = self.run("generate", self.model_folder(), "def ", "--max-tokens", "400", "--temperature", "1", "--dtype", "float32")
        return float(re.search(r"\(([0-9.]+) tokens/s\)", done.stderr).group(1))

    def eval(self) -> float:
        model, start = self.model_folder(), time.monotonic()
        self.run("eval", model, "--text", str(self.short), "--dtype", "float32", "--json", "--quiet")
        return EVAL_BYTES / (time.monotonic() - start)

    def measure(self, name: str) -> float:
        return {"demo": self.demo, "30m": self.thirty_million, "decode": self.decode, "eval": self.eval}[name]()


def case_rows(options: argparse.Namespace, cases: Cases, name: str) -> list[dict]:
    counts = [int(count) for count in options.disturbers.split(",")]
    speeds = {count: [] for count in counts}
    cases.measure(name)  # fills caches
    for turn in range(options.rounds):
        for count in counts if turn % 2 == 0 else reversed(counts):
            with Disturbers(count, options.nice):
                speeds[count].append(cases.measure(name))
    rows = []
    for count in counts:
        shares = [busy / quiet for busy, quiet in zip(speeds[count], speeds.get(0, speeds[count]))]
        rows.append({"case": name, "disturbers": count, "nice": options.nice, "threads": options.threads,
                     "rounds": options.rounds, "tokens_per_second": quartiles(speeds[count]), "share": quartiles(shares)})
        low = count == 1 and statistics.median(shares) < GOAL
        print(f"{name:8} {count} beside it: {statistics.median(speeds[count]):10.1f} a second, "
              f"{statistics.median(shares):.2f} of the quiet speed{'  BELOW THE GOAL' if low else ''}", flush=True)
    return rows


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", required=True)
    parser.add_argument("--cases", default="demo,30m,decode,eval")
    parser.add_argument("--disturbers", default="0,1,2,4")
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--program", default="build/bin/fovea")
    parser.add_argument("--output", default="", help="default benchmarks/results/busy-<cpu>.json; - = none")
    parser.add_argument("--append", action="store_true")
    return parser.parse_args()


def main() -> None:
    options = parse()
    path = ROOT / (options.output or f"benchmarks/results/busy-{cpu_kind()}.json")
    with tempfile.TemporaryDirectory() as folder:
        cases = Cases(options, pathlib.Path(folder))
        rows = [row for name in options.cases.split(",") for row in case_rows(options, cases, name)]
    if options.output == "-":
        return
    words = ["FILE" if word == options.text else word for word in sys.argv[1:]]
    commands = {shlex.join(["benchmarks/busy.py", *words]): commit()}
    if options.append and path.exists():
        old, measured = json.loads(path.read_text(encoding="utf-8")), {(row["case"], row["nice"]) for row in rows}
        commands = old["commands"] | commands
        rows = [row for row in old["results"] if (row["case"], row["nice"]) not in measured] + rows
    report = {"benchmark": "busy", "ratio": "share of the quiet speed of the same round", "commands": commands,
              "date": datetime.date.today().isoformat(),
              "machine": {"kind": cpu_kind(), "cores": os.cpu_count()}, "results": rows}
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"[bench] wrote {path}")


if __name__ == "__main__":
    main()
