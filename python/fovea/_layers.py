"""Mechanisms of Fovea on the attention layers of a transformers model: their tensors, and the settings of each call.

Tensors stand in the attention module under the names of Fovea's own models: `self_attn.temperature.bias`, ...

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from __future__ import annotations

import math
from typing import Optional

import torch
from torch import Tensor, nn

from ._settings import Differential, Focus, HeadMix, HeadOutput, KvShift, MultiToken, Sparq
from .focus import focus_groups

_LAMBDAS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
# First parts of the names of their tensors.
NAMES = ("temperature", "key_query_before", "key_query_after", "head_mix_before", "head_mix_after", "focus", *_LAMBDAS,
         "head_norm", "head_gate", "kv_shift")
_READ_TEXT = ("key_query_before", "key_query_after", "focus")
_COMPUTED = "temperature, multi_token, head_mix, focus, differential, head_output, kv_shift, sparq and dropout"
STATE = {"potentials", "mean", "scale", "updates"}  # of Focus: no gradient reaches them
# Keys of `attention` that no layer here computes, with the inner key that switches each on.
_REFUSED = {"longformer": "window", "routing": "clusters", "performer": "features", "magic_pig": "bits",
            "streaming": "recent", "blocks": "size", "own": "name"}
PADDING = -1  # the document of padding


def refuse(text: str) -> None:
    raise NotImplementedError(f"[fovea.transformers] {text}")


def _is_on(value, key: Optional[str]) -> bool:
    return bool(value.get(key) if isinstance(value, dict) and key else value)


def check_attention(attention: dict) -> None:
    """Refuses the settings of a layer that are not computed here, by name."""
    for key, inner in _REFUSED.items():
        if key in attention and _is_on(attention[key], inner):
            refuse(f"expected {_COMPUTED}; got {key}: {attention[key]}, which this package does not put on a "
                   "transformers model")
    focus = attention.get("focus", {})
    balanced = focus.get("gate", "none") != "none" and focus.get("assignment", "sinkhorn") == "sinkhorn"
    if balanced and focus.get("potentials", "ema") != "ema":
        refuse(f"expected focus.potentials ema; got {focus['potentials']}")


def put_tensor(module: nn.Module, path: str, value: Tensor) -> None:
    """A parameter or, for state, a buffer at `path` below `module`; containers are made on the way."""
    *parents, name = path.split(".")
    for parent in parents:
        if not hasattr(module, parent):
            module.add_module(parent, nn.Module())
        module = getattr(module, parent)
    if parents[-1:] == ["focus"] and name in STATE:
        module.register_buffer(name, value)
    else:
        module.register_parameter(name, nn.Parameter(value))


def _output_of(attention: dict) -> dict:
    """Settings of the heads' output; a norm and a factor come with differential attention."""
    output = {"norm": "none", "norm_eps": 1e-5, "depth_scale": "none", "gate": "none"} | attention.get("head_output", {})
    return output | ({"norm": "rms", "depth_scale": "lambda"} if attention.get("differential") else {})


def _output_shapes(attention: dict, key_heads: int, head_dim: int) -> dict[str, tuple[int, ...]]:
    differential, output, shift = attention.get("differential"), _output_of(attention), attention.get("kv_shift", {})
    width, value_heads = (2 * head_dim, key_heads // 2) if differential else (head_dim, key_heads)
    shapes = {name: (head_dim,) for name in _LAMBDAS} if differential else {}
    if output["norm"] == "rms":
        shapes["head_norm.weight"] = (width,)
    if output["gate"] != "none":
        full = output["gate"] == "full"
        shapes |= {"head_gate.weight": (width, width) if full else (width,), "head_gate.bias": (width,) if full else ()}
    shapes |= {"kv_shift.key_weight": (key_heads, 2)} if shift.get("keys") else {}
    return shapes | ({"kv_shift.value_weight": (value_heads, 2)} if shift.get("values") else {})


def shapes_of(attention: dict, layer: int, config) -> dict[str, tuple[int, ...]]:
    """The tensors that the settings give a layer; `config` is that of the transformers model."""
    width, heads = config.hidden_size, config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or width // heads

    def here(of: dict) -> bool:
        return not of.get("layers") or layer in of["layers"]

    shapes = _output_shapes(attention, config.num_key_value_heads, head_dim)
    temperature = attention.get("temperature", {})
    if temperature.get("kind") == "learned":
        shapes["temperature.bias"] = ()
        if temperature.get("form", "prefix") != "global":
            shapes["temperature.weight"] = (width,)
    tokens = attention.get("multi_token", {})
    for name in ("before", "after"):
        if here(tokens) and tokens.get(name, {}).get("queries"):
            shapes[f"key_query_{name}.weight"] = (heads, tokens[name]["queries"], tokens[name]["keys"])
        kind, mix = attention.get("head_mix", {}).get(name, "none"), attention.get("head_mix", {})
        if kind != "none":
            size = heads if kind == "full" else mix["group"]
            shapes[f"head_mix_{name}.weight"] = (heads // size, size, size)
    focus = attention.get("focus", {})
    if focus.get("gate", "none") != "none" and here(focus):
        groups = focus["groups"]
        of_groups = {"weight": (focus["width"], width), "centroids": (groups, focus["width"]), "potentials": (groups,),
                     "mean": (width,), "scale": (), "updates": ()}
        if focus["gate"] == "logsig" and focus.get("learned_strength", True):
            of_groups["log_strength"] = ()
        shapes |= {f"focus.{name}": shape for name, shape in of_groups.items()}
    return shapes


class LayerMechanisms:
    """What a call of one layer's attention adds to its settings. `module` has the tensors of this layer."""

    def __init__(self, module: nn.Module, attention: dict, layer: int, *, architecture: bool = False):
        """`architecture`: soft-cap, window and sinks are those of `attention`, and not those of transformers' config."""
        self.attention, self.layer, self.input, self.focus_mode = attention, layer, None, "configured"
        self.architecture = architecture
        if (before := getattr(module, "fovea", None)) is not None:
            before.hook.remove()
        self.hook = module.register_forward_pre_hook(self._keep_input, with_kwargs=True)
        module.fovea = self

    def _keep_input(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        self.input = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]

    def reads_text(self, module: nn.Module) -> list[str]:
        """Mechanisms of this layer that read earlier tokens, which a cache of keys and values does not have."""
        found = [name for name in _READ_TEXT if hasattr(module, name)]
        if hasattr(module, "temperature") and self.attention["temperature"].get("form", "prefix") in ("prefix", "sequence"):
            found.append("temperature")
        return found

    def settings(self, module: nn.Module, query: Tensor, keys: int, scale: float, given: dict) -> dict:
        """Settings of fovea.attention for this call; `given`: those that transformers asks for."""
        x, self.input = self.input, None
        has = {name: getattr(module, name) for name in NAMES if hasattr(module, name)}
        of_text = self.reads_text(module)
        if of_text and query.shape[2] != keys:
            refuse(f"expected the whole text in each call, because {of_text[0]} reads earlier tokens; got "
                   f"{query.shape[2]} queries and {keys} keys: pass use_cache=False")
        added = self._temperature(has.get("temperature"), x, query.shape[3], scale, given)
        before, after = (has[n].weight if n in has else None for n in ("key_query_before", "key_query_after"))
        if before is not None or after is not None:
            rule = self.attention["multi_token"]
            added["multi_token"] = MultiToken(before, after, rule.get("equation", "eq5"), rule.get("renormalise", False))
        before, after = (has[n].weight if n in has else None for n in ("head_mix_before", "head_mix_after"))
        if before is not None or after is not None:
            added["head_mix"] = HeadMix(before, after)
        if module.training and self.attention.get("dropout"):
            added["dropout"] = self.attention["dropout"]
        added |= self._heads(has)
        if "focus" in has and self.focus_mode != "off":
            added["focus"] = self._focus(has["focus"], x)
        if self.architecture:
            mask = self.attention.get("mask", {})
            added |= {"softcap": self.attention.get("soft_cap", 0.0), "window": mask.get("window", 0),
                      "sinks": mask.get("sinks", 0)}
        if "documents" in given and ("focus" in added or added.get("sinks")):
            # The first positions count from the first token that is not padding.
            first = (given["documents"].keys != PADDING).int().argmax(1, keepdim=True)
            added |= {name: given[name] - first for name in ("query_positions", "key_positions")}
        return added

    def _heads(self, has: dict) -> dict:
        """Two maps a head, what ends a head, what its keys and values begin with, and which keys it chooses."""
        added, output, sparq = {}, _output_of(self.attention), self.attention.get("sparq", {})
        if self.attention.get("differential"):
            added["differential"] = Differential(torch.stack([has[name] for name in _LAMBDAS]), self.layer)
        if any(output[name] != "none" for name in ("norm", "depth_scale", "gate")):
            norm, gate = has.get("head_norm"), has.get("head_gate")
            added["head_output"] = HeadOutput(
                None if norm is None else norm.weight, output["norm_eps"], output["depth_scale"], self.layer,
                None if gate is None else gate.weight, None if gate is None else gate.bias)
        if "kv_shift" in has:
            added["kv_shift"] = KvShift(*(getattr(has["kv_shift"], f"{name}_weight", None) for name in ("key", "value")))
        if sparq.get("components"):
            added["sparq"] = Sparq(sparq["components"], sparq.get("keys", 128), sparq.get("recent", -1),
                                   sparq.get("reallocate", True))
        return added

    def _temperature(self, learned: Optional[nn.Module], x: Tensor, width: int, scale: float, given: dict) -> dict:
        spec, each = self.attention.get("temperature", {}), self.attention.get("temperature_per_layer") or []
        if learned is None:
            value = each[self.layer] if each else spec.get("value", 1.0)
            return {} if value == 1.0 else {"temperature": value}
        size = math.sqrt(width / 128) if spec.get("scale_bounds", True) else 1.0
        low, high, form = spec.get("tau_min", 5.0) * size, spec.get("tau_max", 10.0) * size, spec.get("form", "prefix")
        raw = learned.bias.float().reshape(1, 1)
        if form != "global":
            z = x.float() @ learned.weight.float()
            raw = raw + (z if form == "token" else _mean(z.double(), given, form == "prefix").float())
        bound = spec.get("bound", "clip")
        if bound == "sigmoid":
            tau = low + (high - low) * torch.sigmoid(raw)
        else:
            tau = raw.clamp(low, high)
            if bound == "straight_through":
                tau = tau.detach() + (raw - raw.detach())
        return {"temperature": tau * scale}  # tau takes the place of 1 / scale

    def _focus(self, layer: nn.Module, x: Tensor) -> Focus:
        spec = self.attention["focus"]
        weight = layer.weight * layer.scale
        hidden = x.detach() if spec.get("stop_gradient") else x
        shares, members = focus_groups(
            hidden, weight, layer.centroids, bias=-(weight @ layer.mean),
            potentials=layer.potentials if spec.get("assignment", "sinkhorn") == "sinkhorn" else None,
            temperature=spec["temperature"], top_k=spec["top_k"])
        gate = spec["gate"] if self.focus_mode == "configured" else self.focus_mode
        strength = layer.log_strength.clamp(max=math.log(1e4)).exp() if hasattr(layer, "log_strength") else spec["strength"]
        return Focus(shares, members, gate, spec["window"], spec["sinks"], strength, spec["threshold"], spec["epsilon"],
                     spec["top_k"])


def _mean(z: Tensor, given: dict, prefix: bool) -> Tensor:
    """The mean of the tokens so far, or of all; padding does not count."""
    real = torch.ones_like(z) if "documents" not in given else (given["documents"].keys != PADDING).to(z).expand_as(z)
    if not prefix:
        return ((z * real).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)).expand_as(z)
    return (z * real).cumsum(1) / real.cumsum(1).clamp(min=1)
