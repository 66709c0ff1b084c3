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
    "olmo2": lambda: transformers.Olmo2Config(**{n: x for n, x in SIZES.items() if n != "head_dim"}),
    "cohere": lambda: transformers.CohereConfig(**{n: x for n, x in SIZES.items() if n != "head_dim"}),
    "cohere2": lambda: transformers.Cohere2Config(**SIZES, sliding_window=7),
    "diffllama": lambda: transformers.DiffLlamaConfig(**{n: x for n, x in SIZES.items() if n != "head_dim"}),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=99, n_positions=128, n_embd=64, n_layer=2, n_head=4, pad_token_id=0),
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


@torch.no_grad()
def test_assisted_decoding_writes_the_tokens_of_plain_decoding():
    ours, assistant = model_of("llama", "fovea"), model_of("llama", "fovea")
    torch.manual_seed(5)
    for p in assistant.parameters():  # another model: some of its proposals are refused
        p += 0.01 * torch.randn_like(p)
    prompt = TOKENS[:1]
    got = ours.generate(prompt, assistant_model=assistant, max_new_tokens=12, do_sample=False)
    expected = model_of("llama", "sdpa").generate(prompt, max_new_tokens=12, do_sample=False)
    assert got.tolist() == expected.tolist()


def losses_of_an_epoch(implementation, folder, **settings):
    data = [{"input_ids": row, "labels": row}
            for row in torch.randint(1, 99, (16, 23), generator=torch.Generator().manual_seed(8))]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), num_train_epochs=1, per_device_train_batch_size=4, logging_steps=1, report_to=[],
        save_strategy="no", use_cpu=True, disable_tqdm=True, seed=1, learning_rate=1e-3, **settings)
    trainer = transformers.Trainer(model_of("llama", implementation).train(), arguments, train_dataset=data)
    trainer.train()
    return torch.tensor([line["loss"] for line in trainer.state.log_history if "loss" in line])


@pytest.mark.parametrize("settings", [{}, {"gradient_checkpointing": True}], ids=["plain", "checkpointing"])
def test_an_epoch_of_trainer_has_the_losses_of_sdpa(tmp_path, settings):
    got, expected = (losses_of_an_epoch(name, tmp_path, **settings) for name in ("fovea", "sdpa"))
    assert len(got) == 4
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_a_mask_of_pairs_is_refused():
    model = model_of("llama", "fovea")
    with pytest.raises(NotImplementedError, match="mask of pairs"):
        model(TOKENS, attention_mask=torch.ones(2, 1, 23, 23, dtype=torch.bool))


def test_weights_are_dropped_in_training_alone(monkeypatch):
    config = copy.deepcopy(FAMILIES["llama"]())
    config.attention_dropout = 0.4
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="fovea").eval()
    plain = model_of("llama", "fovea")
    torch.testing.assert_close(model(TOKENS).logits, plain(TOKENS).logits, rtol=0, atol=0)

    def losses(seed):
        torch.manual_seed(seed)
        loss = model(TOKENS, labels=TOKENS).loss
        loss.backward()
        grad = model.model.layers[0].self_attn.q_proj.weight.grad.clone()
        model.zero_grad()
        return loss.detach(), grad

    model.train()
    by_kernels = losses(5)
    assert not torch.equal(by_kernels[0], losses(6)[0])
    compute = fovea.transformers.attention
    monkeypatch.setattr(fovea.transformers, "attention", lambda *x, **settings: compute(*x, **settings, path="reference"))
    for x, y in zip(by_kernels, losses(5)):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


# A folder that transformers loads (scripts/python-tests.sh exports it from the GGUF file of `make model`).
SMOLLM = Path(os.environ.get("FOVEA_SMOLLM", "none"))
needs_smollm = pytest.mark.skipif(not (SMOLLM / "config.json").is_file(), reason="no SmolLM2: make model program")


@pytest.fixture(scope="module")
def smollm():
    return [transformers.AutoModelForCausalLM.from_pretrained(SMOLLM, attn_implementation=name, dtype=torch.float32)
            for name in ("fovea", "sdpa")]


REAL = torch.randint(5, 40000, (2, 64), generator=torch.Generator().manual_seed(3))


@needs_smollm
@pytest.mark.parametrize("side", ["none", "left", "right"])
@torch.no_grad()
def test_smollm_logits_are_those_of_sdpa(smollm, side):
    mask = torch.ones_like(REAL)
    if side != "none":
        mask[1, slice(0, 20) if side == "left" else slice(-20, None)] = 0
    got, expected = (model(REAL, attention_mask=mask).logits[mask.bool()] for model in smollm)
    error = (got - expected).abs().max() / expected.abs().max()
    assert error < 1e-5, error


@needs_smollm
@torch.no_grad()
def test_smollm_writes_the_tokens_of_sdpa(smollm):
    mask = torch.ones_like(REAL)
    mask[1, :20] = 0
    got, expected = (model.generate(REAL, attention_mask=mask, max_new_tokens=12, do_sample=False, pad_token_id=2)
                     for model in smollm)
    assert got.tolist() == expected.tolist()
