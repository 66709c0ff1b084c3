"""Case files (docs/attention-case.md) as calls of fovea.attention.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
import torch

import fovea


def _pattern(spec, x):
    on = {name: spec[name] for name, key in (("routing", "clusters"), ("performer", "features"), ("sparq", "components"),
                                             ("magic_pig", "bits"), ("streaming", "recent"), ("longformer", "window"),
                                             ("blocks", "size")) if spec.get(name, {}).get(key)}
    for name, own in on.items():
        if name == "routing":
            return {name: fovea.Routing(x["query_routes"], x["key_routes"], own.get("keep", 256), own.get("choice", "recent"),
                                        x.get("key_nearness"))}
        if name == "performer":
            return {name: fovea.Performer(x["features"], own.get("stabiliser", "running"), own.get("epsilon", 0.0))}
        if name == "streaming":
            return {name: fovea.Streaming(x["start_queries"], own["recent"], own.get("start", 4))}
        if name == "blocks":
            return {name: fovea.Blocks(own["size"], list(zip(own["pairs"][::2], own["pairs"][1::2])))}
        if name == "longformer":
            dilation = own.get("dilation") or [1]
            return {name: fovea.Longformer(own["window"], tuple(dilation) if len(dilation) > 1 else dilation[0],
                                           own.get("globals", 0), tuple(own.get("global_positions", ())),
                                           *(x.get(f"global_{n}") for n in ("queries", "keys", "values")))}
        return {name: (fovea.Sparq if name == "sparq" else fovea.MagicPig)(**own)}
    return {}


def _focus(spec, x):
    names = ("gate", "window", "sinks", "threshold", "epsilon", "top_k")
    given = {n: spec[n] for n in names if n in spec}
    strength = x["focus_strength"] if "focus_strength" in x else spec.get("strength", 10.0)
    return fovea.Focus(x.get("groups"), x.get("members"), strength=strength, **given)


def _sparsity(mask):
    kind = mask.get("sparsity", "full")
    if kind == "full":
        return None
    return fovea.Strided(mask["stride"]) if kind == "strided" else fovea.Fixed(mask["block"], mask["summary"])


def settings_of(spec, x, metadata):
    """Settings of fovea.attention; x: the tensors of the case."""
    mask, tokens, output = spec.get("mask", {}), spec.get("multi_token", {}), spec.get("head_output", {})
    causal, scale = mask.get("causal", True), spec.get("scale", 0.0) or spec["head_dim"] ** -0.5
    settings = {"causal": causal, "scale": scale, "window": mask.get("window", 0), "sinks": mask.get("sinks", 0),
                "softcap": spec.get("soft_cap", 0.0), "sink_logit": x.get("sink_logit"), **_pattern(spec, x)}
    settings["sparsity"] = _sparsity(mask)
    if "dropout_seed" in metadata:
        settings["dropout"] = fovea.Dropout(spec["dropout"], int(metadata["dropout_seed"]), int(metadata.get("layer", 0)))
    settings["temperature"] = x["tau"] * scale if "tau" in x else spec.get("temperature", {}).get("value")
    for name in ("query_positions", "key_positions"):
        settings[name] = x.get(name)
    if "query_documents" in x:
        settings["documents"] = fovea.Documents(*(x[n].reshape(-1, x[n].shape[-1]) for n in ("query_documents", "key_documents")))
    kind = spec.get("bias", {}).get("kind", "none")
    if kind != "none":
        settings["bias"] = fovea.Alibi() if kind == "alibi" else fovea.t5_bias(
            x["bias_table"], max_distance=spec["bias"].get("max_distance", 128), causal=causal)
    if "kernel_before" in x or "kernel_after" in x:
        settings["multi_token"] = fovea.MultiToken(x.get("kernel_before"), x.get("kernel_after"),
                                                   tokens.get("equation", "eq5"), tokens.get("renormalise", False))
    if "mix_before" in x or "mix_after" in x:
        settings["head_mix"] = fovea.HeadMix(x.get("mix_before"), x.get("mix_after"))
    if spec.get("focus", {}).get("gate", "none") != "none":
        settings["focus"] = _focus(spec["focus"], x)
    if spec.get("differential"):
        settings["differential"] = fovea.Differential(x["lambda"], spec.get("depth", 0))
    if "key_shift" in x or "value_shift" in x:
        settings["kv_shift"] = fovea.KvShift(x.get("key_shift"), x.get("value_shift"))
    if output:
        settings["head_output"] = fovea.HeadOutput(
            x.get("head_gain"), output.get("norm_eps", 1e-5), output.get("depth_scale", "none"), spec.get("depth", 0),
            x.get("gate_weight"), x.get("gate_bias"))
    return settings


def compute(spec, tensors, dtype, path, metadata):
    """out, lse and grad_<name> of every floating input."""
    x = {n: y.to(dtype) if y.is_floating_point() else y for n, y in tensors.items() if not n.startswith(("expected_", "grad_"))}
    leaves = {n: y.requires_grad_() for n, y in x.items() if y.is_floating_point()}
    out, lse = fovea.attention(x["q"], x["k"], x["v"], **settings_of(spec, x, metadata), return_lse=True, path=path)
    loss = (out * tensors["grad_out"].to(dtype)).sum()
    if "grad_lse" in tensors:
        finite = torch.isfinite(lse)
        loss = loss + (lse[finite] * tensors["grad_lse"].to(dtype)[finite]).sum()
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return {"out": out.detach(), "lse": lse.detach()} | {f"grad_{n}": y for n, y in zip(leaves, grads) if y is not None}
