"""Models of `model_type: fovea` (docs/model-folder.md) as transformers models: Llama's blocks with Fovea's attention.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from __future__ import annotations

import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from ._layers import LayerMechanisms, check_attention, put_tensor, refuse, shapes_of

NAME = "fovea"
# What the blocks of Llama are, by the keys of a recipe.
_BLOCKS = {"feed_forward": "swiglu", "block": "pre", "norm": "rms", "qk_norm": "none", "positions": "rope",
           "norm_depth_scale": "none", "embedding_scale": 1.0, "logit_scale": 1.0, "logit_cap": 0.0, "vocab_multiple": 1,
           "rope.layout": "half_split", "rope.rotary_dim": 0, "rope.scaling.kind": "none", "lora.rank": 0, "biases.qkv": False,
           "biases.output": False, "biases.feed_forward": False}
_ATTENTION = {"mask.sparsity": "full", "mask.causal": True, "bias.kind": "none", "sink_logit": False, "full.every": 0,
              "full.layers": []}


class FoveaConfig(LlamaConfig):
    """The keys of Llama, and the whole configuration of Fovea under `fovea`."""

    model_type = NAME

    def __init__(self, fovea=None, **keys):
        super().__init__(**keys)
        self.fovea = fovea


def _value(settings: dict, path: str):
    for key in path.split("."):
        settings = settings.get(key, {})
    return settings


def _check(model: dict) -> None:
    for path, expected in _BLOCKS.items():
        if (got := _value(model, path)) not in (expected, {}):
            refuse(f"expected {path}: {expected}; got {got}: `fovea export` writes such a model for the program alone")
    for path, expected in _ATTENTION.items():
        if (got := _value(model["attention"], path)) not in (expected, {}):
            refuse(f"expected attention.{path}: {expected}; got {got}")
    check_attention(model["attention"])


class FoveaForCausalLM(LlamaForCausalLM):
    """A model that Fovea trained, with the mechanisms of `fovea.retrofit.load`, caps or windows."""

    config_class = FoveaConfig

    def __init__(self, config: FoveaConfig):
        if not config.fovea:
            raise ValueError("[fovea.transformers] expected a config with the key `fovea`, as `fovea export` writes it; "
                             "got none")
        model = config.fovea["model"]
        _check(model)
        config._attn_implementation = NAME
        super().__init__(config)
        attention = model["attention"]
        for n, layer in enumerate(self.model.layers):
            shapes = shapes_of(attention, n, config)
            for path, shape in shapes.items():
                put_tensor(layer.self_attn, path, torch.zeros(shape))
            if LayerMechanisms(layer.self_attn, attention, n, architecture=True).reads_text(layer.self_attn):
                config.use_cache = False
        self.post_init()

    def generate(self, *inputs, **settings):
        """As in transformers; without a cache where a mechanism reads earlier tokens."""
        if not self.config.use_cache:
            settings.setdefault("use_cache", False)
        return super().generate(*inputs, **settings)


def register() -> None:
    AutoConfig.register(NAME, FoveaConfig, exist_ok=True)
    AutoModelForCausalLM.register(FoveaConfig, FoveaForCausalLM, exist_ok=True)
