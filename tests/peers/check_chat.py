#!/usr/bin/env python3
"""Talks with a real model in Fovea and in `transformers`: both must give the same greedy answers, token for token.

    <python of `make python-peers`> tests/peers/check_chat.py MODEL PROMPTS.jsonl [--count 50] [--tokens 32] [--fovea build/bin/fovea]

MODEL is a model folder with a chat template, or a .gguf file (exported to a folder first). A line of PROMPTS is an object
whose first text is the question. Each question is asked alone; then all are asked in conversations of three turns, so that
Fovea answers from its cache while transformers reads the whole conversation every time. Float32 on both sides. Where the
answers differ, the two likeliest tokens are compared: a tie within 1e-4 of a logit is counted apart, because the order of
additions decides it.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TIE = 1e-4


def questions(path: str, count: int) -> list[str]:
    texts = []
    for line in pathlib.Path(path).read_text().splitlines():
        text = next(value for value in json.loads(line).values() if isinstance(value, str))
        texts.append(" ".join(text.split()))
    step = max(1, len(texts) // count)
    return texts[::step][:count]


def ask_fovea(fovea: str, model: str, conversations: list[list[str]], tokens: int) -> list[str]:
    lines = "".join("".join(turn + "\n" for turn in turns) + "/new\n" for turns in conversations)
    command = [fovea, "chat", model, "--json", "--temperature", "0", "--max-tokens", str(tokens), "--dtype", "float32", "--weights", "f32"]
    out = subprocess.run(command, input=lines, capture_output=True, text=True, check=True).stdout
    return [json.loads(line)["text"] for line in out.splitlines()]


class Peer:
    def __init__(self, folder: str):
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def answer(self, messages: list[dict], tokens: int) -> tuple[str, float]:
        """The greedy answer, and the smallest lead of a chosen token over the next one."""
        ids = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        out = self.model.generate(**ids, max_new_tokens=tokens, do_sample=False, repetition_penalty=1.0, output_logits=True,
                                  return_dict_in_generate=True, pad_token_id=self.tokenizer.eos_token_id)
        leads = [(top := step[0].topk(2).values)[0].item() - top[1].item() for step in out.logits]
        new = out.sequences[0, ids["input_ids"].shape[1]:]
        return self.tokenizer.decode(new, skip_special_tokens=True), min(leads)


def compare(peer: Peer, fovea: str, model: str, conversations: list[list[str]], tokens: int) -> tuple[int, int, int]:
    ours = iter(ask_fovea(fovea, model, conversations, tokens))
    same = ties = other = 0
    for turns in conversations:
        messages, aside = [], False
        for turn in turns:
            got = next(ours)
            messages.append({"role": "user", "content": turn})
            text, lead = peer.answer(messages, tokens)
            if aside:
                pass  # after a tie the conversations are not the same any more
            elif got == text:
                same += 1
            elif lead < TIE:
                ties, aside = ties + 1, True
            else:
                other, aside = other + 1, True
                print(f"differs: {turn!r}\n  fovea        {got!r}\n  transformers {text!r} (smallest lead {lead:.2g})")
            messages.append({"role": "assistant", "content": got})
    return same, ties, other


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("prompts")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--fovea", default="build/bin/fovea")
    args = parser.parse_args()
    asked = questions(args.prompts, args.count)
    with tempfile.TemporaryDirectory() as folder:
        whole = args.model
        if not pathlib.Path(whole, "config.json").is_file():
            whole = f"{folder}/model"
            subprocess.run([args.fovea, "export", args.model, whole, "--quiet"], check=True, capture_output=True)
        peer = Peer(whole)
        failed = 0
        for name, conversations in (("alone", [[q] for q in asked]), ("three turns", [asked[i:i + 3] for i in range(0, len(asked), 3)])):
            same, ties, other = compare(peer, args.fovea, whole, conversations, args.tokens)
            print(f"{name}: {same} answers the same, {ties} ties, {other} differ")
            failed += other
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
