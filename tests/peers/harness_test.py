#!/usr/bin/env python3
"""lm-evaluation-harness 0.4.13 as a client (`local-completions`) against the numbers of `fovea eval --tasks`.

    <python of `make python-peers`> tests/peers/harness_test.py FOVEA FOLDER [--model MODEL --data DATA --limit N]

MODEL is a folder in Hugging Face's layout, DATA holds the tasks' files (docs/evaluation.md); without them a small model
and questions are made in FOLDER. The harness sends lists of ids with echo, logprobs and max_tokens 1. A question agrees
as in check_tasks.py. Without the package, one line says that nothing was run.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import json
import pathlib
import random
import sys
import tempfile

import served

TASKS = ("arc_easy", "piqa", "openbookqa")
MOST = 0.05  # nats between two log-likelihoods of an ending


def write_questions(folder: pathlib.Path, files: dict[str, str], count: int) -> None:
    words = "key door inn keeper mat brass old red blue box".split()
    for task, name in files.items():
        draw = random.Random(task)
        with open(folder / name, "w", encoding="utf-8") as file:
            for _ in range(count):
                choices = [" ".join(draw.choices(words, k=draw.randrange(1, 5))) for _ in range(2 if task == "piqa" else 4)]
                record = {"query": "Question: " + " ".join(draw.choices(words, k=8)) + "\n", "gold": draw.randrange(len(choices)),
                          "choices": choices}
                file.write(json.dumps(record) + "\n")


def served_model(server: served.Server, tokenizer: pathlib.Path):
    from lm_eval.api.registry import get_model

    return get_model("local-completions")(
        model="served", base_url=server.address + "/v1/completions", tokenizer=str(tokenizer), tokenizer_backend="huggingface",
        tokenized_requests=True, num_concurrent=4, max_retries=2, max_length=2048)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("fovea")
    options.add_argument("folder", type=pathlib.Path)
    options.add_argument("--model", type=pathlib.Path)
    options.add_argument("--data", type=pathlib.Path)
    options.add_argument("--limit", type=int, default=20)
    served.run_with_peers("lm_eval", "transformers", "yaml")
    given = options.parse_args()
    try:
        import lm_eval  # noqa: F401
        import transformers  # noqa: F401

        import check_tasks
    except ImportError as error:
        print(f"harness_test: not run: {error} (make python-peers)")
        return 0
    given.folder.mkdir(parents=True, exist_ok=True)
    model = given.model or served.write_model(given.folder / "tiny")
    if given.data is None:
        write_questions(given.folder, {task: check_tasks.TASKS[task][0] for task in TASKS}, given.limit)
    data = given.data or given.folder
    failures = 0
    with served.Server(given.fovea, model, given.folder / "harness.log", "--name", "served") as server:
        lm = served_model(server, model)
        for name in TASKS:
            with tempfile.TemporaryDirectory() as temporary:
                folder = pathlib.Path(temporary)
                ours = check_tasks.fovea_lines(given.fovea, str(model), name, data, given.limit, None, folder)
                theirs = check_tasks.harness_samples(lm, check_tasks.write_tasks(name, data, folder, given.limit), folder, None)
            differ, ties, largest = check_tasks.compare_choice(name, ours, theirs)
            good = differ == ties and largest < MOST
            failures += not good
            print(f"{'ok  ' if good else 'BAD '} {name:12s} {len(ours)} questions, {differ} differ ({ties} by rounding); "
                  f"log-likelihoods within {largest:.1e} nats", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
