#!/usr/bin/env python3
"""Exchanges LoRA adapters with the `peft` package: folders written here and there, put on there and here, merged.

    <python of `make python-peers`> tests/peers/check_peft.py [BUILD]      default BUILD: build

Every logit must agree within 1e-5 of the largest one, in float32.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import (AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM,
                          Qwen3Config, Qwen3ForCausalLM)

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BOUND = 1e-5
RECIPE = """
data: {sources: [{path: %(root)s/docs}], cache: %(folder)s/cache}
model: {layers: 2, width: 32, heads: 4, kv_heads: 2, context: 48}
train: {steps: 3, batch_rows: 2, dtype: float32, device: cpu, optimizer: {learning_rate: 0.02},
        schedule: {warmup_steps: 0}}
"""
GPT2 = ["model.positions=learned", "model.norm=layer", "model.feed_forward=gelu_tanh", "model.kv_heads=4",
        "model.biases.qkv=true", "model.biases.output=true", "model.biases.feed_forward=true"]
# Overrides of the base, keys of model.lora.
WRITTEN = {
    "queries and values": ([], ["rank=4", "alpha=16"]),
    "all, rank-stabilised": ([], ["rank=4", "rslora=true", "targets=[all-linear]"]),
    "own ranks and alphas": ([], ["rank=4", "targets=[all-linear]",
                                  "modules=[{module: o_proj, rank: 2}, {module: layers.1.mlp.up_proj, alpha: 32}]"]),
    "one layer": ([], ["rank=4", "targets=[layers.1.self_attn.k_proj, down_proj]"]),
    "joined projections": ([], ["rank=4", "targets=[qkv_proj]"]),
    "norms": (["model.qk_norm=head_rms"], ["rank=4", "targets=[q_proj, o_proj]"]),
    "gpt2": (GPT2, ["rank=4", "targets=[qkv_proj]"]),
    "gpt2, all": (GPT2, ["rank=4", "targets=[qkv_proj, o_proj, up_proj, down_proj]",
                         "modules=[{module: mlp.down_proj, rank: 2, alpha: 3}]"]),
}
SIZES = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=32, bos_token_id=1, eos_token_id=2)
BASES = {
    "llama": LlamaForCausalLM(LlamaConfig(**SIZES)),
    "qwen3": Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8)),
    "gpt2": GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=4, n_positions=32)),
}
READ = {
    "defaults": ("llama", {}),
    "all linear": ("llama", {"target_modules": "all-linear", "r": 3, "lora_alpha": 7}),
    "rank-stabilised": ("qwen3", {"use_rslora": True, "r": 4, "lora_alpha": 8}),
    "patterns": ("llama", {"target_modules": ["q_proj", "o_proj", "up_proj"], "rank_pattern": {"o_proj": 2},
                           "alpha_pattern": {r"layers\.1\..*up_proj": 5, "q_proj": 3}}),
    "regular expression": ("llama", {"target_modules": r".*\.1\..*(q|v)_proj"}),
    "chosen layers": ("qwen3", {"target_modules": ["v_proj", "down_proj"], "layers_to_transform": [0]}),
    "gpt2, defaults": ("gpt2", {}),
    "gpt2, all": ("gpt2", {"target_modules": ["c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"], "r": 2}),
}


def fovea_logits(build: pathlib.Path, folder: pathlib.Path, tokens: list[int], scratch: pathlib.Path,
                 adapter: pathlib.Path | None = None) -> torch.Tensor:
    out = scratch / "logits.safetensors"
    options = ["--adapter", adapter] if adapter else []
    subprocess.run([build / "bin/peer_logits", folder, out, *options, *map(str, tokens)], check=True)
    return load_file(out)["logits"]


@torch.no_grad()
def their_logits(model: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    return model.eval()(torch.tensor([tokens])).logits[0].float()


def report(name: str, ours: torch.Tensor, theirs: torch.Tensor, base: torch.Tensor) -> bool:
    error, effect = (((a - theirs).abs().max() / theirs.abs().max()).item() for a in (ours, base))
    good = error <= BOUND and effect > 100 * BOUND  # an adapter that does nothing proves nothing
    print(f"{'ok  ' if good else 'FAIL'} {name:40} difference {error:.1e}, the adapter's effect {effect:.1e}")
    return good


def check_written(build: pathlib.Path, scratch: pathlib.Path) -> bool:
    good = True
    tokens = [256, *b"The quick brown fox jumps over the lazy dog."]
    for name, (overrides, lora) in WRITTEN.items():
        folder = scratch / name.replace(" ", "-").replace(",", "")
        folder.mkdir()
        recipe = folder / "recipe.yaml"
        recipe.write_text(RECIPE % {"root": ROOT, "folder": scratch})

        def fovea(*words, quiet=subprocess.DEVNULL):
            subprocess.run([build / "bin/fovea", *words], check=True, stdout=quiet)

        fovea("train", recipe, f"run_folder={folder}/base", *overrides, "-q")
        fovea("train", recipe, f"run_folder={folder}/adapted", f"train.init_from={folder}/base", *overrides,
              "train.trainable=lora", "train.steps=10", *(f"model.lora.{key}" for key in lora), "-q")
        fovea("export", folder / "base", folder / "out")
        fovea("export", folder / "adapted", folder / "apart")
        fovea("export", folder / "adapted", folder / "merged", "--merge")
        fovea("adapter", "export", folder / "adapted", folder / "peft")
        model = AutoModelForCausalLM.from_pretrained(folder / "out", dtype=torch.float32)
        base = their_logits(model, tokens)
        model = PeftModel.from_pretrained(model, folder / "peft")
        good &= report(f"written: {name}", fovea_logits(build, folder / "apart", tokens, scratch),
                       their_logits(model, tokens), base)
        good &= report(f"written, merged here: {name}", fovea_logits(build, folder / "merged", tokens, scratch),
                       their_logits(model.merge_and_unload(), tokens), base)
        merged = AutoModelForCausalLM.from_pretrained(folder / "merged", dtype=torch.float32)
        good &= report(f"written, merged there: {name}", fovea_logits(build, folder / "apart", tokens, scratch),
                       their_logits(merged, tokens), base)
    return good


def check_read(build: pathlib.Path, scratch: pathlib.Path) -> bool:
    good = True
    tokens = [(7 * i + 3) % SIZES["vocab_size"] for i in range(20)]
    for name, (kind, options) in READ.items():
        base = BASES[kind]
        folder = scratch / f"read-{kind}"
        base.save_pretrained(folder)
        plain = their_logits(base, tokens)
        copy = type(base).from_pretrained(folder, dtype=torch.float32)
        adapted = get_peft_model(copy, LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **options))
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter, std=0.3)
        adapter = scratch / f"adapter-{name.replace(' ', '-').replace(',', '')}"
        adapted.save_pretrained(adapter)
        good &= report(f"read: {name} ({kind})", fovea_logits(build, folder, tokens, scratch, adapter),
                       their_logits(adapted, tokens), plain)
    return good


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("build", nargs="?", default=ROOT / "build", type=pathlib.Path)
    build = parser.parse_args().build
    with tempfile.TemporaryDirectory() as name:
        good = check_read(build, pathlib.Path(name))
        good &= check_written(build, pathlib.Path(name))
    return 0 if good else 1


if __name__ == "__main__":
    torch.manual_seed(1)
    for random_model in BASES.values():
        for parameter in random_model.parameters():
            torch.nn.init.normal_(parameter, mean=1.0 if parameter.dim() == 1 else 0.0, std=0.3)
    sys.exit(main())
