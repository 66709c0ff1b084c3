#!/usr/bin/env python3
"""Answers prompts with a real model one at a time and several at once: every text must be the same, byte for byte.

    tests/peers/check_batch.py MODEL [--prompts PROMPTS.jsonl] [--count 24] [--tokens 48] [--batch 8] [--fovea build/bin/fovea]

A line of PROMPTS is an object whose first text is the prompt; without it prompts of our own are taken, of 1 to 1500 words.
Every second one is drawn with a seed of its own, the others are greedy; their lengths and ends differ. For each kind of
weights the answers come from `generate --batch 1`, then from `--batch` in the order of the prompts and as they finish.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time

KINDS = (["--weights", "stored"], ["--dtype", "bfloat16", "--weights", "bf16"], ["--dtype", "float32", "--weights", "f32"],
         ["--weights", "q8_0"], ["--weights", "q4_0"])
WORDS = "the river ran under a bridge of stone and the town slept while snow fell on roofs that nobody had mended".split()
SAME = ("text", "finish_reason", "stop", "tokens", "prompt_tokens")


def prompts(path: str, count: int) -> list[str]:
    if not path:
        lengths = [1, 7, 40, 3, 120, 11, 1500, 5, 600, 2, 19, 300]
        return [" ".join(WORDS[(i * (n + 3) + n) % len(WORDS)] for i in range(lengths[n % len(lengths)])) for n in range(count)]
    texts = [next(v for v in json.loads(line).values() if isinstance(v, str)) for line in pathlib.Path(path).read_text().splitlines()]
    return texts[::max(1, len(texts) // count)][:count]


def requests(texts: list[str], tokens: int) -> str:
    lines = []
    for n, text in enumerate(texts):
        line = {"prompt": text, "id": n, "temperature": 0.8 * (n % 2), "seed": n, "max_tokens": tokens // 2 + n * 7 % tokens}
        if n % 5 == 4:
            line["stop"] = ["."]
        lines.append(json.dumps(line))
    return "\n".join(lines) + "\n"


def answers(args: argparse.Namespace, kind: list[str], lines: str, batch: list[str]) -> tuple[list[dict], float]:
    start = time.perf_counter()
    command = [args.fovea, "generate", args.model, "--prompts", "-", "--quiet", *kind, *batch]
    out = subprocess.run(command, input=lines, capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in out.splitlines()], time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--prompts", default="")
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--fovea", default="build/bin/fovea")
    args = parser.parse_args()
    lines = requests(prompts(args.prompts, args.count), args.tokens)
    failed = 0
    for kind in KINDS:
        alone, seconds = answers(args, kind, lines, ["--batch", "1"])
        many, together = answers(args, kind, lines, ["--batch", str(args.batch)])
        ready, _ = answers(args, kind, lines, ["--batch", str(args.batch), "--unordered"])
        assert [a["index"] for a in alone] == [a["index"] for a in many] == list(range(len(alone)))
        ready.sort(key=lambda a: a["index"])
        wrong = [a["index"] for a, b, c in zip(alone, many, ready, strict=True)
                 if any(a.get(key) != b.get(key) or a.get(key) != c.get(key) for key in SAME)]
        new = sum(a["tokens"] for a in alone)
        print(f"{' '.join(kind):32} {len(alone) - len(wrong)} of {len(alone)} texts the same, {new} tokens; {seconds:.1f} s alone, "
              f"{together:.1f} s in a batch of {args.batch}", flush=True)
        for n in wrong:
            print(f"  differs: prompt {n}: {alone[n]['text']!r} and {many[n]['text']!r}")
        failed += len(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
