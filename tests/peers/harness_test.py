#!/usr/bin/env python3
"""lm-evaluation-harness 0.4.13 as a client (`local-completions`, `gguf`) against the numbers of `fovea eval --tasks`.

    <python of `make python-peers`> tests/peers/harness_test.py FOVEA FOLDER [--model MODEL --data DATA --limit N]

MODEL is a folder in Hugging Face's layout, DATA holds the tasks' files (docs/evaluation.md); without them a small model
and questions are made in FOLDER. The harness sends echo, logprobs and max_tokens 1: `local-completions` lists of ids, `gguf`,
which speaks to llama-cpp-python's server, one text a request. A question agrees as in check_tasks.py. Without the package, one line says that nothing was run.

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
# `gguf` counts from the end of the context; other types give whitespace there, as in openbookqa's, to the ending.
GGUF_TASKS = ("arc_easy", "piqa")
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


def served_models(server: served.Server, tokenizer: pathlib.Path) -> dict:
    """The server as the harness's model types see it."""
    from lm_eval.api.registry import get_model

    return {
        "local-completions": get_model("local-completions")(
            model="served", base_url=server.address + "/v1/completions", tokenizer=str(tokenizer), tokenizer_backend="huggingface",
            tokenized_requests=True, num_concurrent=4, max_retries=2, max_length=2048),
        "gguf": get_model("gguf")(base_url=server.address),
    }


def generated(lm) -> str:
    """A text that the harness lets a model write."""
    from lm_eval.api.instance import Instance

    request = Instance("generate_until", {}, ("the key", {"until": ["\n\n"]}), 0)
    return lm.generate_until([request], disable_tqdm=True)[0]


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
    with served.Server(given.fovea, model, given.folder / "harness.log", "--name", "served", "--dtype", "float32") as server:
        models = served_models(server, model)
        for name in TASKS:
            with tempfile.TemporaryDirectory() as temporary:
                folder = pathlib.Path(temporary)
                ours = check_tasks.fovea_lines(given.fovea, str(model), name, data, given.limit, None, folder)
                tasks = check_tasks.write_tasks(name, data, folder, given.limit)
                theirs = {kind: check_tasks.harness_samples(lm, tasks, folder, None) for kind, lm in models.items()
                          if kind != "gguf" or name in GGUF_TASKS}
            for kind, samples in theirs.items():
                differ, ties, largest = check_tasks.compare_choice(name, ours, samples)
                good = differ == ties and largest < MOST
                failures += not good
                print(f"{'ok  ' if good else 'BAD '} {name:12s} {kind:17s} {len(ours)} questions, {differ} differ ({ties} by rounding); "
                      f"log-likelihoods within {largest:.1e} nats", flush=True)
        text = generated(models["gguf"])
        print(f"{'ok  ' if text else 'BAD '} generate_until by gguf: {text!r}")
        failures += not text
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
