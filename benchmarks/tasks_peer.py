"""The harness's side of tasks.py: answers "about", "run" (seconds of one pass over all requests) and "scores".

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import importlib.metadata
import json
import os
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402


def main() -> None:
    model, data, items, batch, threads = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    torch.set_num_threads(threads)
    lm = HFLM(pretrained=model, dtype="float32", device="cpu", batch_size=batch)
    with open(data, encoding="utf-8") as file:
        records = [json.loads(line) for line, _ in zip(file, range(items))]
    scores = {}
    for line in sys.stdin:
        if line.strip() == "about":
            answer = {name: importlib.metadata.version(name) for name in ("lm_eval", "transformers", "torch")}
            answer["batch"] = batch
        elif line.strip() == "run":
            start = time.monotonic()
            requests = [Instance("loglikelihood", {}, (r["ctx"], " " + ending), n, metadata=("hellaswag", n, 1))
                        for n, r in enumerate(records) for ending in r["endings"]]
            likelihoods = [pair[0] for pair in lm.loglikelihood(requests, disable_tqdm=True)]
            answer = time.monotonic() - start
            right = 0
            for n, r in enumerate(records):
                norm = [likelihoods[4 * n + k] / len(r["endings"][k]) for k in range(4)]
                right += norm.index(max(norm)) == r["label"]
            scores = {"acc_norm": right / len(records)}
        else:
            answer = scores
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
