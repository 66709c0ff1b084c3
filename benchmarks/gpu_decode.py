#!/usr/bin/env python3
"""Decoding on a GPU: tokens a second of `fovea generate`, one text and many, beside transformers' generate().

    benchmarks/gpu_decode.py MODEL [--prompt 512] [--tokens 400] [--batches 1,8,64] [--focus 16384] [--no-peer] [--output FILE]

MODEL is a folder with bfloat16 weights that both sides load; `--random LAYERS` puts random weights of its config into a
temporary folder instead (speed does not depend on them). Greedy, bfloat16. Ours: the program's own figure, prompts and
loading left out for one text, prompts counted for many. transformers: eager, and with a static cache and torch.compile;
its first tokens are left out. `--focus KEYS` adds hard Focus (K = 8, top-1, window 128) beside full attention in models
of 8 layers of that shape, trained for a step, behind KEYS bytes.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import datetime
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import torch
from train_step import commit

GOALS = {1: 1200.0, 64: 25000.0}  # tokens/s of a 135M model on an H100
WARM = 8  # tokens of the peer that are not counted


def random_model(source: pathlib.Path, folder: pathlib.Path, layers: int) -> None:
    from transformers import AutoConfig, LlamaForCausalLM

    config = json.loads((source / "config.json").read_text())
    config.pop("fovea", None)
    config["num_hidden_layers"] = layers or config["num_hidden_layers"]
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    LlamaForCausalLM(AutoConfig.from_pretrained(folder)).to(torch.bfloat16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, folder)


def prompts(model: pathlib.Path, count: int, length: int) -> list[str]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    text = pathlib.Path(torch.__file__).parent.joinpath("nn/functional.py").read_text()
    ids = tokenizer(text)["input_ids"]
    return [tokenizer.decode(ids[n * 97 % (len(ids) - length):][:length]) for n in range(count)]


def figure(command: list[str], pattern: str) -> float:
    """The last number of that form that a run of the program says."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    found = re.findall(pattern, done.stderr)
    if done.returncode or not found:
        sys.exit(f"[gpu] {' '.join(command)}: exit {done.returncode}\n{done.stderr[-500:]}")
    return float(found[-1])


def ours(program: str, model: pathlib.Path, batch: int, prompt: int, tokens: int) -> float:
    common = [program, "generate", str(model), "--device", "cuda", "--temperature", "0", "--max-tokens", str(tokens)]
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "prompts.jsonl"
        texts = prompts(model, max(2 * batch, 1), prompt)
        if batch == 1:
            (pathlib.Path(folder) / "prompt.txt").write_text(texts[0])
            command = [*common, "--file", f"{folder}/prompt.txt"]
        else:
            file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
            command = [*common, "--prompts", str(file), "--batch", str(batch)]
        return figure(command, r"\(([0-9.]+) tokens/s\)")


def theirs(model: pathlib.Path, batch: int, prompt: int, tokens: int, compiled: bool) -> float:
    from transformers import LlamaForCausalLM

    net = LlamaForCausalLM.from_pretrained(model, dtype=torch.bfloat16).cuda().eval()
    ids = torch.randint(100, net.config.vocab_size - 100, (batch, prompt), device="cuda")
    extra = {"cache_implementation": "static"} if compiled else {}

    def run(count: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.no_grad():
            net.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count, do_sample=False, **extra)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    run(WARM), run(tokens)
    return batch * (tokens - WARM) / (run(tokens) - run(WARM))


def one_step_model(program: str, folder: pathlib.Path, focus: bool) -> pathlib.Path:
    attention = {"focus": {"gate": "hard", "groups": 8, "top_k": 1, "window": 128, "sinks": 4}} if focus else {}
    recipe = {"name": "decode", "run_folder": str(folder / "run"), "data": {"sources": [{"path": "torch-python"}]},
              "model": {"layers": 8, "width": 576, "heads": 9, "kv_heads": 3, "ffn_width": 1536, "context": 512, "attention": attention},
              "train": {"steps": 1, "batch_rows": 1, "checkpoint_interval": 0}}
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    subprocess.run([program, "train", str(folder / "recipe.yaml"), "--quiet"], check=True, capture_output=True)
    return folder / "run"


def focus_row(program: str, keys: int, batch: int, tokens: int, device: str = "cuda") -> dict:
    speeds = {}
    for focus in (False, True):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            model = one_step_model(program, folder, focus)
            text = pathlib.Path(torch.__file__).parent.joinpath("nn/functional.py").read_text().encode()[:keys].decode(errors="ignore")
            common = [program, "generate", str(model), "--device", device, "--dtype", "bfloat16", "--temperature", "0",
                      "--context", str(keys + tokens + 1)]
            if batch == 1:  # the program's own figure leaves the prompt out
                (folder / "prompt.txt").write_text(text)
                speeds[focus] = figure([*common, "--max-tokens", str(tokens), "--file", str(folder / "prompt.txt")], r"\(([0-9.]+) tokens/s\)")
                continue
            (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text[n:] + text[:n]}) + "\n" for n in range(batch)))
            seconds = {count: figure([*common, "--max-tokens", str(count), "--prompts", str(folder / "prompts.jsonl"), "--batch", str(batch)],
                                     r" in ([0-9.]+) s ") for count in (1, tokens)}  # the difference leaves the prompts out
            speeds[focus] = round(batch * (tokens - 1) / (seconds[tokens] - seconds[1]), 1)
    return {"name": f"hard Focus, 8 layers, {batch} texts behind {keys} keys, tokens/s", "ours": speeds[True], "goal": None,
            "full_attention": speeds[False]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--random", type=int, metavar="LAYERS", help="random weights; 0 = as many layers as the config has")
    parser.add_argument("--program", default="build/bin/fovea")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--batches", default="1,8,64")
    parser.add_argument("--focus", type=int, metavar="KEYS")
    parser.add_argument("--no-peer", dest="peer", action="store_false")
    parser.add_argument("--output", type=pathlib.Path)
    options = parser.parse_args()
    rows = []

    def keep(row: dict) -> None:
        rows.append(row)
        print(f"[gpu] {row}", flush=True)
        if options.output:
            options.output.write_text(json.dumps({
                "benchmark": "gpu_decode", "commit": commit(), "date": datetime.date.today().isoformat(), "gpu": torch.cuda.get_device_name(),
                "machine": {"kind": torch.cuda.get_device_name().split()[1].lower()},
                "torch": torch.__version__, "command": " ".join(sys.argv), "rows": rows}, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        model = options.model
        if options.random is not None:
            model = pathlib.Path(folder)
            random_model(options.model, model, options.random)
        for batch in map(int, options.batches.split(",")):
            speed = ours(options.program, model, batch, options.prompt, options.tokens)
            row = {"name": f"{batch} texts behind {options.prompt} tokens, tokens/s", "ours": speed, "goal": GOALS.get(batch)}
            if options.peer:
                row["transformers"] = round(theirs(model, batch, options.prompt, min(options.tokens, 100), False), 1)
                try:
                    row["transformers_static"] = round(theirs(model, batch, options.prompt, min(options.tokens, 100), True), 1)
                except Exception as failure:  # some versions compile no static cache
                    print(f"[gpu] transformers, static cache: {str(failure)[:200]}", flush=True)
            keep(row)
    for batch in (1, 16) if options.focus else ():
        keep(focus_row(options.program, options.focus, batch, min(options.tokens, 200)))


if __name__ == "__main__":
    main()
