#!/usr/bin/env python3
"""Compares Fovea with `transformers` and `tokenizers`: model folders written here and there, read there and here.

    <python of `make python-peers`> tests/peers/check_transformers.py [BUILD]      default BUILD: build
    ... --write-golden      also writes tests/golden/hugging_face/ again, which the C++ tests read

Every logit must agree within 1e-5 of the largest one, in float32.

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
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, MistralConfig,
                          MistralForCausalLM, Qwen3Config, Qwen3ForCausalLM)

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GOLDEN = ROOT / "tests/golden/hugging_face"
BOUND = 1e-5
FOCAL = "model.attention.temperature.value=0.4"
RECIPE = """
data: {sources: [{path: %(root)s/docs}], cache: %(folder)s/cache}
model: {layers: 2, width: 32, heads: 4, kv_heads: 2, context: 48}
train: {steps: 3, batch_rows: 2, dtype: float32, device: cpu}
"""
# Recipe overrides, options of export, the class that transformers must choose.
WRITTEN = {
    "plain": ([], [], LlamaForCausalLM),
    "untied, wide heads": (["model.tied=false", "model.head_dim=16"], [], LlamaForCausalLM),
    "norms": (["model.qk_norm=head_rms"], [], Qwen3ForCausalLM),
    "window": (["model.attention.mask.window=7"], [], MistralForCausalLM),
    "norms, window": (["model.qk_norm=head_rms", "model.attention.mask.window=7"], [], Qwen3ForCausalLM),
    "focal, folded": ([FOCAL], ["--fold"], LlamaForCausalLM),
    "focal, norms, folded": ([FOCAL, "model.qk_norm=head_rms"], ["--fold"], Qwen3ForCausalLM),
    "focal per layer, folded": (["model.attention.temperature_per_layer=[0.4,0.8]"], ["--fold"], LlamaForCausalLM),
    "shards": ([], ["--shard", "0.00003"], LlamaForCausalLM),
}
SIZES = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=32, bos_token_id=1, eos_token_id=2)
READ = {
    "llama": LlamaForCausalLM(LlamaConfig(**SIZES, rope_theta=500000.0, tie_word_embeddings=True)),
    "mistral": MistralForCausalLM(MistralConfig(**SIZES, sliding_window=5, head_dim=8)),
    "qwen3": Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8, rms_norm_eps=1e-6)),
}


def fovea_logits(build: pathlib.Path, folder: pathlib.Path, tokens: list[int], scratch: pathlib.Path) -> torch.Tensor:
    out = scratch / "logits.safetensors"
    subprocess.run([build / "bin/peer_logits", folder, out, *map(str, tokens)], check=True)
    return load_file(out)["logits"]


@torch.no_grad()
def their_logits(model: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    return model.eval()(torch.tensor([tokens])).logits[0].float()


def report(name: str, ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    error = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    print(f"{'ok  ' if error <= BOUND else 'FAIL'} {name:36} largest difference {error:.1e} of the largest logit")
    return error <= BOUND


def check_written(build: pathlib.Path, scratch: pathlib.Path) -> bool:
    good = True
    for name, (overrides, options, kind) in WRITTEN.items():
        folder = scratch / name.replace(" ", "-").replace(",", "")
        folder.mkdir()
        recipe = folder / "recipe.yaml"
        recipe.write_text(RECIPE % {"root": ROOT, "folder": scratch})
        program = build / "bin/fovea"
        subprocess.run([program, "train", recipe, f"run_folder={folder}/run", *overrides, "-q"], check=True,
                       stdout=subprocess.DEVNULL)
        subprocess.run([program, "export", folder / "run", folder / "out", *options], check=True,
                       stdout=subprocess.DEVNULL)
        model = AutoModelForCausalLM.from_pretrained(folder / "out", dtype=torch.float32)
        tokens = [256, *b"The quick brown fox jumps over the lazy dog."]
        good &= type(model) is kind or bool(print(f"FAIL {name}: transformers chose {type(model).__name__}"))
        good &= report(f"written: {name}", fovea_logits(build, folder / "out", tokens, scratch),
                       their_logits(model, tokens))
        tokenizer = AutoTokenizer.from_pretrained(folder / "out")
        text = "Grüße, 世界\n\t\x00"
        same = tokenizer(text)["input_ids"] == [256, *text.encode()] and tokenizer.eos_token_id == 257
        same &= tokenizer.decode(list(text.encode())) == text
        good &= same or bool(print(f"FAIL {name}: tokenizer"))
    return good


def check_read(build: pathlib.Path, scratch: pathlib.Path, write_golden: bool) -> bool:
    good = True
    for name, model in READ.items():
        for shards in (False, True):
            folder = scratch / f"{name}-{shards}"
            model.save_pretrained(folder, max_shard_size="8KB" if shards else "1GB")
            tokens = [(7 * i + 3) % SIZES["vocab_size"] for i in range(20)]
            theirs = their_logits(model, tokens)
            good &= report(f"read: {name}{', shards' if shards else ''}",
                           fovea_logits(build, folder, tokens, scratch), theirs)
            if write_golden and shards == (name == "qwen3"):
                golden = GOLDEN / name
                golden.mkdir(parents=True, exist_ok=True)
                for file in [*folder.glob("*.safetensors"), *folder.glob("*.index.json"), folder / "config.json"]:
                    (golden / file.name).write_bytes(file.read_bytes())
                save_file({"tokens": torch.tensor(tokens), "logits": theirs}, golden / "expected.safetensors")
    return good


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("build", nargs="?", default=ROOT / "build", type=pathlib.Path)
    parser.add_argument("--write-golden", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        good = check_read(arguments.build, pathlib.Path(name), arguments.write_golden)
        good &= check_written(arguments.build, pathlib.Path(name))
    return 0 if good else 1


if __name__ == "__main__":
    torch.manual_seed(1)
    # Sharper than the usual start, so that a wrong rotation or window shows.
    for random_model in READ.values():
        for parameter in random_model.parameters():
            torch.nn.init.normal_(parameter, mean=1.0 if parameter.dim() == 1 else 0.0, std=0.3)
    sys.exit(main())
