#!/usr/bin/env python3
"""lm-evaluation-harness 0.4.13, model type `hf`, with attn_implementation=fovea against sdpa: the same accuracies.

    build/bin/fovea export MODEL FOLDER --dtype float32        # a model folder that transformers reads
    PYTHONPATH=build/python-package <python of `make python-peers`> tests/peers/check_attention.py FOLDER DATA [TASK ...]
        [--limit 50]

DATA is a folder with the tasks' files, as for check_tasks.py. A question may differ where the two best endings do by less
than TIE nats: then rounding decides.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
import argparse
import pathlib
import sys
import tempfile
import time

import check_tasks

TASKS = ("arc_easy", "piqa", "openbookqa")
MOST = 1e-3  # nats between two log-likelihoods of an ending


def answers(name: str, implementation: str, given, folder: pathlib.Path) -> tuple[dict, float]:
    from lm_eval.models.huggingface import HFLM

    start = time.monotonic()
    lm = HFLM(pretrained=given.model, dtype="float32", device="cpu", batch_size=8, attn_implementation=implementation)
    assert lm.model.config._attn_implementation == implementation
    samples = check_tasks.harness_samples(lm, check_tasks.write_tasks(name, given.data, folder, given.limit), folder, None)
    return samples, time.monotonic() - start


def main(words=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--limit", type=int, default=50)
    given = parser.parse_args(words)
    import fovea.transformers

    fovea.transformers.register()
    failures = 0
    for name in given.tasks:
        with tempfile.TemporaryDirectory() as temporary:
            (ours, seconds), (theirs, other_seconds) = (answers(name, x, given, pathlib.Path(temporary)) for x in ("fovea", "sdpa"))
        differ = ties = 0
        largest = 0.0
        for n, (sample,) in theirs.items():
            mine, other = (check_tasks.likelihoods(x) for x in (ours[n][0], sample))
            largest = max([largest] + [abs(a - b) for a, b in zip(mine, other, strict=True)])
            if any(ours[n][0][metric] != sample[metric] for metric in ("acc", "acc_norm")):
                differ += 1
                two = sorted(other)[-2:]
                ties += two[1] - two[0] < check_tasks.TIE
        accuracy, other_accuracy = (sum(x[n][0]["acc"] for n in x) / len(x) for x in (ours, theirs))
        good = len(ours) == len(theirs) > 0 and differ == ties and largest < MOST
        failures += not good
        print(f"{'ok  ' if good else 'BAD '} {name:12s} {len(ours)} questions, acc {accuracy:.3f} with fovea, {other_accuracy:.3f} "
              f"with sdpa, {differ} differ ({ties} by rounding); log-likelihoods within {largest:.1e} nats; {seconds:.0f} s and "
              f"{other_seconds:.0f} s", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
