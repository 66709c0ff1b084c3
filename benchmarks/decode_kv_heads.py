#!/usr/bin/env python3
"""Decode time and cache of MHA, GQA and MQA: models of 135M shape with 9, 3 and 1 key/value heads write tokens in turn.

    benchmarks/decode_kv_heads.py [--positions 256,4096] [--rounds 7] [--threads N] [--output FILE]

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

HEADS = {"MHA": 9, "GQA": 3, "MQA": 1}


def measure(position: int, options: argparse.Namespace) -> tuple[list[dict], dict]:
    with contextlib.ExitStack() as stack:
        sides = {name: stack.enter_context(Side([options.worker, str(options.threads), str(position), str(heads)]))
                 for name, heads in HEADS.items()}
        abouts = {name: json.loads(side.ask("about")) for name, side in sides.items()}
        for side in sides.values():
            side.step()
        times = [{name: side.step() / abouts[name]["tokens"] for name, side in sides.items()}
                 for _ in range(options.rounds)]
    cases = [{"attention": name, "kv_heads": HEADS[name], "position": position,
              "weight_bytes": abouts[name]["weight_bytes"], "cache_bytes": abouts[name]["cache_bytes"],
              "ms_per_token": quartiles([t[name] for t in times]),
              "ratio_to_mha": quartiles([t[name] / t["MHA"] for t in times])} for name in HEADS]
    for case in cases:
        print(f"{case['attention']}  position {position:5}  cache {case['cache_bytes'] / 1e6:6.1f} MB  "
              f"{case['ms_per_token']['median']:6.2f} ms a token  {case['ratio_to_mha']['median']:.2f} of MHA")
    return cases, abouts["MHA"]["machine"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--positions", default="256,4096")
    parser.add_argument("--rounds", default=7, type=int)
    parser.add_argument("--threads", default=len(os.sched_getaffinity(0)), type=int)
    parser.add_argument("--worker", default=str(ROOT / "build/bin/decode_worker"))
    parser.add_argument("--output", default="", help="JSON; absent = none")
    options = parser.parse_args()
    cases, machine = [], {}
    for position in map(int, options.positions.split(",")):
        more, machine = measure(position, options)
        cases += more
    if options.output:
        report = {"benchmark": "decode_kv_heads", "command": shlex.join(["benchmarks/decode_kv_heads.py", *sys.argv[1:]]),
                  "commit": commit(), "date": datetime.date.today().isoformat(),
                  "machine": {**machine, "kind": cpu_kind()}, "rounds": options.rounds, "cases": cases}
        (ROOT / options.output).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
