#!/usr/bin/env python3
"""Packed weights with exact activations and with activations rounded to 16 and 8 bits (`--activations`), in one process.

    benchmarks/activations.py MODEL.gguf [--position 512] [--pairs 9] [--threads N] [--weights q8_0,stored] [--together 8] [--output FILE]

The worker of real_model.py holds one model; all forms take turns at reading a prompt, writing one text and writing N
texts at once. A share is of the measured read bandwidth, as in real_model.py.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import datetime
import json
import os
import pathlib
import shlex
import sys

from train_step import ROOT, Side, commit, cpu_kind, quartiles

FORMS = ("exact", "int16", "int8")


def compare(options: argparse.Namespace, weights: str) -> dict:
    questions = ("prompt", "step", f"together {options.together}")
    taken = {form: {question: [] for question in questions} for form in FORMS}
    with Side([str(ROOT / "build/bin/real_model_worker"), options.model, str(options.threads), str(options.position), "bfloat16", weights]) as worker:
        about = json.loads(worker.ask("about"))
        bandwidth = [float(worker.ask("bandwidth"))]
        for n in range(options.pairs + 1):  # the first is the warm-up
            for form in FORMS if n % 2 == 0 else FORMS[::-1]:
                worker.ask(f"activations {form}")
                for question in questions:
                    taken[form][question].append(float(worker.ask(question)))
            bandwidth.append(float(worker.ask("bandwidth")))
    prompt, step, together = ({form: taken[form][question][1:] for form in FORMS} for question in questions)
    machine, tokens, texts = about.pop("machine"), about["tokens"], options.together
    needed = about["weight_bytes"] + about["cache_bytes"]
    row = {"weights": weights, **about, "pairs": options.pairs, "texts_together": texts, "read_bandwidth_gb_per_s": quartiles(bandwidth)}
    for form in FORMS:
        row |= {f"{form}_tokens_per_second": quartiles([tokens * 1e3 / a for a in step[form]]),
                f"{form}_share_of_bandwidth": quartiles([needed * tokens / 1e6 / a / max(bandwidth) for a in step[form]]),
                f"{form}_together_tokens_per_second": quartiles([texts * tokens * 1e3 / a for a in together[form]]),
                f"{form}_together_over_one": quartiles([texts * a / b for a, b in zip(step[form], together[form])]),
                f"{form}_prompt_tokens_per_second": quartiles([options.position * 1e3 / a for a in prompt[form]])}
    for name, times in (("decode", step), ("together", together), ("prompt", prompt)):
        for form in FORMS[1:]:
            row[f"{form}_{name}_speedup"] = quartiles([a / b for a, b in zip(times["exact"], times[form])])
    for form in FORMS[1:]:
        print(weights, form, *(f"{name}: x{row[f'{form}_{name}_speedup']['median']:.2f}" for name in ("decode", "together", "prompt")),
              f"{row[f'{form}_tokens_per_second']['median']:.0f} tokens/s, {row[f'{form}_share_of_bandwidth']['median']:.0%} of {max(bandwidth):.1f} GB/s, "
              f"{texts} together x{row[f'{form}_together_over_one']['median']:.2f} of one", flush=True)
    return {"machine": machine, **row}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--position", default=512, type=int)
    parser.add_argument("--pairs", default=9, type=int)
    parser.add_argument("--threads", default=len(os.sched_getaffinity(0)), type=int)
    parser.add_argument("--weights", default="q8_0,stored")
    parser.add_argument("--together", default=8, type=int)
    parser.add_argument("--output", default="", help="- = none")
    options = parser.parse_args()
    rows = [compare(options, weights) for weights in options.weights.split(",")]
    machine = [row.pop("machine") for row in rows][0]
    report = {"benchmark": "activations", "ratio": "times, exact / int16 or int8, above 1 these are faster",
              "command": shlex.join(["benchmarks/activations.py", *sys.argv[1:]]), "commit": commit(),
              "date": datetime.date.today().isoformat(), "machine": {**machine, "kind": cpu_kind()},
              "model": pathlib.Path(options.model).name, "rows": rows}
    if options.output != "-":
        path = pathlib.Path(options.output or ROOT / f"benchmarks/results/activations-{cpu_kind()}.json")
        path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
