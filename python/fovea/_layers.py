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

from ._settings import Focus, HeadMix, MultiToken
from .focus import focus_groups

CONTAINERS = ("temperature", "key_query_before", "key_query_after", "head_mix_before", "head_mix_after", "focus")
STATE = {"potentials", "mean", "scale", "updates"}  # of Focus: no gradient reaches them
# Keys of `attention` that no layer here computes, with the inner key that switches each on.
_REFUSED = {"differential": None, "longformer": "window", "routing": "clusters", "performer": "features",
            "magic_pig": "bits", "sparq": "components", "streaming": "recent", "blocks": "size", "dropout": None,
            "own": "name"}
PADDING = -1  # the document of padding


def refuse(text: str) -> None:
    raise NotImplementedError(f"[fovea.transformers] {text}")


def _is_on(value, key: Optional[str]) -> bool:
    return bool(value.get(key) if isinstance(value, dict) and key else value)


def check_attention(attention: dict) -> None:
    """Refuses the settings of a layer that are not computed here, by name."""
    for key, inner in _REFUSED.items():
        if key in attention and _is_on(attention[key], inner):
            refuse(f"expected temperature, multi_token, head_mix and focus; got {key}: {attention[key]}, which this "
                   "package does not put on a transformers model")
    shift, output = attention.get("kv_shift", {}), attention.get("head_output", {})
    of_output = any(output.get(n, "none") != "none" for n in ("norm", "gate", "depth_scale"))
    if shift.get("keys") or shift.get("values") or of_output:
        refuse("expected temperature, multi_token, head_mix and focus; got kv_shift or head_output")
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


def shapes_of(attention: dict, layer: int, width: int, heads: int) -> dict[str, tuple[int, ...]]:
    """The tensors that the settings give a layer."""
    def here(of: dict) -> bool:
        return not of.get("layers") or layer in of["layers"]

    shapes, temperature = {}, attention.get("temperature", {})
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
        module.register_forward_pre_hook(self._keep_input, with_kwargs=True)
        module.fovea = self

    def _keep_input(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        self.input = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]

    def reads_text(self, module: nn.Module) -> list[str]:
        """Mechanisms of this layer that read earlier tokens, which a cache of keys and values does not have."""
        found = [name for name in CONTAINERS if hasattr(module, name) and name != "temperature" and "mix" not in name]
        if hasattr(module, "temperature") and self.attention["temperature"].get("form", "prefix") in ("prefix", "sequence"):
            found.append("temperature")
        return found

    def settings(self, module: nn.Module, query: Tensor, keys: int, scale: float, given: dict) -> dict:
        """Settings of fovea.attention for this call; `given`: those that transformers asks for."""
        x, self.input = self.input, None
        has = {name: getattr(module, name) for name in CONTAINERS if hasattr(module, name)}
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
