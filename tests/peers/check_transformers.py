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
from transformers import (AutoModelForCausalLM, AutoTokenizer, Cohere2Config, Cohere2ForCausalLM, CohereConfig,
                          CohereForCausalLM, DiffLlamaConfig, DiffLlamaForCausalLM, Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel,
                          LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Olmo2Config,
                          Olmo2ForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

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
    "biases": (["model.biases.qkv=true", "model.biases.output=true", "model.biases.feed_forward=true"], [],
               LlamaForCausalLM),
    "biases on q, k, v": (["model.biases.qkv=true"], [], Qwen2ForCausalLM),
    "llama3 rope": (["model.rope.scaling.kind=llama3", "model.rope.scaling.factor=4",
                     "model.rope.scaling.original_context=16"], [], LlamaForCausalLM),
    "yarn": (["model.rope.scaling.kind=yarn", "model.rope.scaling.factor=4",
              "model.rope.scaling.original_context=16"], [], LlamaForCausalLM),
    "olmo2": (["model.block=output", "model.qk_norm=full_rms"], [], Olmo2ForCausalLM),
    "gemma2": (["model.block=sandwich", "model.feed_forward=geglu_tanh", "model.embedding_scale=0",
                "model.attention.soft_cap=5", "model.logit_cap=3", "model.attention.mask.window=7",
                "model.attention.full.every=2", FOCAL], ["--fold"], Gemma2ForCausalLM),
    "cohere": (["model.block=parallel", "model.norm=layer_no_bias", "model.rope.layout=interleaved",
                "model.logit_scale=0.25"], [], CohereForCausalLM),
    "cohere2": (["model.block=parallel", "model.norm=layer_no_bias", "model.rope.layout=interleaved",
                 "model.attention.mask.window=7", "model.attention.full.layers=[1]",
                 "model.attention.full.positions=false"], [], Cohere2ForCausalLM),
    "gpt2": (["model.positions=learned", "model.norm=layer", "model.feed_forward=gelu_tanh", "model.kv_heads=4",
              "model.biases.qkv=true", "model.biases.output=true", "model.biases.feed_forward=true"], [],
             GPT2LMHeadModel),
}
SIZES = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=32, bos_token_id=1, eos_token_id=2)
READ = {
    "llama": LlamaForCausalLM(LlamaConfig(**SIZES, rope_theta=500000.0, tie_word_embeddings=True)),
    "mistral": MistralForCausalLM(MistralConfig(**SIZES, sliding_window=5, head_dim=8)),
    "qwen3": Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8, rms_norm_eps=1e-6)),
    "llama_biases": LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)),
    "llama3": LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters={
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8})),
    "yarn": LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters={
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 8})),
    "linear": LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters={
        "rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0})),
    "dynamic": LlamaForCausalLM(LlamaConfig(**(SIZES | {"max_position_embeddings": 8}), rope_parameters={
        "rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0})),
    "qwen2": Qwen2ForCausalLM(Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=5, max_window_layers=1)),
    "olmo2": Olmo2ForCausalLM(Olmo2Config(**SIZES)),
    "gemma2": Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=8, query_pre_attn_scalar=18, sliding_window=5,
                                             attn_logit_softcapping=5.0, final_logit_softcapping=3.0)),
    "cohere": CohereForCausalLM(CohereConfig(**SIZES)),
    "cohere2": Cohere2ForCausalLM(Cohere2Config(**(SIZES | {"num_hidden_layers": 4}), sliding_window=5)),
    "diffllama": DiffLlamaForCausalLM(DiffLlamaConfig(**SIZES)),
    "gpt2": GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=4, n_positions=32)),
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
