#!/usr/bin/env python3
"""Two builds of Fovea in turn: whether a change of the code moved the speed of what stood before.

    benchmarks/against.py BEFORE/bin [--after build/bin] [--rows step,step-bfloat16,decode,together,pointwise,grouped,help]
                          [--pairs 11] [--attention-pairs 5] [--attention "--lengths 1024"] [--threads N]
                          [--output FILE] [--append]

BEFORE is the build folder of another commit. Workers of both builds answer in turn; the programs of attention run whole,
in turn, and their own medians make the pairs. Every pair gives a ratio (after / before: below 1 the new build is faster);
the median of the pairs' ratios is the result. `together` compares 8 sequences with one, in the new build alone. --append
keeps the rows of the file that are not measured again.

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
import subprocess
import sys
import tempfile
import time

from train_step import ROOT, Side, commit, cpu_kind, quartiles

WARM_UPS = 2
HELP_PAIRS = 61
ATTENTION = {  # row: program, arguments; their results have names and Fovea's own milliseconds
    "pointwise": ("attention_pointwise", "--only sdpa --widths 64 --lengths 1024,4096 --dtypes float32,bfloat16"),
    "grouped": ("attention_grouped", "--only forward --widths 64 --lengths 4096 --dtypes float32,bfloat16 --patterns 'K=8 k=1'"),
}


def result(name: str, pairs: list[tuple[float, float]]) -> dict:
    """Of (after, before) milliseconds."""
    row = {"name": name, "pairs": len(pairs), "after_ms": quartiles([a for a, _ in pairs]),
           "before_ms": quartiles([b for _, b in pairs]), "pair_ratio": quartiles([a / b for a, b in pairs])}
    ratio = row["pair_ratio"]
    print(f"{name:58} {row['after_ms']['median']:9.2f} ms, before {row['before_ms']['median']:9.2f} ms, "
          f"ratio {ratio['median']:.3f} [{ratio['q1']:.3f}, {ratio['q3']:.3f}]", flush=True)
    return row


def in_turn(take, pairs: int) -> list[tuple[float, float]]:
    """Pairs of take(0), take(1); who is first alternates."""
    taken = []
    for n in range(pairs):
        first = n % 2
        times = {side: take(side) for side in (first, 1 - first)}
        taken.append((times[0], times[1]))
    return taken


def workers(name: str, commands: list[list[str]], pairs: int) -> dict:
    with Side(commands[0]) as after, Side(commands[1]) as before:
        sides = after, before
        for _ in range(WARM_UPS):
            after.step(), before.step()
        return result(name, in_turn(lambda side: sides[side].step(), pairs))


def attention(program: str, arguments: str, folders: list[pathlib.Path], pairs: int, more: str) -> list[dict]:
    runs = ({}, {})
    for n in range(pairs):
        for side in (n % 2, 1 - n % 2):
            with tempfile.TemporaryDirectory() as folder:
                file = pathlib.Path(folder) / "result.json"
                words = shlex.split(arguments) + shlex.split(more)  # pairs of name and value; the last one counts
                chosen = dict(zip(words[::2], words[1::2]))
                command = [str(folders[side] / program), *(word for pair in chosen.items() for word in pair), "--output", str(file)]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
                for row in json.loads(file.read_text(encoding="utf-8"))["results"]:
                    runs[side].setdefault(row["name"], []).append(row.get("fovea_ms", row.get("grouped_ms"))["median"])
    return [result(name, list(zip(runs[0][name], runs[1][name]))) for name in runs[0] if name in runs[1]]


def together(worker: list[str], pairs: int) -> dict:
    """Tokens a second of 8 sequences at once, over those of one."""
    with Side(worker) as side:
        side.step(), side.ask("together")
        taken = [(side.step(), float(side.ask("together"))) for _ in range(pairs)]
    gain = quartiles([8 * one / eight for one, eight in taken])
    print(f"{'8 sequences, tokens/s over those of one':58} {gain['median']:.2f} [{gain['q1']:.2f}, {gain['q3']:.2f}]")
    return {"name": "together", "pairs": pairs, "one_ms": quartiles([a for a, _ in taken]),
            "eight_ms": quartiles([b for _, b in taken]), "gain": gain}


def help_time(program: pathlib.Path) -> float:
    start = time.monotonic()
    subprocess.run([str(program), "--help"], check=True, stdout=subprocess.DEVNULL)
    return 1000 * (time.monotonic() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=pathlib.Path, metavar="BEFORE", help="the bin folder of the other build")
    parser.add_argument("--after", type=pathlib.Path, default=ROOT / "build/bin")
    parser.add_argument("--rows", default="step,decode,together,pointwise,grouped,help")
    parser.add_argument("--pairs", default=11, type=int)
    parser.add_argument("--attention-pairs", default=5, type=int)
    parser.add_argument("--attention", default="", help="more arguments of the attention programs")
    parser.add_argument("--threads", default=len(os.sched_getaffinity(0)), type=int)
    parser.add_argument("--output", default="", help="a JSON file; - or nothing: none")
    parser.add_argument("--append", action="store_true", help="keep the other rows of the file")
    options = parser.parse_args()
    folders = [options.after.resolve(), options.before.resolve()]
    for folder in folders:
        if not (folder / "fovea").exists():
            parser.error(f"expected programs in {folder}; build them: scripts/build.sh release")
    threads, wanted, rows = str(options.threads), options.rows.split(","), []
    both = lambda *command: [[str(folder / command[0]), *command[1:]] for folder in folders]
    for name in wanted:
        if name == "step":
            for model, times in (("recipes/demo.yaml", 4), ("30m", 1)):
                rows.append(workers(f"training step, {model}, float32",
                                    both("train_step_worker", model, "float32", threads), times * options.pairs))
        elif name == "step-bfloat16":
            rows.append(workers("training step, 30m, bfloat16", both("train_step_worker", "30m", "bfloat16", threads), options.pairs))
        elif name == "decode":
            rows.append(workers("16 tokens of the 135M shape, bfloat16", both("decode_worker", threads, "256"), options.pairs))
        elif name == "together":
            worker = [str(folders[0] / "decode_worker"), threads, "256", "3", "float32"]
            rows.append(together(worker, options.pairs))
        elif name in ATTENTION:
            rows += attention(*ATTENTION[name], folders, options.attention_pairs, options.attention)
        elif name == "help":
            programs = [folder / "fovea" for folder in folders]
            rows.append(result("fovea --help", in_turn(lambda side: help_time(programs[side]), HELP_PAIRS)))
        else:
            parser.error(f"unknown row '{name}'; expected {parser.get_default('rows')}")
    words = ["BEFORE/bin" if word == str(options.before) else word for word in sys.argv[1:]]
    commands = {shlex.join(["benchmarks/against.py", *words]): commit()}
    if options.output not in ("", "-"):
        path = pathlib.Path(options.output)
        if options.append and path.exists():
            old, names = json.loads(path.read_text(encoding="utf-8")), [row["name"] for row in rows]
            commands = old["commands"] | commands
            rows = [row for row in old["results"] if row["name"] not in names] + rows
        report = {"benchmark": "against", "ratio": "times, after / before, below 1 the new build is faster", "commands": commands,
                  "date": datetime.date.today().isoformat(), "machine": {"kind": cpu_kind(), "threads": options.threads}, "results": rows}
        path.with_suffix(".new").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        path.with_suffix(".new").replace(path)
        print(f"[bench] wrote {path}")
    slow = [row["name"] for row in rows if row.get("pair_ratio", {}).get("median", 0.0) > 1.02]
    if slow:
        print(f"[bench] above 1.02: {', '.join(slow)}")


if __name__ == "__main__":
    main()
