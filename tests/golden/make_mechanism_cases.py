#!/usr/bin/env python3
"""Writes the golden cases of mechanisms that mix rows and heads (tests/golden/attention/) with PyTorch in float64.

Dense tensors over all pairs, shifts written as loops, gradients by PyTorch's autograd: the formulas of docs/attention-case.md for
itself. It shares no code with the library. Run it with a Python that has torch: python tests/golden/make_mechanism_cases.py [folder]

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
import json
import math
import pathlib
import sys

import numpy as np
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from make_attention_cases import alibi_slopes, allowed, kept, packed, write_safetensors  # noqa: E402


def shifted(x, down, left):
    """y[i, j] = x[i - down, j + left], 0 out of range."""
    y = torch.zeros_like(x)
    rows, columns = x.shape[-2:]
    for i in range(max(0, down), min(rows, rows + down)):
        first, last = max(0, -left), min(columns, columns - left)
        if first < last:
            y[..., i, first:last] = x[..., i - down, first + left : last + left]
    return y


def convolve(x, kernel, same_document, keep):
    """keep(back): the pairs of the row `back` above that count, over (row of the result, key)."""
    cq, ck = kernel.shape[1:]
    total = torch.zeros_like(x)
    for a in range(cq):
        back = cq - 1 - a
        rows = shifted(x, back, 0) * keep(back) * same_document(back)
        for b in range(ck):
            total = total + kernel[:, a, b, None, None] * shifted(rows, 0, b - (ck - 1) // 2)
    return total


def mix(x, matrices, stored):
    n, m = matrices.shape[:2]
    groups = x.unflatten(1, (n, m))
    letters = "noc" if stored == "out, in" else "nco"
    return torch.einsum(f"{letters},bncij->bnoij", matrices, groups).flatten(1, 2)


def head_output(spec, x, out):
    s = spec.get("head_output", {})
    if s.get("norm") == "rms":
        out = out / torch.sqrt((out**2).mean(-1, keepdim=True) + s.get("norm_eps", 1e-5)) * x["head_gain"]
    depth = spec.get("depth", 0)
    out = out * {"none": 1, "lambda": 0.2 + 0.6 * math.exp(-0.3 * depth), "inverse_sqrt": (depth + 1) ** -0.5}[s.get("depth_scale", "none")]
    if s.get("gate") == "scalar":
        out = out * torch.sigmoid((out * x["gate_weight"]).sum(-1, keepdim=True) + x["gate_bias"])
    if s.get("gate") == "full":
        out = out * torch.sigmoid(torch.einsum("oc,bhtc->bhto", x["gate_weight"], out) + x["gate_bias"])
    return out


def differential(spec, x, places, metadata):
    """Two maps with keys of their own (query heads 2h + m, key heads 2 (h // n_rep) + m) and one value head."""
    inner = {**spec, "differential": False, "heads": spec["heads"] // 2, "kv_heads": spec["kv_heads"] // 2, "head_output": {}}
    maps = [attend(inner, {**x, "q": x["q"][:, m::2], "k": x["k"][:, m::2]}, places, metadata) for m in (0, 1)]
    q1, k1, q2, k2 = x["lambda"]
    start = 0.8 - 0.6 * math.exp(-0.3 * spec.get("depth", 0))
    factor = torch.exp((q1 * k1).sum()) - torch.exp((q2 * k2).sum()) + start
    lse = torch.stack([maps[0][1], maps[1][1]], 2).flatten(1, 2)
    return head_output(spec, x, maps[0][0] - factor * maps[1][0]), lse


def focus_pairs(spec, x, qp, kp):
    """(local, agreement, meeting) of all pairs: near or sink; g_i.g_j; a common group."""
    f, t, s = spec["focus"], len(qp), len(kp)
    local = torch.tensor([[bool(qp[i] - kp[j] < f["window"] or kp[j] < f["sinks"]) for j in range(s)] for i in range(t)])
    agreement = torch.einsum("bik,bjk->bij", x["groups"][:, s - t :], x["groups"])[:, None] if "groups" in x else None
    meeting = None
    if "members" in x:
        sets = [{k for k in range(64) if int(m) >> k & 1} for m in x["members"][0]]
        meeting = torch.tensor([[bool(sets[s - t + i] & sets[j]) for j in range(s)] for i in range(t)])
    return local, agreement, meeting


def gate(spec, x, logits, local, a):
    f = spec["focus"]
    strength = x.get("focus_strength", torch.tensor(f.get("strength", 10.0)))
    gated = {"mul": lambda: logits * torch.sigmoid(strength * a),
             "log": lambda: logits + torch.log(a + 1e-6),
             "logsig": lambda: logits + torch.log(torch.sigmoid(strength * (a - 0.5))),
             "identity": lambda: logits + torch.log(f["groups"] * a + 1e-6)}[f["gate"]]()
    return torch.where(local, logits, gated)


def attend(spec, x, places, metadata):
    if spec.get("differential"):
        return differential(spec, x, places, metadata)
    q, k, v = x["q"], x["k"], x["v"]
    (b, h, t, d), s = q.shape, k.shape[2]
    k, v = (y.repeat_interleave(h // y.shape[1], 1) for y in (k, v))
    qp, kp = places.get("query_positions", np.arange(s - t, s)), places.get("key_positions", np.arange(s))
    qd, kd = places.get("query_documents", np.zeros(t)), places.get("key_documents", np.zeros(s))
    mask = spec.get("mask", {})
    seen = torch.tensor([[bool(qd[i] == kd[j]) and allowed(mask, qp[i], kp[j]) for j in range(s)] for i in range(t)])
    focus_gate = spec.get("focus", {}).get("gate")
    if focus_gate:
        local, agreement, meeting = focus_pairs(spec, x, qp, kp)
        seen = seen & (local | meeting) if focus_gate == "hard" else seen
    same = torch.tensor([[float(qd[r] == qd[i]) for r in range(t)] for i in range(t)]).double()

    def same_document(back):
        return torch.tensor([same[i, i - back] if i >= back else 0.0 for i in range(t)]).double()[:, None]

    def own_row(back):
        return shifted(seen.double()[None], back, 0)[0]

    logits = q @ k.mT
    temperature = spec.get("temperature", {})
    if temperature.get("kind") == "learned":
        logits = logits / x["tau"][:, None, :, None]
    else:
        logits = logits / math.sqrt(d) / temperature.get("value", 1.0)
    if spec.get("soft_cap"):
        logits = spec["soft_cap"] * torch.tanh(logits / spec["soft_cap"])
    tokens = spec.get("multi_token", {})
    if "kernel_before" in x:
        keep = (lambda back: seen.double()) if tokens.get("equation") == "eq4" else own_row
        logits = convolve(logits, x["kernel_before"], same_document, keep)
    if "mix_before" in x:
        logits = mix(logits, x["mix_before"], "out, in")
    if focus_gate and focus_gate != "hard":
        logits = gate(spec, x, logits, local, agreement)
    if spec.get("bias", {}).get("kind") == "alibi":
        distance = torch.tensor(np.subtract.outer(qp, kp)).double()
        logits = logits - torch.tensor(alibi_slopes(h)).double()[:, None, None] * distance
    logits = logits.masked_fill(~seen, -math.inf)
    everything = logits
    if spec.get("sink_logit"):
        everything = torch.cat([logits, x["sink_logit"][None, :, None, None].expand(b, h, t, 1)], -1)
    lse = torch.logsumexp(everything, -1)
    weights = torch.exp(logits - lse[..., None])
    if "kernel_after" in x:
        weights = convolve(weights, x["kernel_after"], same_document, own_row) * seen
        if tokens.get("renormalise"):
            weights = weights / weights.sum(-1, keepdim=True)
    if "mix_after" in x:
        weights = mix(weights, x["mix_after"], "in, out")
    if "dropout_seed" in metadata:
        rate, seed, layer = spec["dropout"], int(metadata["dropout_seed"]), int(metadata.get("layer", 0))
        survive = [kept(seed, n, layer, head, s - t + i, j, rate) for n, head, i, j in np.ndindex(b, h, t, s)]
        weights = weights * torch.tensor(survive).double().view(b, h, t, s) / (1 - rate)
    return head_output(spec, x, weights @ v), lse


TWO = {"heads": 2, "kv_heads": 1, "head_dim": 4}
FOUR = {"heads": 4, "kv_heads": 2, "head_dim": 4}
GROUPS = {"groups": 4, "top_k": 1, "window": 3, "sinks": 1}
CASES = {
    "mta_before": ({**TWO, "multi_token": {"before": {"queries": 3, "keys": 5}}}, (1, 9), {}, {}),
    "mta_even_packed": ({**TWO, "multi_token": {"before": {"queries": 2, "keys": 4}, "after": {"queries": 3, "keys": 2}}},
                        (2, 9), packed(4, 5), {}),
    "mta_eq4_packed": ({**TWO, "multi_token": {"before": {"queries": 3, "keys": 5}, "equation": "eq4"}}, (1, 9), packed(5, 4), {}),
    "mta_paper": ({**FOUR, "multi_token": {"before": {"queries": 6, "keys": 11}, "after": {"queries": 6, "keys": 11}},
                   "head_mix": {"before": "full", "after": "groups", "group": 2},
                   "head_output": {"norm": "rms", "gate": "scalar"}}, (1, 14), {}, {}),
    "mta_window_sinks": ({**TWO, "multi_token": {"before": {"queries": 3, "keys": 4}, "after": {"queries": 2, "keys": 3},
                                                 "renormalise": True},
                          "mask": {"window": 4, "sinks": 2}, "soft_cap": 3.0, "temperature": {"kind": "learned"},
                          "bias": {"kind": "alibi"}, "sink_logit": True}, (1, 16), {}, {}),
    "talking_heads": ({**FOUR, "head_mix": {"before": "full", "after": "full"}}, (2, 7), {}, {}),
    "head_norm_depth_full_gate": ({**TWO, "value_dim": 5, "depth": 3,
                                   "head_output": {"norm": "rms", "depth_scale": "lambda", "gate": "full"}}, (1, 6), {}, {}),
    "differential_gqa_packed": ({**FOUR, "heads": 8, "kv_heads": 4, "differential": True, "depth": 2, "soft_cap": 4.0,
                                 "head_output": {"norm": "rms", "depth_scale": "lambda"}}, (1, 9), packed(4, 5), {}),
    "differential": ({**FOUR, "differential": True, "depth": 1, "head_output": {"depth_scale": "lambda"}}, (2, 9), {}, {}),
    "head_mix_dropout": ({**TWO, "head_mix": {"after": "full"}, "dropout": 0.3}, (2, 6), {}, {"dropout_seed": "77", "layer": "1"}),
    "focus_log_packed": ({**TWO, "focus": {"gate": "log", **GROUPS}}, (2, 12), packed(7, 5), {}),
    "focus_mul_cap_alibi": ({**TWO, "focus": {"gate": "mul", **GROUPS}, "soft_cap": 3.0, "bias": {"kind": "alibi"}}, (1, 10), {}, {}),
    "focus_logsig": ({**TWO, "focus": {"gate": "logsig", **GROUPS}, "sink_logit": True}, (1, 10), {}, {}),
    "focus_identity": ({**FOUR, "focus": {"gate": "identity", **GROUPS}}, (2, 9), {}, {}),
    "focus_hard": ({**FOUR, "focus": {"gate": "hard", **GROUPS}}, (1, 14), {}, {}),
    "focus_hard_mta_window": ({**TWO, "focus": {"gate": "hard", **GROUPS}, "mask": {"window": 8, "sinks": 2},
                               "multi_token": {"before": {"queries": 2, "keys": 3}, "after": {"queries": 2, "keys": 2}},
                               "temperature": {"kind": "learned"}}, (1, 16), {}, {}),
}


def value_width(spec):
    return spec.get("value_dim", spec["head_dim"] * (2 if spec.get("differential") else 1))


def stage_tensors(spec, random, b, t):
    h, e, x = spec["heads"], value_width(spec), {}
    if spec.get("differential"):
        x["lambda"] = random.normal(size=(4, spec["head_dim"])) * 0.4
    for where in ("before", "after"):
        extent = spec.get("multi_token", {}).get(where)
        if extent:
            x["kernel_" + where] = random.normal(size=(h, extent["queries"], extent["keys"])) * 0.4
            if where == "after" and spec["multi_token"].get("renormalise"):
                x["kernel_after"] = np.abs(x["kernel_after"]) + 0.1
        m = {"none": 0, "full": h, "groups": spec.get("head_mix", {}).get("group", 0)}[spec.get("head_mix", {}).get(where, "none")]
        if m:
            x["mix_" + where] = random.normal(size=(h // m, m, m))
    focus = spec.get("focus", {})
    if focus.get("gate", "hard") != "hard":
        scores = random.normal(size=(b, t, focus["groups"]))
        x["groups"] = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    if focus.get("gate") == "hard":
        x["members"] = 1 << random.integers(focus["groups"], size=(b, t))
    if focus.get("gate") == "logsig":
        x["focus_strength"] = np.asarray(4.0)
    output = spec.get("head_output", {})
    if output.get("norm") == "rms":
        x["head_gain"] = random.normal(size=e)
    if output.get("gate", "none") != "none":
        full = output["gate"] == "full"
        x["gate_weight"], x["gate_bias"] = random.normal(size=(e, e) if full else e), random.normal(size=(e,) if full else ())
    if spec.get("temperature", {}).get("kind") == "learned":
        x["tau"] = random.uniform(1.5, 4.0, size=(b, t))
    if spec.get("sink_logit"):
        x["sink_logit"] = random.normal(size=h)
    return x


def make(index, spec, sizes, places, metadata):
    random, (b, t) = np.random.default_rng(2000 + index), sizes
    h, g, d, e = spec["heads"], spec["kv_heads"], spec["head_dim"], value_width(spec)
    value_heads = g // 2 if spec.get("differential") else g
    x = {"q": random.normal(size=(b, h, t, d)), "k": random.normal(size=(b, g, t, d)),
         "v": random.normal(size=(b, value_heads, t, e)),
         **stage_tensors(spec, random, b, t)}
    leaves = {name: torch.tensor(value, dtype=torch.float64).requires_grad_() for name, value in x.items() if name != "members"}
    numbers = {name: torch.tensor(value) for name, value in x.items() if name == "members"}
    out, lse = attend(spec, leaves | numbers, places, metadata)
    grads = {"grad_out": random.normal(size=tuple(out.shape))}
    total = (out * torch.tensor(grads["grad_out"])).sum()
    if index % 2 == 0:
        grads["grad_lse"] = random.normal(size=tuple(lse.shape))
        total = total + (lse * torch.tensor(grads["grad_lse"])).sum()
    total.backward()
    expected = {"expected_out": out.detach().numpy(), "expected_lse": lse.detach().numpy()}
    expected |= {"expected_grad_" + name: leaf.grad.numpy() for name, leaf in leaves.items()}
    return {**x, **grads, **places, **expected}


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "attention"
    folder.mkdir(parents=True, exist_ok=True)
    for index, (name, (spec, sizes, places, metadata)) in enumerate(CASES.items()):
        tensors = make(index, spec, sizes, places, metadata)
        write_safetensors(folder / f"{name}.safetensors", {n: np.asarray(a) for n, a in tensors.items()},
                          {"attention_spec": json.dumps(spec), **metadata})


if __name__ == "__main__":
    main()
