#!/usr/bin/env python3
"""Compares `fovea eval --tasks` with lm-evaluation-harness 0.4.13: the same prompts, log-likelihoods, choices, answers.

    build/bin/fovea export MODEL FOLDER --dtype float32        # a model folder that transformers reads
    <python of `make python-peers`> tests/peers/check_tasks.py FOLDER DATA [TASK ...] [--limit 200]

DATA is a folder with the tasks' files in the layouts of llm-foundry (docs/evaluation.md). Each task is written as a task
of the harness over the same file, with the prompt of the harness's own task of that name. Harness and transformers run
in float32. A question agrees where both choose the same ending, or where the harness's two best differ by less than
TIE nats: then rounding decides.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

import yaml  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TIE = 2e-3  # nats: rounding of float32 over some hundred tokens

CHOICE = {"output_type": "multiple_choice",
          "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True},
                          {"metric": "acc_norm", "aggregation": "mean", "higher_is_better": True}]}
PRIMER = ("Q: What is human life expectancy in the United States?\n"
          "A: Human life expectancy in the United States is 78 years.\n\n"
          "Q: Who was president of the United States in 1955?\n"
          "A: Dwight D. Eisenhower was president of the United States in 1955.\n\n"
          "Q: Which party did he belong to?\nA: He belonged to the Republican Party.\n\n"
          "Q: What is the square root of banana?\nA: I have no comment.\n\n"
          "Q: How does a telescope work?\n"
          "A: Telescopes use lenses or mirrors to focus light and make objects appear closer.\n\n"
          "Q: Where were the 1992 Olympics held?\nA: The 1992 Olympics were held in Barcelona, Spain.")
GSM8K = {"output_type": "generate_until",
         "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True, "ignore_case": True,
                          "ignore_punctuation": False, "regexes_to_ignore": [",", "\\$", "(?s).*#### ", "\\.$"]}]}


def gsm8k_filters(strict: str) -> list:
    return [{"name": "strict-match",
             "filter": [{"function": "regex", "regex_pattern": strict}, {"function": "take_first"}]},
            {"name": "flexible-extract",
             "filter": [{"function": "regex", "group_select": -1, "regex_pattern": "(-?[$0-9.,]{2,})|(-?[0-9]+)"},
                        {"function": "take_first"}]}]


def gsm8k_cot() -> dict:
    import lm_eval

    file = pathlib.Path(lm_eval.__file__).parent / "tasks/gsm8k/gsm8k-cot.yaml"
    task = yaml.safe_load(file.read_text())
    for key in ("dataset_path", "dataset_name", "tag", "task", "test_split"):
        task.pop(key, None)
    return task


# Our task: its file, and the harness's task over the fields of that file.
TASKS = {
    "arc_easy": ("arc_easy.jsonl", CHOICE | {"doc_to_text": "{{query}}\nAnswer:", "doc_to_choice": "choices",
                                             "doc_to_target": "gold"}),
    "arc_challenge": ("arc_challenge.jsonl", CHOICE | {"doc_to_text": "{{query}}\nAnswer:", "doc_to_choice": "choices",
                                                       "doc_to_target": "gold"}),
    "boolq": ("boolq_dev.jsonl", CHOICE | {"doc_to_text": "{{query[9:]}}\nAnswer:", "doc_to_choice": ["no", "yes"],
                                           "doc_to_target": "gold"}),
    "hellaswag": ("hellaswag/hellaswag_val_first1000.jsonl",
                  CHOICE | {"doc_to_text": "{{ctx}}", "doc_to_choice": "endings", "doc_to_target": "label"}),
    "lambada": ("lambada_test.jsonl",
                {"output_type": "loglikelihood", "doc_to_text": "{{text.split(' ')[:-1]|join(' ')}}",
                 "doc_to_target": "{{' '+text.split(' ')[-1]}}",
                 "metric_list": [{"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False},
                                 {"metric": "acc", "aggregation": "mean", "higher_is_better": True}]}),
    "piqa": ("piqa_valid.jsonl", CHOICE | {"doc_to_text": "{{query.strip()}}\nAnswer:", "doc_to_choice": "choices",
                                           "doc_to_target": "gold"}),
    # As the harness's own: the number of the right beginning is the text, the ending is the target.
    "winogrande": ("winogrande_dev.jsonl", CHOICE | {"doc_to_text": "gold", "doc_to_choice": "context_options",
                                                     "doc_to_target": "continuation"}),
    "winograd": ("winograd_wsc.jsonl", CHOICE | {"doc_to_text": "gold", "doc_to_choice": "context_options",
                                                 "doc_to_target": "continuation"}),
    "siqa": ("siqa_dev.jsonl", CHOICE | {"doc_to_text": "Q: {{context}} {{question}}\nA:", "doc_to_choice": "options",
                                         "doc_to_target": "{{options.index(answer)}}"}),
    "openbookqa": ("openbookqa_test.jsonl", CHOICE | {"doc_to_text": "query", "doc_to_choice": "choices",
                                                      "doc_to_target": "gold"}),
    "commonsenseqa": ("commonsenseqa_dev.jsonl", CHOICE | {"doc_to_text": "query", "doc_to_choice": "choices",
                                                           "doc_to_target": "gold"}),
    "truthfulqa_mc1": ("truthfulqa/mc_task.json",
                       CHOICE | {"doc_to_text": PRIMER.replace("{", "{{") + "\n\nQ: {{question}}\nA:",
                                 "doc_to_choice": "choices", "doc_to_target": "gold"}),
    "truthfulqa_mc2": ("truthfulqa/mc_task.json",
                       CHOICE | {"doc_to_text": PRIMER.replace("{", "{{") + "\n\nQ: {{question}}\nA:",
                                 "doc_to_choice": "choices", "doc_to_target": 0}),
    "mmlu": ("mmlu/mmlu_test_first17_per_subject.jsonl",
             CHOICE | {"doc_to_text": "{{question.strip()}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\n"
                                      "D. {{choices[3]}}\nAnswer:",
                       "doc_to_choice": ["A", "B", "C", "D"], "doc_to_target": "answer", "num_fewshot": 5,
                       "fewshot_split": "dev", "fewshot_config": {"sampler": "first_n"}}),
    "gsm8k": ("gsm8k/test.jsonl",
              GSM8K | {"doc_to_text": "Question: {{question}}\nAnswer:", "doc_to_target": "{{answer}}",
                       "generation_kwargs": {"until": ["Question:", "</s>", "<|im_end|>"], "do_sample": False},
                       "filter_list": gsm8k_filters("#### (\\-?[0-9\\.\\,]+)")}),
    "gsm8k_cot": ("gsm8k/test.jsonl", None),
}


def records(path: pathlib.Path, limit: int) -> list[dict]:
    text = path.read_text(encoding="utf-8")
    rows = json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines() if line]
    return rows[:limit]


def write_rows(path: pathlib.Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def write_tasks(name: str, data: pathlib.Path, folder: pathlib.Path, limit: int) -> dict[str, list[int]]:
    """Tasks of the harness in `folder`: their names, with the numbers of our questions that they hold."""
    file, task = TASKS[name]
    task = dict(gsm8k_cot() if task is None else task)
    rows = records(data / file, limit)
    if name == "truthfulqa_mc1":  # a map of answers is no column
        for row in rows:
            answers = row["mc1_targets"]
            row["choices"], row["gold"] = list(answers), list(answers.values()).index(1)
        rows = [{key: row[key] for key in ("question", "choices", "gold")} for row in rows]
    if name == "truthfulqa_mc2":
        rows = [{"question": row["question"], "choices": list(row["mc2_targets"]),
                 "mc2_targets": {"labels": list(row["mc2_targets"].values())}} for row in rows]
    if name == "siqa":
        rows = [{key: row[key] for key in ("context", "question", "options", "answer")} for row in rows]
    parts = {name: list(range(len(rows)))}
    if name == "mmlu":  # the harness has a task a subject
        parts = {}
        for n, row in enumerate(rows):
            parts.setdefault(row["subject"], []).append(n)
    shots = records(data / "mmlu/mmlu_dev.jsonl", 10**9) if name == "mmlu" else []
    out = {}
    for part, numbers in parts.items():
        full = f"peer_{name}_{part}"
        files = {"test": write_rows(folder / f"{full}.jsonl", [rows[n] for n in numbers])}
        own = dict(task)
        if shots:
            files["dev"] = write_rows(folder / f"{full}_dev.jsonl", [s for s in shots if s["subject"] == part])
            own["description"] = (f"The following are multiple choice questions (with answers) about "
                                  f"{part.replace('_', ' ')}.\n\n")
        own |= {"task": full, "dataset_path": "json", "dataset_kwargs": {"data_files": files}, "test_split": "test"}
        (folder / f"{full}.yaml").write_text(yaml.safe_dump(own, allow_unicode=True), encoding="utf-8")
        out[full] = numbers
    return out


def harness_samples(lm, tasks: dict[str, list[int]], folder: pathlib.Path, shots: int | None) -> dict[int, list[dict]]:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    result = simple_evaluate(model=lm, tasks=list(tasks), task_manager=manager, log_samples=True, num_fewshot=shots,
                             bootstrap_iters=0, verbosity="ERROR")
    samples: dict[int, list[dict]] = {}
    for name, numbers in tasks.items():
        for sample in result["samples"][name]:
            samples.setdefault(numbers[sample["doc_id"]], []).append(sample)
    return samples


def fovea_lines(program: str, model: str, name: str, data: pathlib.Path, limit: int, shots: int | None,
                folder: pathlib.Path) -> dict[int, dict]:
    command = [program, "eval", model, "--tasks", name, "--data", str(data), "--limit", str(limit), "--out",
               str(folder / f"out_{name}"), "--quiet", "--json"]
    if shots is not None:
        command += ["--shots", str(shots)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    lines = (folder / f"out_{name}/results/{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return {line["index"]: line for line in map(json.loads, lines[1:])}


def likelihoods(sample: dict) -> list[float]:
    return [float(response[0][0]) for response in sample["resps"]]


def compare_choice(name: str, ours: dict[int, dict], theirs: dict[int, list[dict]]) -> tuple[int, int, float]:
    """Questions that differ, ties among them, and the largest difference of a log-likelihood."""
    differ = ties = 0
    largest = 0.0
    for n, line in ours.items():
        theirs_ll = likelihoods(theirs[n][0])
        if name == "lambada":
            ours_ll = [line["answer"]["log_likelihood"]]
            same = line["answer"]["greedy"] == bool(theirs[n][0]["resps"][0][0][1])
        elif name == "truthfulqa_mc2":
            from lm_eval.tasks.truthfulqa.utils import process_results_mc2

            ours_ll = line["answer"]["log_likelihoods"]
            share = process_results_mc2(theirs[n][0]["doc"], [(value, False) for value in theirs_ll])["acc"]
            same = abs(line["scores"]["mc2"] - share) < TIE
        else:
            ours_ll = line["answer"]["log_likelihoods"]
            best = max(range(len(theirs_ll)), key=lambda k: theirs_ll[k])
            same = best == line["answer"]["choice"] and line["scores"].get("acc_norm", theirs[n][0].get("acc_norm")) == \
                theirs[n][0].get("acc_norm", line["scores"].get("acc_norm"))
        largest = max([largest] + [abs(a - b) for a, b in zip(ours_ll, theirs_ll, strict=True)])
        if not same:
            differ += 1
            two = sorted(theirs_ll)[-2:]
            ties += len(two) == 2 and two[1] - two[0] < TIE
    return differ, ties, largest


def compare_texts(ours: dict[int, dict], theirs: dict[int, list[dict]]) -> tuple[int, int, float]:
    """Questions whose two scores differ, those among them whose texts differ, and the share of equal texts."""
    differ = other_text = equal = 0
    for n, line in ours.items():
        by_filter = {sample["filter"]: sample for sample in theirs[n]}
        text = theirs[n][0]["resps"][0][0]
        equal += text == line["answer"]["text"]
        for filter_name, metric in (("strict-match", "exact_match_strict"), ("flexible-extract", "exact_match_flexible")):
            if float(by_filter[filter_name]["exact_match"]) != line["scores"][metric]:
                differ += 1
                other_text += text != line["answer"]["text"]
    return differ, other_text, equal / len(ours)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("tasks", nargs="*")
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--texts", type=int, default=16, help="questions of the tasks that write answers")
    parser.add_argument("--fovea", default=str(ROOT / "build/bin/fovea"))
    arguments = parser.parse_args()
    from lm_eval.models.huggingface import HFLM

    lm = HFLM(pretrained=arguments.model, dtype="float32", device="cpu", batch_size=8)
    failures = 0
    for name in arguments.tasks or TASKS:
        writes = name.startswith("gsm8k")
        limit = arguments.texts if writes else arguments.limit
        shots = 0 if name == "gsm8k" else None  # drawn shots are drawn otherwise in the harness
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            start = time.monotonic()
            ours = fovea_lines(arguments.fovea, arguments.model, name, arguments.data, limit, shots, folder)
            middle = time.monotonic()
            theirs = harness_samples(lm, write_tasks(name, arguments.data, folder, limit), folder, shots)
            seconds = f"{middle - start:.0f} s, harness {time.monotonic() - middle:.0f} s"
        if writes:
            differ, explained, equal = compare_texts(ours, theirs)
            told = f"{100 * equal:.0f} % of texts are equal"
        else:
            differ, explained, largest = compare_choice(name, ours, theirs)
            told = f"log-likelihoods within {largest:.1e} nats"
        good = differ == explained
        failures += not good
        print(f"{'ok  ' if good else 'BAD '} {name:16s} {len(ours)} questions, {differ} differ ({explained} by rounding); "
              f"{told}; {seconds}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
