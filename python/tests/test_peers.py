# Libraries that people train and measure with: PEFT, TRL, lm-evaluation-harness. Each runs where it is installed.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
import json
import sys

import pytest
import torch

transformers = pytest.importorskip("transformers")
from test_retrofit import ATTENTIONS, ROOT, TOKENS, small, write_adapter  # noqa: E402

import fovea.retrofit  # noqa: E402
import fovea.transformers  # noqa: E402

WORDS = "key door inn keeper mat brass old red blue box".split()


@pytest.mark.parametrize("name", ["lora", "all but focus"])
def test_lora_of_peft_trains_and_is_saved_beside_a_fovea_adapter(tmp_path, name):
    peft = pytest.importorskip("peft")
    model = fovea.retrofit.load(small(), write_adapter(tmp_path / "adapter", small().config, ATTENTIONS[name]))
    own = [n for n, p in model.named_parameters() if p.requires_grad]
    before = model(TOKENS).logits
    torch.manual_seed(5)
    both = peft.get_peft_model(model, peft.LoraConfig(r=3, target_modules=["q_proj", "down_proj"])).eval()
    torch.testing.assert_close(both(TOKENS).logits, before)  # B starts at 0
    for n, p in both.named_parameters():  # PEFT freezes what is not its own
        if n.replace("base_model.model.", "", 1).replace(".base_layer", "") in own:
            p.requires_grad_(True)
    optimizer = torch.optim.SGD([p for p in both.parameters() if p.requires_grad], 0.5)
    losses = []
    for _ in range(4):
        loss = both(TOKENS, labels=TOKENS).loss
        loss.backward()
        assert all(p.grad is not None for n, p in both.named_parameters() if p.requires_grad)
        optimizer.step(), optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    fovea.retrofit.save(both.get_base_model(), tmp_path / "again")
    both.save_pretrained(tmp_path / "lora")
    fresh = fovea.retrofit.load(small(), tmp_path / "again")
    assert (fresh(TOKENS).logits - before).abs().max() > 1e-4
    fresh = peft.PeftModel.from_pretrained(fresh, tmp_path / "lora").eval()
    torch.testing.assert_close(fresh(TOKENS).logits, both(TOKENS).logits, rtol=1e-4, atol=1e-5)


def tokenizer_of_words():
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({word: n for n, word in enumerate(["<pad>", "<eos>", *WORDS])}, "<pad>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<pad>")


def test_steps_of_sft_in_trl_have_the_losses_of_sdpa(tmp_path):
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    fovea.transformers.register()
    texts = [{"text": " ".join(WORDS[(n * k) % 10] for k in range(1, 4 + n))} for n in range(1, 9)]
    losses = {}
    for implementation in ("sdpa", "fovea"):
        model = small()
        model.set_attn_implementation(implementation)
        trainer = trl.SFTTrainer(
            model, trl.SFTConfig(str(tmp_path / implementation), max_steps=3, per_device_train_batch_size=4, logging_steps=1,
                                 report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False, save_strategy="no",
                                 learning_rate=0.01, max_length=16, seed=0),
            train_dataset=datasets.Dataset.from_list(texts), processing_class=tokenizer_of_words())
        trainer.train()
        losses[implementation] = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert len(losses["fovea"]) == 3 and losses["fovea"][-1] < losses["fovea"][0]
    assert losses["fovea"] == pytest.approx(losses["sdpa"], rel=1e-3)


def test_the_harness_answers_as_with_sdpa(tmp_path):
    pytest.importorskip("lm_eval")
    sys.path.insert(0, str(ROOT / "tests/peers"))
    import check_attention

    model = small()
    tokenizer_of_words().save_pretrained(tmp_path / "model")
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "data").mkdir()
    draw = torch.Generator().manual_seed(1)
    for file in ("arc_easy.jsonl", "piqa_valid.jsonl", "openbookqa_test.jsonl"):
        rows = [[WORDS[int(w)] for w in torch.randint(10, (n % 5 + 4,), generator=draw)] for n in range(8)]
        (tmp_path / "data" / file).write_text("".join(json.dumps(
            {"query": " ".join(row), "choices": [row[0], " ".join(row[:2])], "gold": len(row) % 2}) + "\n" for row in rows))
    assert check_attention.main([str(tmp_path / "model"), str(tmp_path / "data"), "--limit", "8"]) == 0
