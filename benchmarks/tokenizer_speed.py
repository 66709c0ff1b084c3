#!/usr/bin/env python3
"""Byte-level BPE against the `tokenizers` package on one thread, and how time grows with the length of a text.

    <python of `make python-peers`> benchmarks/tokenizer_speed.py TOKENIZER.json PROSE.txt... [--pairs 7] [--output FILE]

Each pair encodes the same text here and there in turn. Ratios are times, ours / theirs: below 1 Fovea is faster. The
package's `encode` also makes offsets, so `encode_batch_fast` of a batch of one stands beside it as its fastest call.
Growth is the median over rounds, each of which takes the three lengths one after the other.

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
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
import tokenizers  # noqa: E402

ROUNDS = 9  # of the three lengths
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests/peers"))
from check_tokenizers import made_texts, ours  # noqa: E402
from train_step import commit, cpu_kind, quartiles  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tokenizer")
    parser.add_argument("texts", nargs="+", type=pathlib.Path)
    parser.add_argument("--build", default=ROOT / "build", type=pathlib.Path)
    parser.add_argument("--pairs", default=7, type=int)
    parser.add_argument("--output", default="", help="- = none; default: benchmarks/results/tokenizers-<cpu>.json")
    options = parser.parse_args()
    theirs = tokenizers.Tokenizer.from_file(options.tokenizer)
    theirs.encode_special_tokens = True
    prose = "".join(path.read_bytes().decode(errors="replace") for path in options.texts)

    def mine(texts: dict[str, str]) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            return {name: seconds for name, (_, seconds) in
                    ours(options.build, options.tokenizer, texts, pathlib.Path(folder)).items()}

    results = []
    sizes = {megabytes: made_texts(megabytes, prose) for megabytes in (1, 2, 4)}
    for name, text in sizes[1].items():
        pairs = []
        for _ in range(options.pairs):
            our_seconds = mine({name: text})[name]
            start = time.perf_counter()
            theirs.encode_batch_fast([text], add_special_tokens=False)
            pairs.append((our_seconds, time.perf_counter() - start))
        rounds = [[mine({name: texts[name]})[name] for texts in sizes.values()] for _ in range(ROUNDS)]
        growth = [statistics.median(seconds[i + 1] / seconds[i] for seconds in rounds) for i in (0, 1)]
        megabytes = len(text.encode()) / 1e6
        results.append({"text": name, "megabytes": round(megabytes, 3),
                        "ratio": quartiles([a / b for a, b in pairs]),
                        "our_mb_per_s": round(megabytes / statistics.median(a for a, _ in pairs), 2),
                        "their_mb_per_s": round(megabytes / statistics.median(b for _, b in pairs), 2),
                        "time_2mb_over_1mb": round(growth[0], 3),
                        "time_4mb_over_2mb": round(growth[1], 3)})
        print(json.dumps(results[-1]), flush=True)
    report = {"benchmark": "tokenizers", "ratio": "Fovea / tokenizers, below 1 is faster",
              "command": shlex.join(["benchmarks/tokenizer_speed.py", *map(os.path.basename, sys.argv[1:])]),
              "commit": commit(), "date": datetime.date.today().isoformat(), "machine": {"kind": cpu_kind()},
              "threads": 1, "peer": {"name": "tokenizers", "version": tokenizers.__version__},
              "pairs": options.pairs, "results": results}
    if options.output != "-":
        path = pathlib.Path(options.output or ROOT / f"benchmarks/results/tokenizers-{cpu_kind()}.json")
        path.write_text(json.dumps(report, indent=1) + "\n")
        print(path)


if __name__ == "__main__":
    main()
