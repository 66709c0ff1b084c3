# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
import copy
import os
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")
import fovea.transformers  # noqa: E402

fovea.transformers.register()
SIZES = dict(vocab_size=99, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, max_position_embeddings=128, pad_token_id=0)
FAMILIES = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=7),
    "qwen2": lambda: transformers.Qwen2Config(**{n: x for n, x in SIZES.items() if n != "head_dim"}),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES),
    "gemma2": lambda: transformers.Gemma2Config(**SIZES, sliding_window=7, query_pre_attn_scalar=16),
    "gemma3": lambda: transformers.Gemma3TextConfig(**SIZES, sliding_window=7, query_pre_attn_scalar=16),
}
# sdpa has no soft cap: transformers' own eager code is the truth there.
TRUTH = {"gemma2": "eager"}


def model_of(family, implementation):
    torch.manual_seed(1)
    config = FAMILIES[family]()
    config._attn_implementation = implementation
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()


def pair(family):
    return model_of(family, "fovea"), model_of(family, TRUTH.get(family, "sdpa"))


TOKENS = torch.randint(1, 99, (2, 23), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("side", ["none", "left", "right"])
@torch.no_grad()
def test_logits_are_those_of_sdpa(family, side):
    ours, theirs = pair(family)
    mask = torch.ones_like(TOKENS)
    if side != "none":
        mask[1, slice(0, 6) if side == "left" else slice(-6, None)] = 0
    got, expected = (m(TOKENS, attention_mask=mask).logits[mask.bool()] for m in (ours, theirs))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate_chooses_the_tokens_of_sdpa(family, cache):
    mask = torch.ones_like(TOKENS)
    mask[1, :5] = 0
    got, expected = (m.generate(TOKENS, attention_mask=mask, max_new_tokens=12, do_sample=False,
                                cache_implementation=cache) for m in pair(family))
    assert got.tolist() == expected.tolist()


def test_gradients_are_those_of_sdpa():
    grads = []
    for model in pair("llama"):
        model(TOKENS, labels=TOKENS).loss.backward()
        grads.append([p.grad for p in model.parameters()])
    for x, y in zip(*grads):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6)


def test_a_mask_of_pairs_and_dropout_are_refused():
    model = model_of("llama", "fovea")
    with pytest.raises(NotImplementedError, match="mask of pairs"):
        model(TOKENS, attention_mask=torch.ones(2, 1, 23, 23, dtype=torch.bool))
    config = copy.deepcopy(FAMILIES["llama"]())
    config.attention_dropout = 0.1
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="fovea").train()
    with pytest.raises(NotImplementedError, match="dropout"):
        model(TOKENS)


def smollm():
    folder = os.environ.get("FOVEA_SMOLLM", "")
    return Path(folder) if folder and Path(folder).is_dir() else None


if smollm():

    @torch.no_grad()
    def test_smollm_logits_are_those_of_sdpa():
        tokens = torch.randint(5, 40000, (1, 64), generator=torch.Generator().manual_seed(3))
        got, expected = (transformers.AutoModelForCausalLM.from_pretrained(
            smollm(), attn_implementation=name, dtype=torch.float32)(tokens).logits for name in ("fovea", "sdpa"))
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-4)
