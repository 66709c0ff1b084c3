#!/usr/bin/env python3
"""Decode time of layers with mixed logits, Focus and first keys over that of plain attention: models of 135M shape write
tokens in turn.

    benchmarks/decode_attention.py [--position 895] [--rounds 5] [--threads N] [--earlier WORKER] [--only WORD] [--output FILE]

All 30 layers attend as the case says. --earlier: the same cases by a worker of another build, in the same turns.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import contextlib
import datetime
import json
import os
import shlex
import sys

from train_step import ROOT, Side, commit, cpu_kind, quartiles

MIXES = {"head_mix": {"before": "full", "after": "full"}}
CONVOLUTION = {"multi_token": {"before": {"queries": 6, "keys": 11}}}
TEMPERATURE = {"temperature": {"kind": "learned"}}


def focus(gate: str) -> dict:
    return {"focus": {"gate": gate, "groups": 8, "top_k": 2}}


CASES = {"plain": {}, "head mixes": MIXES}
CASES |= {f"head mixes, Focus {gate}": MIXES | focus(gate) for gate in ("log", "mul", "logsig", "hard")}
CASES |= {"convolution before": CONVOLUTION,
          "convolution before, Focus log": CONVOLUTION | focus("log"),
          "convolution before, Focus hard": CONVOLUTION | focus("hard"),
          "Focus log": focus("log"), "Focus log, learned temperature": focus("log") | TEMPERATURE,
          "head mixes, learned temperature": MIXES | TEMPERATURE,
          "StreamingLLM, 4 + 252": {"streaming": {"start": 4, "recent": 252}},
          "window of 252, 4 sinks": {"mask": {"window": 252, "sinks": 4}}}


def measure(options: argparse.Namespace) -> tuple[list[dict], dict]:
    """The cases, and what the workers say of themselves."""
    cases = {name: keys for name, keys in CASES.items() if name == "plain" or options.only in name}
    workers = {"": options.worker} | ({"earlier": options.earlier} if options.earlier else {})
    with contextlib.ExitStack() as stack:
        sides = {}
        for build, worker in workers.items():
            for name, keys in cases.items():
                command = [worker, str(options.threads), str(options.position), "3", "bfloat16", json.dumps(keys)]
                sides[build, name] = stack.enter_context(Side(command))
        abouts = {key: json.loads(side.ask("about")) for key, side in sides.items()}
        for side in sides.values():
            side.step()
        times = [{key: side.step() / abouts[key]["tokens"] for key, side in sides.items()} for _ in range(options.rounds)]
    results = []
    for name in cases:
        row = {"attention": name, "position": options.position, "threads": options.threads,
               "ms_per_token": quartiles([t["", name] for t in times]),
               "of_plain_speed": quartiles([t["", "plain"] / t["", name] for t in times])}
        if options.earlier:
            row |= {"earlier_ms_per_token": quartiles([t["earlier", name] for t in times]),
                    "earlier_of_plain_speed": quartiles([t["earlier", "plain"] / t["earlier", name] for t in times]),
                    "to_earlier": quartiles([t["", name] / t["earlier", name] for t in times])}
        earlier = f", earlier {row['earlier_of_plain_speed']['median']:.2f}" if options.earlier else ""
        print(f"{name:40} {row['ms_per_token']['median']:6.2f} ms a token, "
              f"{row['of_plain_speed']['median']:.2f} of plain{earlier}", flush=True)
        results.append(row)
    codes = {build: abouts[build, "plain"]["machine"]["fovea"] for build in workers}
    return results, {"machine": {**abouts["", "plain"]["machine"], "kind": cpu_kind()}, "earlier_code": codes.get("earlier")}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--position", default=895, type=int)
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--threads", default=len(os.sched_getaffinity(0)), type=int)
    parser.add_argument("--worker", default=str(ROOT / "build/bin/decode_worker"))
    parser.add_argument("--earlier", default="", help="worker of another build")
    parser.add_argument("--only", default="", help="cases with this word")
    parser.add_argument("--output", default="", help="JSON; absent = none")
    options = parser.parse_args()
    cases, about = measure(options)
    if options.output:
        report = {"benchmark": "decode_attention", "ratio": "speed over that of plain attention, above 1 is faster",
                  "command": shlex.join(["benchmarks/decode_attention.py", *sys.argv[1:]]), "commit": commit(),
                  "date": datetime.date.today().isoformat(), **about, "rounds": options.rounds, "cases": cases}
        (ROOT / options.output).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
