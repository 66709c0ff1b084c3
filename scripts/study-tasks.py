#!/usr/bin/env python3
"""Keeps the answers of several trainings to the same tasks in one file, as the claims read it.

    scripts/study-tasks.py --about KEY=TEXT ... "full=runs/full" "hard-1 0=runs/hard-1-s0" "hard-1 1=runs/hard-1-s1" ...

Each part is a folder of `fovea eval --tasks --out`, or two, FIRST+SECOND, where a task of the second takes the place of the
first one's, as one that was asked more questions. Printed is JSON: what --about says, then each part with its tasks, the
share of pairs that its attention read, and, where it was scored with --against, the differences question by question
(fovea/report/claim_evidence.h: `at: "/hard-1 {seed}"` puts the trainings together).

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import json
import pathlib
import re
import sys


def rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(v) for key, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, list) else value


def kept_task(task: dict) -> dict:
    metric = task["metrics"][task["headline"]]
    out = {"task": task["task"], "metric": task["headline"], "value": metric["value"], "items": metric["items"]}
    return out | ({"pairs": task["pairs"]} if task.get("pairs") else {})


def part(folders: list) -> dict:
    wholes = [json.loads((pathlib.Path(folder) / "tasks.json").read_text()) for folder in folders]
    out: dict = {}
    for key in ("tasks", "against"):
        by_name = {task["task"]: task for whole in wholes for task in whole.get(key, [])}
        if by_name:
            out[key] = [kept_task(task) if key == "tasks" else task for task in by_name.values()]
    return out


def main() -> int:
    words = [word.partition("=") for word in sys.argv[1:]]
    if not words or not all(equals for name, equals, _ in words if name != "--about"):
        print(__doc__, file=sys.stderr)
        return 2
    result: dict = {}
    about = False
    for name, _, value in words:
        if name == "--about":
            about = True
            continue
        result[name] = value if about else part(value.split("+"))
        about = False
    text = json.dumps(rounded(result), indent=1, ensure_ascii=False)
    print(re.sub(r"\n\s{4,}", " ", text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
