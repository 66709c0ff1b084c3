"""Adapters of Fovea and LoRA adapters of PEFT on a transformers model.

    import fovea.retrofit
    model = fovea.retrofit.load(AutoModelForCausalLM.from_pretrained(base), "runs/retrofit/adapter")

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Optional, Union

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from . import transformers as _transformers
from ._layers import NAMES, LayerMechanisms, check_attention, put_tensor

_CONFIG, _WEIGHTS, _PREFIX = "adapter_config.json", "adapter_model.safetensors", "base_model.model."
# Options of PEFT that make another function of A and B.
_OTHER_MATHEMATICS = ("use_dora", "modules_to_save", "layer_replication", "trainable_token_indices", "lora_bias",
                      "target_parameters", "use_qalora", "alora_invocation_tokens", "use_bdlora", "arrow_config")


def _expect(holds: bool, text: str) -> None:
    if not holds:
        raise ValueError(f"[fovea.retrofit] {text}")


class _Lora:
    """A hook that adds s B (A drop(x)) to the result of a linear layer."""

    def __init__(self, scale: float, rate: float):
        self.scale, self.rate = scale, rate

    def __call__(self, module: nn.Module, args: tuple, result: Tensor) -> Tensor:
        x = dropout(args[0], self.rate, module.training) if self.rate else args[0]
        a, b = (getattr(module, name).weight.to(x.dtype) for name in ("lora_A", "lora_B"))
        return result + self.scale * linear(linear(x, a), b)


def _pattern_value(patterns: Optional[dict], module: str, absent: float) -> float:
    for key, value in (patterns or {}).items():
        if re.match(rf"^(.*\.)?({key})$", module):
            return value
    return absent


def _read(folder: Path) -> tuple[dict, dict[str, Tensor], dict]:
    for name in (_CONFIG, _WEIGHTS):
        _expect((folder / name).is_file(), f"expected {_CONFIG} and {_WEIGHTS} in {folder}; got no {name}")
    config = json.loads((folder / _CONFIG).read_text())
    with safe_open(folder / _WEIGHTS, "pt") as file:
        return config, {name: file.get_tensor(name).float() for name in file.keys()}, file.metadata() or {}


def _check(config: dict) -> None:
    kind = config.get("peft_type")
    _expect(kind in ("LORA", "FOVEA"), f"expected a peft_type of LORA or FOVEA; got {kind!r}")
    for key in _OTHER_MATHEMATICS:
        if config.get(key):
            raise NotImplementedError(f"[fovea.retrofit] expected plain LoRA; got {key}: {config[key]}")
    if config.get("bias", "none") != "none":
        raise NotImplementedError(f"[fovea.retrofit] expected no trained biases; got bias: {config['bias']}")
    start = config.get("init_lora_weights", True)
    if isinstance(start, str) and start not in ("gaussian", "eva", "orthogonal"):
        raise NotImplementedError("[fovea.retrofit] expected a start that leaves the base as it is; got init_lora_weights: "
                                  f"{start}")


def _put_lora(model: nn.Module, config: dict, module_name: str, a: Tensor, b: Tensor) -> None:
    try:
        module = model.get_submodule(module_name)
    except AttributeError:
        raise ValueError(f"[fovea.retrofit] expected an adapter of this base; got one for '{module_name}', which the base "
                         "lacks") from None
    sizes = module.weight.shape if isinstance(module, nn.Linear) else module.weight.shape[::-1]
    _expect(a.shape[1] == sizes[1] and b.shape[0] == sizes[0] and a.shape[0] == b.shape[1],
            f"expected A [r, {sizes[1]}] and B [{sizes[0]}, r] of '{module_name}'; got {tuple(a.shape)} and {tuple(b.shape)}: "
            "the adapter is for another base")
    alpha = _pattern_value(config.get("alpha_pattern"), module_name, config.get("lora_alpha", 8))
    rank = a.shape[0]
    scale = alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank
    put_tensor(module, "lora_A.weight", a), put_tensor(module, "lora_B.weight", b)
    module.register_forward_hook(_Lora(scale, config.get("lora_dropout", 0.0)))


def _put_mechanisms(model: nn.Module, attention: dict, tensors: dict[str, Tensor]) -> None:
    check_attention(attention)
    by_layer: dict[str, dict[str, Tensor]] = {}
    for name, x in tensors.items():
        layer, found, rest = name.partition(".self_attn.")
        _expect(bool(found) and rest.split(".")[0] in NAMES, f"expected tensors of attention; got '{name}'")
        by_layer.setdefault(layer, {})[rest] = x
    names = [name for name, _ in model.named_modules() if name.endswith(".self_attn")]
    _expect(bool(names), f"expected a model whose layers have a `self_attn`; got {type(model).__name__}")
    _expect({f"{layer}.self_attn" for layer in by_layer} <= set(names),
            f"expected an adapter of this base; got one with layers that {type(model).__name__} lacks")
    for n, name in enumerate(names):
        module = model.get_submodule(name)
        before = getattr(module, "fovea", None)  # of a model that Fovea trained
        _expect(not attention.get("differential") or (before is not None and before.attention.get("differential")),
                "expected a differential base with this adapter, a model folder that `fovea retrofit --with differential` "
                "writes; got another base")
        for path, x in by_layer.get(name.removesuffix(".self_attn"), {}).items():
            put_tensor(module, path, x)
        architecture = before is not None and before.architecture
        if LayerMechanisms(module, attention, n, architecture=architecture).reads_text(module):
            model.config.use_cache = False
            if getattr(model, "generation_config", None) is not None:
                model.generation_config.use_cache = False
    _transformers.register()
    model.set_attn_implementation(_transformers.NAME)


def load(model: nn.Module, folder: Union[str, os.PathLike], *, focus: str = "configured") -> nn.Module:
    """Puts the adapter of `folder` on a transformers model, in place, and returns the model.

    `folder` is one of `fovea retrofit` or `fovea adapter export` (LoRA, learned and constant temperatures, Multi-Token,
    head mixes, Focus, norms and gates of heads, KV shifting, SparQ, dropout), or a LoRA of PEFT. The model may be
    one of `model_type: fovea`, differential ones included. A model with mechanisms computes attention by `fovea.attention`.
    focus: "configured" (the gate of the folder), "hard" (only groups that meet) or "off".

    The base is frozen; parameters of the adapter train, by names as in the folder. Potentials of Focus stay as they are.
    Multi-Token, Focus and a prefix temperature read earlier tokens, which the cache of transformers does not hold: it is
    switched off in the model's config.

    Raises ValueError for an adapter of another base, NotImplementedError for what is not computed here.
    """
    _expect(focus in ("configured", "hard", "off"), f"expected focus configured, hard or off; got {focus!r}")
    _expect(not hasattr(model, "fovea_adapter"), "expected a model without an adapter; got one that has an adapter already")
    folder = Path(folder)
    config, tensors, metadata = _read(folder)
    _check(config)
    for name in tensors:
        _expect(name.startswith(_PREFIX), f"expected names that begin with '{_PREFIX}'; got '{name}'")
    plain = {name.removeprefix(_PREFIX): x.to(model.device) for name, x in tensors.items()}
    model.requires_grad_(False)
    pairs = sorted({name.rsplit(".lora_", 1)[0] for name in plain if ".lora_" in name})
    for name in pairs:
        a, b = (plain.get(f"{name}.lora_{which}.weight") for which in "AB")
        _expect(a is not None and b is not None, f"expected A and B of '{name}'; got one of them")
        _put_lora(model, config, name, a, b)
    others = {name: x for name, x in plain.items() if ".lora_" not in name}
    attention = (config.get("fovea") or {}).get("attention")
    _expect(attention is not None or not others, f"expected linear layers alone; got '{next(iter(others), '')}'")
    if attention is not None:
        _put_mechanisms(model, attention, others)
        for module in model.modules():
            if hasattr(module, "fovea"):
                module.fovea.focus_mode = focus
    model.fovea_adapter = {"config": config, "names": list(plain), "metadata": metadata}
    return model


def _tensor_now(state: dict[str, Tensor], name: str) -> Tensor:
    """Where PEFT has wrapped the layer since, its tensors are those of `base_layer`."""
    module, mark, rest = name.rpartition(".lora_")
    return state[name] if name in state else state[f"{module}.base_layer{mark}{rest}"]


@torch.no_grad()
def save(model: nn.Module, folder: Union[str, os.PathLike]) -> None:
    """Writes the adapter that `load` put on the model, with its tensors of now, in the same layout.

    A LoRA of PEFT on the same model is not in it: `save_pretrained` of the PEFT model writes that, and this function takes
    `peft_model.get_base_model()`.
    """
    _expect(hasattr(model, "fovea_adapter"), "expected a model of fovea.retrofit.load; got one without an adapter")
    known, folder = model.fovea_adapter, Path(folder)
    state = model.state_dict()
    tensors = {_PREFIX + name: _tensor_now(state, name).detach().float().cpu().contiguous().clone() for name in known["names"]}
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / (_WEIGHTS + ".new")
    save_file(tensors, new, known["metadata"] or None)
    new_config = folder / (_CONFIG + ".new")
    new_config.write_text(json.dumps(known["config"], indent=2) + "\n")
    os.replace(new, folder / _WEIGHTS)
    os.replace(new_config, folder / _CONFIG)
