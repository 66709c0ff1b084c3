# Adapters on SmolLM2 and models of `model_type: fovea`, against the program where it is built.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
import copy
import json
import math
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

transformers = pytest.importorskip("transformers")
import fovea.retrofit  # noqa: E402
import fovea.transformers  # noqa: E402
from fovea._layers import shapes_of  # noqa: E402

ROOT = Path(__file__).parents[2]
PROGRAM = Path(os.environ.get("FOVEA_PROGRAM", ROOT / "build/bin/fovea"))
SMOLLM = Path(os.environ.get("FOVEA_SMOLLM", "none"))
needs_both = pytest.mark.skipif(not ((SMOLLM / "config.json").is_file() and PROGRAM.is_file()),
                                reason="no SmolLM2 or no program: make model program")
needs_program = pytest.mark.skipif(not PROGRAM.is_file(), reason="no program: make program")

FOCUS = {"gate": "log", "groups": 6, "top_k": 2, "window": 12, "sinks": 2, "width": 8, "temperature": 0.5, "strength": 10.0,
         "learned_strength": True, "threshold": 0.5, "epsilon": 1e-6, "assignment": "sinkhorn", "potentials": "ema",
         "layers": []}
ATTENTIONS = {
    "lora": None,
    "focal": {"temperature": {"kind": "learned", "form": "prefix", "bound": "sigmoid"}},
    "multi_token": {"multi_token": {"before": {"queries": 3, "keys": 5}, "after": {"queries": 2, "keys": 3}, "layers": [1]},
                    "head_mix": {"before": "full", "after": "groups", "group": 3}},
    "focus": {"focus": FOCUS},
    "all but focus": {"temperature": {"kind": "learned", "form": "prefix"},
                      "multi_token": {"before": {"queries": 3, "keys": 5}, "layers": [0, 1]}},
    "on a differential base": {"differential": True, "head_output": {"gate": "scalar"},
                               "temperature": {"kind": "learned", "form": "token", "bound": "sigmoid"}},
    "shift and gate": {"kv_shift": {"keys": True, "values": True}, "head_output": {"norm": "rms", "gate": "full"}},
    "sparq": {"sparq": {"components": 3, "keys": 6}},
}


DIFFERENTIAL = {"differential": True, "head_output": {"gate": "scalar"}}


def numbers(shape, scale, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def mechanism_tensors(config, attention):
    """Numbers that are far from neutral, of what the base lacks."""
    tensors = {}
    of_base = set(DIFFERENTIAL) if attention.get("differential") else set()
    for layer in range(config.num_hidden_layers):
        shapes = shapes_of({n: x for n, x in attention.items() if n not in of_base}, layer, config)
        for n, (name, shape) in enumerate(shapes.items()):
            x = numbers(shape, 0.05, 100 * layer + n)
            if name.startswith("key_query"):
                x[:, -1, (shape[2] - 1) // 2] += 1.0
            elif name.startswith("head_mix"):
                x += torch.eye(shape[1])
            elif name == "temperature.bias" and attention["temperature"].get("bound") != "sigmoid":
                x += 5.2
            elif name in ("focus.weight", "focus.centroids"):
                x *= 10.0
            elif name in ("focus.scale", "head_norm.weight"):
                x += 1.0
            elif name.startswith("kv_shift"):
                x += torch.tensor([0.7, 0.3])
            tensors[f"model.layers.{layer}.self_attn.{name}"] = x
    return tensors


def write_adapter(folder, config, attention, lora=True):
    tensors = mechanism_tensors(config, attention) if attention else {}
    widths = {"q_proj": config.num_attention_heads * config.head_dim, "v_proj": config.num_key_value_heads * config.head_dim}
    for layer in range(config.num_hidden_layers if lora else 0):
        for name, width in widths.items():
            module = f"model.layers.{layer}.self_attn.{name}"
            tensors[f"{module}.lora_A.weight"] = numbers((4, config.hidden_size), 0.05, layer)
            tensors[f"{module}.lora_B.weight"] = numbers((width, 4), 0.2, layer + 50)
    settings = {"peft_type": "LORA" if lora else "FOVEA", "task_type": "CAUSAL_LM", "base_model_name_or_path": None,
                "r": 4 if lora else 0, "lora_alpha": 6, "lora_dropout": 0.0, "target_modules": list(widths) if lora else [],
                "bias": "none", "use_rslora": False, "fan_in_fan_out": False, "init_lora_weights": True}
    if attention:
        settings["fovea"] = {"attention": attention}
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    save_file({"base_model.model." + name: x.contiguous() for name, x in tensors.items()}, folder / "adapter_model.safetensors")
    return folder


def small(layers=2):
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=99, hidden_size=96, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=12,
        num_key_value_heads=6, head_dim=8, max_position_embeddings=128, pad_token_id=0)).eval()


def small_differential():
    """A model of `model_type: fovea`."""
    config = small().config.to_dict()
    torch.manual_seed(2)
    model = fovea._model.FoveaForCausalLM(fovea._model.FoveaConfig(
        fovea={"model": {"attention": DIFFERENTIAL}}, **{n: config[n] for n in (
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "head_dim", "max_position_embeddings", "pad_token_id")})).eval()
    for name, x in model.named_parameters():
        if "lambda" in name or "head_" in name:
            x.data = numbers(x.shape, 0.3, len(name)) + ("head_norm" in name)
    return model


def base_of(name):
    return small_differential() if name == "on a differential base" else small()


TOKENS = torch.randint(1, 99, (2, 31), generator=torch.Generator().manual_seed(3))


def program_losses(model, *arguments):
    """Mean losses of runs of positions, in nats, by `fovea eval`: (begin, end, loss)."""
    done = subprocess.run([PROGRAM, "eval", model, "--json", "--quiet", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [(x["from"], x["to"], x["nll_per_token"]) for x in json.loads(done.stdout)["positions"]]


def assert_same_losses(ours, told):
    assert len(told) > 3
    for begin, end, loss in told:
        assert math.isclose(float(ours[begin:end].mean()), loss, abs_tol=1e-4), (begin, end)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_an_adapter_changes_the_logits_trains_and_is_saved_as_it_was_read(tmp_path, name):
    plain = base_of(name)
    base = plain(TOKENS).logits
    folder = write_adapter(tmp_path / "adapter", plain.config, ATTENTIONS[name])
    model = fovea.retrofit.load(plain, folder)
    changed = model(TOKENS).logits
    assert (changed - base).abs().max() > 1e-3
    fovea.retrofit.save(model, tmp_path / "again")
    first, second = (load_file(x / "adapter_model.safetensors") for x in (folder, tmp_path / "again"))
    assert first.keys() == second.keys() and all(torch.equal(x, second[n]) for n, x in first.items())
    model(TOKENS, labels=TOKENS).loss.backward()
    trained = {n for n, p in model.named_parameters() if p.grad is not None}
    state = ("potentials", "mean", "scale", "updates")
    assert trained == {n.removeprefix("base_model.model.") for n in first if not n.endswith(tuple("focus." + s for s in state))}
    with torch.no_grad():
        torch.testing.assert_close(fovea.retrofit.load(base_of(name), tmp_path / "again")(TOKENS).logits, changed)


@pytest.mark.parametrize("name", ["focal", "multi_token", "focus", "on a differential base", "shift and gate", "sparq"])
@torch.no_grad()
def test_padding_on_either_side_does_not_change_real_tokens(tmp_path, name):
    model = fovea.retrofit.load(base_of(name), write_adapter(tmp_path / "adapter", small().config, ATTENTIONS[name]))
    alone = model(TOKENS[1:, :20]).logits
    for side in ("left", "right"):
        pad = torch.zeros(1, 11, dtype=torch.long)
        row = torch.cat([pad, TOKENS[1:, :20]] if side == "left" else [TOKENS[1:, :20], pad], 1)
        mask = (row != 0).long()
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        got = model(torch.cat([TOKENS[:1], row]), attention_mask=torch.cat([torch.ones_like(mask), mask]),
                    position_ids=torch.cat([torch.arange(31)[None], positions])).logits
        torch.testing.assert_close(got[1][mask[0].bool()], alone[0], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_generate_reads_the_whole_text_again_where_earlier_tokens_matter(tmp_path):
    model = fovea.retrofit.load(small(), write_adapter(tmp_path / "adapter", small().config, ATTENTIONS["all but focus"]))
    got = model.generate(TOKENS[:1, :7], max_new_tokens=6, do_sample=False)
    for n in range(7, 13):
        assert int(model(got[:, :n]).logits[0, -1].argmax()) == int(got[0, n])
    with pytest.raises(NotImplementedError, match="use_cache"):
        model.generate(TOKENS[:1, :7], max_new_tokens=6, do_sample=False, use_cache=True)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["on a differential base", "shift and gate", "sparq"])
@torch.no_grad()
def test_what_reads_keys_alone_generates_from_the_cache(tmp_path, name, cache):
    model = fovea.retrofit.load(base_of(name), write_adapter(tmp_path / "adapter", small().config, ATTENTIONS[name]))
    got = model.generate(TOKENS[:1, :9], max_new_tokens=6, do_sample=False, cache_implementation=cache)
    for n in range(9, 15):
        assert int(model(got[:, :n], use_cache=False).logits[0, -1].argmax()) == int(got[0, n])


@torch.no_grad()
def test_focus_may_be_hard_or_off(tmp_path):
    folder = write_adapter(tmp_path / "adapter", small().config, ATTENTIONS["focus"], lora=False)
    base = small()(TOKENS).logits
    torch.testing.assert_close(fovea.retrofit.load(small(), folder, focus="off")(TOKENS).logits, base, rtol=1e-4, atol=1e-5)
    hard, soft = (fovea.retrofit.load(small(), folder, focus=mode)(TOKENS).logits for mode in ("hard", "configured"))
    assert (hard - base).abs().max() > 1e-4 and (hard - soft).abs().max() > 1e-4


def test_an_adapter_of_a_run_with_dropout_drops_weights_in_training_alone(tmp_path):
    attention = ATTENTIONS["all but focus"]
    folders = [write_adapter(tmp_path / name, small().config, attention | {"dropout": rate}) for name, rate in (("a", 0.0), ("b", 0.4))]
    plain, dropped = (fovea.retrofit.load(small(), folder) for folder in folders)
    assert torch.equal(plain.eval()(TOKENS).logits, dropped.eval()(TOKENS).logits)
    assert (plain.train()(TOKENS).logits - dropped.train()(TOKENS).logits).abs().max() > 1e-3


def test_adapters_that_do_not_fit_are_refused_by_name(tmp_path):
    folder = write_adapter(tmp_path / "adapter", small(3).config, ATTENTIONS["lora"])
    with pytest.raises(ValueError, match="model.layers.2.self_attn.q_proj"):
        fovea.retrofit.load(small(), folder)
    folder = write_adapter(tmp_path / "routing", small().config, {"routing": {"clusters": 4}}, lora=True)
    with pytest.raises(NotImplementedError, match="routing"):
        fovea.retrofit.load(small(), folder)
    folder = write_adapter(tmp_path / "differential", small().config, ATTENTIONS["on a differential base"])
    with pytest.raises(ValueError, match="expected a differential base"):
        fovea.retrofit.load(small(), folder)
    with pytest.raises(ValueError, match="no adapter_config.json"):
        fovea.retrofit.load(small(), tmp_path)
    model = fovea.retrofit.load(small(), write_adapter(tmp_path / "good", small().config, None))
    with pytest.raises(ValueError, match="already"):
        fovea.retrofit.load(model, tmp_path / "good")


def test_lora_of_peft_has_the_logits_of_peft(tmp_path):
    peft = pytest.importorskip("peft")
    theirs = peft.get_peft_model(small(), peft.LoraConfig(r=4, lora_alpha=6, target_modules=["q_proj", "down_proj"],
                                                          init_lora_weights=False, rank_pattern={"layers.1.mlp.down_proj": 2}))
    theirs.save_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(fovea.retrofit.load(small(), tmp_path)(TOKENS).logits, theirs.eval()(TOKENS).logits)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "page.txt"
    path.write_text((ROOT / "CONTRIBUTING.md").read_text()[:500])
    return path


@torch.no_grad()
def losses_of(model, folder, page):
    """Of every token behind the mark that begins a text."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    begin = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    tokens = torch.tensor([[begin] + tokenizer(page.read_text(), add_special_tokens=False).input_ids])
    return torch.nn.functional.cross_entropy(model(tokens).logits[0, :-1].double(), tokens[0, 1:], reduction="none")


@needs_both
def test_smollm_with_an_adapter_has_the_losses_of_the_program(tmp_path, page):
    base = transformers.AutoModelForCausalLM.from_pretrained(SMOLLM, dtype=torch.float32)
    plain = losses_of(base, SMOLLM, page)
    attention = ATTENTIONS["focal"] | ATTENTIONS["multi_token"] | ATTENTIONS["focus"]
    folder = write_adapter(tmp_path / "adapter", base.config, attention)
    told = program_losses(SMOLLM, "--text", page, "--adapter", folder)
    ours = losses_of(fovea.retrofit.load(base, folder), SMOLLM, page)
    assert (ours - plain).abs().mean() > 0.1
    assert_same_losses(ours, told)


RECIPE = """
name: small
run_folder: run
data: {sources: [{path: text.txt}], cache: cache}
model: {layers: 2, width: 48, heads: 6, kv_heads: 3, ffn_width: 64, context: 64}
train: {steps: 3, batch_rows: 2, checkpoint_interval: 0, log_interval: 1, dtype: float32, device: cpu, optimizer: {learning_rate: 0.03}}
"""
A = "model.attention."
MODELS = {
    "multi_token": [A + "temperature.kind=learned", A + "multi_token.before={queries: 3, keys: 5}", A + "multi_token.after={queries: 2, keys: 3}",
                    A + "head_mix.before=full"],
    "focus": [A + "focus.gate=log", A + "focus.window=8", A + "focus.groups=4", A + "focus.width=8"],
    "differential": [A + "differential=true", A + "head_output.gate=scalar", "model.kv_heads=2"],
    "shift, norm and gate": [A + "kv_shift={keys: true, values: true, start: 0.2}", A + "head_output={norm: rms, gate: scalar}"],
    "sparq": [A + "sparq={components: 3, keys: 8}"],
    "window, sinks and cap": [A + "temperature.value=0.5", A + "mask.window=16", A + "mask.sinks=2", A + "soft_cap=20"],
}


def train_and_export(folder, *settings):
    """A model folder, folder/model, of a few steps."""
    (folder / "text.txt").write_text((ROOT / "CONTRIBUTING.md").read_text())
    (folder / "recipe.yaml").write_text(RECIPE)
    for command in (["train", "recipe.yaml", "--quiet", *settings], ["export", "run", "model", "--quiet"]):
        done = subprocess.run([PROGRAM, *command], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@needs_program
@pytest.mark.parametrize("name", ["on a differential base", "shift and gate", "sparq"])
def test_an_adapter_on_a_small_model_has_the_losses_of_the_program(tmp_path, page, name):
    train_and_export(tmp_path, "model.kv_heads=2", *(MODELS["differential"] if "differential" in name else []))
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32).eval()
    short = tmp_path / "short.txt"
    short.write_text(page.read_text()[:50])
    plain = losses_of(base, tmp_path / "model", short)
    folder = write_adapter(tmp_path / "adapter", base.config, ATTENTIONS[name])
    told = program_losses(tmp_path / "model", "--text", short, "--adapter", folder)
    ours = losses_of(fovea.retrofit.load(base, folder), tmp_path / "model", short)
    assert (ours - plain).abs().mean() > 0.01
    assert_same_losses(ours, told)


@needs_program
@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_fovea_trained_loads_and_has_its_loss(tmp_path, page, name):
    train_and_export(tmp_path, *MODELS[name])
    assert json.loads((tmp_path / "model/config.json").read_text())["model_type"] == "fovea"
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32).eval()
    short = tmp_path / "short.txt"
    short.write_text(page.read_text()[:50])
    assert_same_losses(losses_of(model, tmp_path / "model", short), program_losses(tmp_path / "model", "--text", short))
    written = model.generate(TOKENS[:1, :7], max_new_tokens=4, do_sample=False)
    assert written.shape[1] == 11
