#!/usr/bin/env python3
"""Training step of Fovea against PyTorch eager: time and peak memory, alternating step by step.

    benchmarks/train_step.py [--models demo,30m,30m-2048] [--dtypes float32,bfloat16] [--pairs 21] [--threads N]
                             [--device cuda]

Two processes, each with its model in memory, take one step in turn, so that whatever disturbs the machine meets both
sides. Every pair gives a ratio (Fovea / PyTorch: below 1 is faster); the median of the pairs' ratios is the result.
bfloat16 is measured against the faster of PyTorch's two forms (train_step_peer.py). Peak memory is VmHWM of the same two
processes (on a GPU, of their tensors), after 20 steps or more of each. Needs `make build` and `make python-peers`.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import datetime
import json
import math
import os
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = {"demo": "recipes/demo.yaml", "30m": "30m", "30m-2048": "30m-2048", "124m": "124m"}
WARM_UPS = 3
MEMORY_STEPS = 20
FEWEST_PAIRS = 5
TRIAL_STEPS = 3  # of each form of the peer, to choose the faster one
TIME_TARGET, MEMORY_TARGET = 1.05, 1.0


class Side:
    """A worker process that answers lines with lines."""

    def __init__(self, command: list[str]) -> None:
        # Threads of the side that waits must not spin while the other one works; `fovea` itself sets the same count.
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
                                        env={"GOMP_SPINCOUNT": "3000", **os.environ})

    def ask(self, line: str) -> str:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"[bench] a worker ended early: {shlex.join(self.process.args)[:200]}")
        return answer.strip()

    def step(self) -> float:
        """Milliseconds of one step."""
        return float(self.ask("step").split()[0])

    def __enter__(self) -> "Side":
        return self

    def __exit__(self, *_) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Case:
    """One model in one dtype, both sides alive and taking turns."""

    def __init__(self, options: argparse.Namespace, model: str, dtype: str) -> None:
        self.options, self.model, self.dtype = options, model, dtype

    def peer(self, form: str) -> Side:
        return Side([self.options.python, "benchmarks/train_step_peer.py", json.dumps(self.about), form,
                     str(self.options.threads), self.options.device])

    def choose_form(self) -> tuple[str, dict]:
        """The faster form of the peer's bfloat16, and the median milliseconds of each."""
        with self.peer("autocast") as autocast, self.peer("cast") as cast:
            sides = {"autocast": autocast, "cast": cast}
            times = {form: [] for form in sides}
            for turn in range(1 + TRIAL_STEPS):
                for form, side in sides.items():
                    milliseconds = side.step()
                    if turn > 0:
                        times[form].append(milliseconds)
        medians = {form: round(statistics.median(values), 3) for form, values in times.items()}
        return min(medians, key=medians.get), medians

    def take_pairs(self, ours: Side, theirs: Side) -> list[tuple[float, float]]:
        """At most `pairs` pairs; after `budget` seconds no more than the fewest that have quartiles."""
        for _ in range(WARM_UPS):
            ours.step()
            theirs.step()
        pairs, start = [], time.monotonic()
        while len(pairs) < self.options.pairs:
            if len(pairs) >= FEWEST_PAIRS and time.monotonic() - start > self.options.budget:
                break
            pairs.append((ours.step(), theirs.step()))
        return pairs

    def result(self) -> dict:
        worker = [self.options.worker, MODELS[self.model], self.dtype, str(self.options.threads)]
        if self.options.device != "cpu":
            worker.append(f"train.device={self.options.device}")
        with Side(worker) as ours:
            self.about = json.loads(ours.ask("about"))
            form, trial = self.choose_form() if self.dtype == "bfloat16" else ("float32", {})
            with self.peer(form) as theirs:
                self.peer_about = json.loads(theirs.ask("about"))
                if self.peer_about["parameters"] != self.about["parameters"]:
                    sys.exit(f"[bench] not the same model: {self.about['parameters']} parameters in Fovea, "
                             f"{self.peer_about['parameters']} in the peer")
                pairs = self.take_pairs(ours, theirs)
                for _ in range(MEMORY_STEPS - WARM_UPS - len(pairs) if self.options.memory else 0):
                    ours.step()
                    theirs.step()
                peaks = int(ours.ask("memory")), int(theirs.ask("memory"))
        fovea, torch = ([pair[i] for pair in pairs] for i in (0, 1))
        sizes = ("parameters", "layers", "width", "heads", "ffn_width", "rows", "length", "path", "plan", "isa")
        result = {"model": self.model, "dtype": self.dtype, **{key: self.about[key] for key in sizes},
                  "peer_form": form, "peer_trial_ms": trial, "pairs": len(pairs), "fovea_ms": quartiles(fovea),
                  "pytorch_ms": quartiles(torch),
                  "ratio_of_medians": round(statistics.median(fovea) / statistics.median(torch), 4),
                  "pair_ratio": quartiles([a / b for a, b in pairs])}
        if self.options.memory:
            result |= {"fovea_bytes": peaks[0], "pytorch_bytes": peaks[1], "memory_ratio": round(peaks[0] / peaks[1], 4)}
        return result


def quartiles(values: list[float]) -> dict:
    ordered = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return dict(zip(("q1", "median", "q3"), (round(v, 4) for v in ordered)))


def show(result: dict) -> None:
    fovea, torch, ratio = result["fovea_ms"], result["pytorch_ms"], result["pair_ratio"]
    line = (f"{result['model']:8} {result['dtype']:8} {fovea['median']:9.1f} ms  PyTorch ({result['peer_form']}) "
            f"{torch['median']:9.1f} ms  ratio {ratio['median']:.3f} [{ratio['q1']:.3f}, {ratio['q3']:.3f}]")
    if "memory_ratio" in result:
        line += (f"  memory {result['fovea_bytes'] / 2**20:.0f} / {result['pytorch_bytes'] / 2**20:.0f} MiB"
                 f" = {result['memory_ratio']:.3f}")
    if ratio["median"] > TIME_TARGET or result.get("memory_ratio", 0) > MEMORY_TARGET:
        line += "  ABOVE TARGET"
    print(line, flush=True)


def cpu_kind() -> str:
    """A short name of this machine's CPU for the file name: zen4-avx512bf16."""
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        fields = dict(line.split(":", 1) for line in file.read().split("\n\n")[0].splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    flags = set(fields.get("flags", "").split())
    family, model = int(fields.get("cpu family", 0)), int(fields.get("model", 0))
    names = {("AuthenticAMD", 25): "zen4" if "avx512f" in flags else "zen3", ("AuthenticAMD", 26): "zen5",
             ("AuthenticAMD", 23): "zen2", ("GenuineIntel", 6): f"intel-model{model}"}
    name = names.get((fields.get("vendor_id"), family), platform.machine())
    widest = [("amx_bf16", "amx"), ("avx512_bf16", "avx512bf16"), ("avx512f", "avx512"), ("avx2", "avx2")]
    return name + next((f"-{label}" for flag, label in widest if flag in flags), "")


def commit() -> str:
    try:
        described = subprocess.run(["git", "describe", "--always", "--dirty", "--exclude=*"], cwd=ROOT, text=True,
                                   capture_output=True, check=False)
    except OSError:  # no git here
        return "unknown"
    return described.stdout.strip() or "unknown"


def default_python() -> str:
    cache = os.environ.get("FOVEA_CACHE") or os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")) + "/fovea"
    version = (ROOT / "scripts/torch-version.txt").read_text(encoding="ascii").strip()
    return f"{cache}/peers-{version}/bin/python"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="demo,30m,30m-2048")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--budget", type=float, default=math.inf, metavar="SECONDS",
                        help=f"of a model's pairs: stop after them, with {FEWEST_PAIRS} pairs at least")
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="leave out the steps that memory needs")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where both sides compute")
    parser.add_argument("--kind", help="name of the machine in results and their file (default: of its CPU)")
    parser.add_argument("--python", default=default_python(), help="a Python with torch (make python-peers)")
    parser.add_argument("--worker", default="build/bin/train_step_worker")
    parser.add_argument("--output", help="default benchmarks/results/train-step-<cpu>.json; - = none")
    options = parser.parse_args()
    for path, remedy in ((options.python, "make python-peers"), (ROOT / options.worker, "make build")):
        if not os.path.exists(path):
            sys.exit(f"[bench] '{path}' is missing; run: {remedy}")
    unknown = [name for name in options.models.split(",") if name not in MODELS]
    if unknown:
        sys.exit(f"[bench] expected models of {', '.join(MODELS)}; got {', '.join(unknown)}")
    return options


def main() -> None:
    options = parse()
    load = os.getloadavg()[0]
    if load > 0.7:
        print(f"[bench] the machine is busy (load {load:.1f}): ratios are pairwise, but expect wide quartiles", flush=True)
    kind = options.kind or cpu_kind()
    path = options.output or f"benchmarks/results/train-step-{kind}.json"
    results = []
    for model in options.models.split(","):
        for dtype in options.dtypes.split(","):
            case = Case(options, model, dtype)
            results.append(case.result())
            show(results[-1])
            if path != "-":  # after every case: a run that is cut keeps what it measured
                write(ROOT / path, options, case, kind, load, results)
    if path != "-":
        print(f"[bench] {path}")


def write(target: pathlib.Path, options: argparse.Namespace, case: Case, kind: str, load: float, results: list[dict]) -> None:
    report = {"benchmark": "train_step", "ratio": "Fovea / PyTorch, below 1 is faster",
              "command": shlex.join(["benchmarks/train_step.py", *sys.argv[1:]]), "commit": commit(),
              "date": datetime.date.today().isoformat(), "machine": {**case.about["machine"], "kind": kind},
              "load_before": round(load, 2), "threads": options.threads, "warm_ups": WARM_UPS,
              "peer": {"name": "PyTorch eager", "torch": case.peer_about["torch"], "python": case.peer_about["python"]},
              "results": results}
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = pathlib.Path(f"{target}.new")
    partial.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    partial.replace(target)


if __name__ == "__main__":
    main()
