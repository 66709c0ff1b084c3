#!/usr/bin/env python3
"""Training of the Multi-Token paper's systems side by side: tokens a second and peak memory of each.

    benchmarks/train_systems.py [--systems transformer,mta] [--length 2048] [--dtype bfloat16] [--rounds 7] [--threads N]
                                [--device cuda] [--output FILE]

`--systems layer-norm,parallel,parallel-two` asks the same of options of the architecture: LayerNorm in place of RMSNorm,
blocks that run attention and feed-forward side by side with one norm or two. These are not among the default systems.

The shape is the paper's 880M model with 4 layers in place of 24 and 8,192 tokens in place of 128,256 (the convolution
stays in every fourth layer): width 1,536, 16 heads of 96, one row of 2,048 tokens. Each system is a process with its model
and optimizer in memory; in every round each takes one whole training step (forward, backward, clip, AdamW), one after the
other in changing order, so that whatever disturbs the machine meets all. Ratios to the Transformer are those of one round;
the median of the rounds counts. Memory is VmHWM of the process, or of its tensors on the GPU. Needs `make build`.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import shlex
import statistics
import sys

from train_step import ROOT, Side, commit, cpu_kind, quartiles

RECIPE = "recipes/papers/mta-880m.yaml"
WARM_UPS = 1
REFERENCE = "transformer"
MIX = "model.attention.head_mix="
KERNEL = "{queries: 6, keys: 11}"
SYSTEMS = {  # the variants of the recipe; MTA's convolutions in one layer of four
    REFERENCE: [],
    "differential": ["model.attention.differential=true"],
    "talking-heads": [MIX + "{before: full, after: full}"],
    "mta": [f"model.attention.multi_token={{before: {KERNEL}, after: {KERNEL}, layers: [2]}}",
            MIX + "{before: full, after: groups, group: 16}", "model.attention.head_output={norm: rms, gate: scalar}"],
}
OPTIONS = {
    "layer-norm": ["model.norm=layer"],
    "parallel": ["model.block=parallel"],
    "parallel-two": ["model.block=parallel_two"],
}


def shape(options: argparse.Namespace) -> list[str]:
    device = [f"train.device={options.device}"]
    return [*device, "model.layers=4", "model.vocab_size=8192", f"model.context={options.length}", "train.batch_rows=1",
            f"train.sequence_length={options.length}"]


def measure(options: argparse.Namespace) -> tuple[dict, list[dict]]:
    names = options.systems
    with contextlib.ExitStack() as stack:
        sides = {}
        for name in names:
            worker = [options.worker, RECIPE, options.dtype, str(options.threads), *shape(options), *(SYSTEMS | OPTIONS)[name]]
            sides[name] = stack.enter_context(Side(worker))
            about = json.loads(sides[name].ask("about"))
            sides[name].about = about
            print(f"[bench] {name}: {about['parameters'] / 1e6:.1f}M parameters, {about['path']} {about['plan']}", flush=True)
        for _ in range(WARM_UPS):
            for side in sides.values():
                side.step()
        times = {name: [] for name in names}
        for turn in range(options.rounds):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                times[name].append(sides[name].step())
            print(f"[bench] round {turn + 1} of {options.rounds}: "
                  + ", ".join(f"{name} {times[name][-1] / 1e3:.2f} s" for name in names), flush=True)
        memory = {name: int(side.ask("memory")) for name, side in sides.items()}
    results = []
    for name in names:
        about = sides[name].about
        results.append({
            "name": f"{name}, {options.dtype} T={options.length}", "system": name, "threads": options.threads,
            "parameters": about["parameters"], "path": about["path"], "plan": about["plan"],
            "rounds": options.rounds, "step_ms": quartiles(times[name]),
            "tokens_per_second": round(options.length / statistics.median(times[name]) * 1e3, 1),
            "speed_ratio": quartiles([a / b for a, b in zip(times[REFERENCE], times[name])]),
            "peak_bytes": memory[name], "memory_ratio": round(memory[name] / memory[REFERENCE], 3)})
    return sides[names[0]].about["machine"], results


def show(results: list[dict]) -> None:
    print(f"{'system':16} {'tokens/s':>9} {'speed':>7} {'quartiles':>16} {'memory, MiB':>12} {'memory':>7}")
    for row in results:
        ratio = row["speed_ratio"]
        print(f"{row['system']:16} {row['tokens_per_second']:9.1f} {ratio['median']:6.3f}x "
              f"[{ratio['q1']:.3f}, {ratio['q3']:.3f}] {row['peak_bytes'] / 2**20:12.0f} {row['memory_ratio']:6.3f}x")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--systems", default=",".join(SYSTEMS),
                        help=f"of {', '.join(SYSTEMS | OPTIONS)}; {REFERENCE} is always taken")
    parser.add_argument("--length", type=int, default=2048, help="tokens of the one row [%(default)s]")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--kind", default=cpu_kind(), help="name of the machine in results and their file [%(default)s]")
    parser.add_argument("--worker", default="build/bin/train_step_worker")
    parser.add_argument("--output", help="default benchmarks/results/train-systems-<cpu>.json, by dtype and length; "
                                         "- = none")
    options = parser.parse_args()
    if not os.path.exists(ROOT / options.worker):
        sys.exit(f"[bench] '{options.worker}' is missing; run: make build")
    asked = options.systems.split(",")
    unknown = [name for name in asked if name not in SYSTEMS | OPTIONS]
    if unknown:
        sys.exit(f"[bench] expected systems of {', '.join(SYSTEMS | OPTIONS)}; got {', '.join(unknown)}")
    if options.rounds < 1 or options.length < 1:
        sys.exit(f"[bench] expected --rounds and --length of at least 1; got {options.rounds} and {options.length}")
    options.systems = [REFERENCE] + [name for name in asked if name != REFERENCE]
    return options


def write(options: argparse.Namespace, machine: dict, results: list[dict]) -> None:
    path = options.output or f"benchmarks/results/train-systems-{options.kind}.json"
    if path == "-":
        return
    target = ROOT / path
    report = {"benchmark": "train_systems", "commands": {}, "machine": {}, "results": [],
              "ratio": "times of a round, Transformer / system, above 1 the system is faster; memory: system / Transformer"}
    if target.exists():
        report = json.loads(target.read_text(encoding="utf-8"))
    report["commands"][shlex.join(sys.argv[1:])] = f"{commit()}, {datetime.date.today().isoformat()}"
    report["machine"] = {**machine, "kind": options.kind}
    names = {row["name"] for row in results}
    report["results"] = [row for row in report["results"] if row["name"] not in names] + results
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = pathlib.Path(f"{target}.new")
    partial.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    partial.replace(target)
    print(f"[bench] {path}")


def main() -> None:
    options = parse()
    load = os.getloadavg()[0]
    if load > 0.7:
        print(f"[bench] the machine is busy (load {load:.1f}): ratios are those of a round, but expect wide quartiles",
              flush=True)
    machine, results = measure(options)
    show(results)
    write(options, machine, results)


if __name__ == "__main__":
    main()
