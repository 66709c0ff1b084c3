#!/usr/bin/env python3
"""Decode speed of a bfloat16 model of 135M shape at batch 1: the share of the memory's read bandwidth, and transformers.

    benchmarks/decode.py [--position 256] [--pairs 11] [--threads N] [--output FILE]

The two sides write the same number of tokens in turn. A token must read all weights and the cache once; those bytes over
the time, over the measured read bandwidth of the machine, is the share.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import datetime
import json
import os
import pathlib
import shlex
import statistics
import sys

from train_step import ROOT, Side, commit, cpu_kind, default_python, quartiles

WARM_UPS = 2


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--position", default=256, type=int)
    parser.add_argument("--pairs", default=11, type=int)
    parser.add_argument("--threads", default=len(os.sched_getaffinity(0)), type=int)
    parser.add_argument("--worker", default=str(ROOT / "build/bin/decode_worker"))
    parser.add_argument("--python", default=default_python())
    parser.add_argument("--output", default="", help="- = none")
    options = parser.parse_args()
    with Side([options.worker, str(options.threads), str(options.position)]) as ours:
        about = json.loads(ours.ask("about"))
        peer = [options.python, "benchmarks/decode_peer.py", json.dumps(about), str(options.threads)]
        with Side(peer) as theirs:
            peer_about = json.loads(theirs.ask("about"))
            pairs, bandwidth = [], [float(ours.ask("bandwidth"))]
            for _ in range(WARM_UPS):
                ours.step(), theirs.step()
            for _ in range(options.pairs):
                pairs.append((ours.step(), theirs.step()))
                bandwidth.append(float(ours.ask("bandwidth")))
    if peer_about["parameters"] != about["parameters"]:
        sys.exit(f"[bench] not the same model: {about['parameters']} and {peer_about['parameters']} parameters")
    tokens, needed = about["tokens"], about["weight_bytes"] + about["cache_bytes"]
    machine = about.pop("machine")
    best = max(bandwidth)
    share = [needed * tokens / 1e6 / ms / best for ms, _ in pairs]
    report = {"benchmark": "decode", "ratio": "times, Fovea / transformers, below 1 is faster",
              "command": shlex.join(["benchmarks/decode.py", *sys.argv[1:]]), "commit": commit(),
              "date": datetime.date.today().isoformat(), "machine": {**machine, "kind": cpu_kind()}, **about,
              "peer": {"name": "transformers LlamaForCausalLM, bfloat16", **peer_about}, "pairs": options.pairs,
              "read_bandwidth_gb_per_s": quartiles(bandwidth), "best_read_bandwidth_gb_per_s": round(best, 2),
              "ms_per_token": quartiles([ms / tokens for ms, _ in pairs]),
              "peer_ms_per_token": quartiles([ms / tokens for _, ms in pairs]),
              "share_of_bandwidth": quartiles(share), "pair_ratio": quartiles([a / b for a, b in pairs])}
    print(f"{about['parameters'] / 1e6:.0f}M bfloat16, position {options.position}: "
          f"{report['ms_per_token']['median']:.2f} ms a token, {statistics.median(share):.0%} of {best:.1f} GB/s; "
          f"transformers {report['peer_ms_per_token']['median']:.2f} ms, ratio {report['pair_ratio']['median']:.3f}")
    if options.output != "-":
        path = pathlib.Path(options.output or ROOT / f"benchmarks/results/decode-{cpu_kind()}.json")
        path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
