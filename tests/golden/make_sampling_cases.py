#!/usr/bin/env python3
"""Writes sampling.json: distributions that the logits processors of `transformers` give for random logits.

Run by hand with the Python of `make python-peers`; the tests only read the file.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import json
import pathlib

import torch
from transformers import (MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper,
                          TopKLogitsWarper, TopPLogitsWarper)

VOCABULARY = 24
CASES = [
    {"temperature": 1.0},
    {"temperature": 0.7},
    {"temperature": 1.3, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.6},
    {"temperature": 0.8, "top_p": 0.95},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 1.5, "top_k": 9, "top_p": 0.7, "min_p": 0.15},
    {"temperature": 1.0, "repetition_penalty": 1.4},
    {"temperature": 0.9, "repetition_penalty": 1.4, "top_k": 12, "top_p": 0.8},
    {"temperature": 1.0, "top_p": 1e-6},
    {"temperature": 1.0, "top_k": 100},
]
# In the order in which transformers' generate() applies them.
STEPS = [("repetition_penalty", RepetitionPenaltyLogitsProcessor), ("temperature", TemperatureLogitsWarper),
         ("top_k", TopKLogitsWarper), ("top_p", TopPLogitsWarper), ("min_p", MinPLogitsWarper)]


def main() -> None:
    torch.manual_seed(3)
    cases = []
    for options in CASES:
        logits = 2 * torch.randn(VOCABULARY)
        prompt = torch.randint(0, VOCABULARY, (6,))
        scores = logits[None].clone()
        for key, processor in STEPS:
            if key in options:
                scores = processor(options[key])(prompt[None], scores)
        cases.append({"options": options, "logits": [round(x, 6) for x in logits.tolist()], "prompt": prompt.tolist(),
                      "probabilities": [round(x, 7) for x in torch.softmax(scores[0].double(), -1).tolist()]})
    path = pathlib.Path(__file__).with_name("sampling.json")
    path.write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")
    print(f"{path}: {len(cases)} cases")


if __name__ == "__main__":
    main()
