#!/usr/bin/env python3
"""Whether two builds of the program compute the same bits: for changes of the code that should change no number.

    scripts/same-bits.py BEFORE/bin/fovea [AFTER/bin/fovea] [--only TEXT] [--dtypes float32,bfloat16]

Every row of docs/support.md (scripts/support.py) is a small model. Both programs train it for a few steps, evaluate a text
with it, and write text, alone and several texts at once. Compared are losses and gradient norms of every step, all weights,
all scores and all written texts. Exit code 1 names the rows that differ. The answers of BEFORE
are kept in the cache folder.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from support import A, ROOT, ROWS  # noqa: E402

RECIPE = """name: same-bits
run_folder: run
data: {sources: [{path: text.txt}], cache: cache}
model: {layers: 2, width: 96, heads: 6, kv_heads: 2, ffn_width: 128, context: 97}
train: {steps: 4, batch_rows: 3, checkpoint_interval: 4, log_interval: 1, device: cpu}
"""
# Settings that meet: each alone is in ROWS.
TOGETHER = [
    ("learned temperature, convolutions and mixes", [
        A + "temperature.kind=learned", A + "multi_token.before={queries: 4, keys: 5}", A + "multi_token.after={queries: 3, keys: 5}",
        A + "head_mix.before=full", A + "head_mix.after=full", A + "head_output.norm=rms", A + "head_output.gate=scalar"]),
    ("Differential with a soft-cap and a window", [A + "differential=true", A + "soft_cap=20", A + "mask.window=24", "model.kv_heads=6"]),
    ("hard Focus, top-2, learned temperature", [A + "focus.gate=hard", A + "focus.window=16", A + "focus.groups=5", A + "focus.top_k=2",
                                                A + "temperature.kind=learned"]),
    ("ALiBi and sinks", [A + "bias.kind=alibi", "model.positions=none", A + "mask.window=16", A + "mask.sinks=2"]),
]
# Differential needs pairs of heads and key heads; Longformer's and routing's rows take what they are given.
SPEEDS = {"tokens_per_second", "seconds", "prompt_tokens_per_second", "first_token_seconds", "bytes", "peak_bytes"}


def without_speeds(value):
    if isinstance(value, dict):
        return {k: without_speeds(v) for k, v in value.items()
                if k not in SPEEDS and not k.startswith(("speed/", "memory/", "time/")) and "second" not in k}
    return [without_speeds(v) for v in value] if isinstance(value, list) else value


def answer(program: pathlib.Path, folder: pathlib.Path, *words: str) -> str:
    done = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300)
    if done.returncode not in (0, 2):
        return f"exit code {done.returncode}: {done.stderr[-300:]}"
    if done.returncode == 2:
        return "refused"
    try:
        return json.dumps(without_speeds(json.loads(done.stdout)), sort_keys=True)
    except ValueError:  # an object a line
        return json.dumps([without_speeds(json.loads(line)) for line in done.stdout.splitlines()], sort_keys=True)


def answers(program: pathlib.Path, overrides: list[str], dtype: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory(prefix="fovea-same-bits-") as name:
        folder = pathlib.Path(name)
        (folder / "recipe.yaml").write_text(RECIPE)
        (folder / "text.txt").write_text("".join(f"line {i} of a text, {i * 7 % 13}\n\n" for i in range(900)))
        trained = answer(program, folder, "train", "recipe.yaml", "--quiet", "--json", f"train.dtype={dtype}", *overrides)
        found = {"train": "trained" if trained.startswith("{") else trained}
        metrics = folder / "run/metrics.jsonl"
        if not metrics.exists():
            return found
        for line in metrics.read_text().splitlines():
            row = json.loads(line)
            for key in ("loss/out", "optim/grad_norm"):
                if key in row:
                    found[f"step {row.get('global_step')} {key}"] = repr(row[key])
        for file in sorted((folder / "run/checkpoints").rglob("*.safetensors")):
            found[f"weights {file.parent.name}/{file.name}"] = hashlib.sha256(file.read_bytes()).hexdigest()
        found["path"] = json.loads(metrics.read_text().splitlines()[-1]).get("attention/path", "")
        found["eval"] = answer(program, folder, "eval", "run", "--text", "text.txt", "--json", "--quiet")
        found["generate"] = answer(program, folder, "generate", "run", "line 3 of a", "--max-tokens", "40", "--temperature", "0", "--json",
                                   "--quiet")
        (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": p}) + "\n" for p in ("line", "line 14 of a text", "a")))
        found["generate together"] = answer(program, folder, "generate", "run", "--prompts", "prompts.jsonl", "--max-tokens", "24",
                                            "--json", "--quiet")
        return found


def cached(program: pathlib.Path, overrides: list[str], dtype: str) -> dict[str, str]:
    key = hashlib.sha256(f"{program.resolve()} {program.stat().st_mtime_ns} {RECIPE} {overrides} {dtype} {os.environ.get('FOVEA_ISA')} 1"
                         .encode()).hexdigest()[:24]
    file = pathlib.Path(os.environ.get("FOVEA_CACHE", pathlib.Path.home() / ".cache/fovea")) / "same-bits" / f"{key}.json"
    if file.exists():
        return json.loads(file.read_text())
    found = answers(program, overrides, dtype)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=pathlib.Path)
    parser.add_argument("after", type=pathlib.Path, nargs="?", default=ROOT / "build/bin/fovea")
    parser.add_argument("--only", default="", help="rows whose name has this text")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    options = parser.parse_args()
    before, after = options.before.resolve(), options.after.resolve()
    rows = [(name, overrides) for name, overrides, _ in ROWS] + TOGETHER
    differing = 0
    chosen = [row for row in rows if options.only.lower() in row[0].lower()]
    for name, overrides in chosen:
        for dtype in options.dtypes.split(","):
            old, new = cached(before, overrides, dtype), answers(after, overrides, dtype)
            wrong = [key for key in old if old[key] != new.get(key)] + [key for key in new if key not in old]
            differing += bool(wrong)
            print(f"{'differs' if wrong else 'same   '} {dtype:9} {name}" + (f": {', '.join(wrong[:4])}" if wrong else ""), flush=True)
            for key in wrong[:1]:
                print(f"          {key}: before {old.get(key, '-')[:160]}\n          {' ' * len(key)}  after  {new.get(key, '-')[:160]}")
    print(f"[same-bits] {len(chosen)} settings, {differing} differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
