#!/usr/bin/env python3
"""Writes the golden attention cases of tests/golden/attention/ with nothing but NumPy.

An implementation of the formulas of docs/attention-case.md for itself: float64, one query row at a time, gradients written out by
hand. It shares no code with the library. Run it from anywhere: python3 tests/golden/make_attention_cases.py [folder]

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
import json
import math
import pathlib
import struct
import sys

import numpy as np


# Counter-based random bits: Philox 4x32-10 and the two uses of it (mixing seeds, dropout).
def philox(key, low, high):
    mask = 0xFFFFFFFF
    k0, k1 = key & mask, key >> 32
    c = [low & mask, low >> 32, high & mask, high >> 32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k0, p1 & mask, (p0 >> 32) ^ c[3] ^ k1, p0 & mask]
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return c


def kept(seed, row, layer, head, i, j, p):
    mixed = philox(seed, row, 0x466F766561)
    bits = philox(mixed[1] << 32 | mixed[0], i << 32 | j >> 2, layer << 32 | head)
    return (bits[j & 3] >> 8) / 2**24 >= np.float32(p)


def allowed(mask, i, j):
    """May a query at position i see a key at position j of the same document?"""
    if mask.get("causal", True) and j > i:
        return False
    if j < mask.get("sinks", 0) and j <= i:
        return True
    window, sparsity = mask.get("window", 0), mask.get("sparsity", "full")
    if sparsity == "strided":
        return abs(i - j) < window or abs(i - j) % mask["stride"] == 0
    if sparsity == "fixed":
        block, summary = mask["block"], mask.get("summary", 0)
        return i // block == j // block or j % block >= block - summary
    return window == 0 or abs(i - j) < window


def alibi_slopes(heads):
    power = 2 ** int(math.log2(heads))
    first = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    second = [2 ** (-8 * (h + 1) / (2 * power)) for h in range(2 * power)]
    return first + second[0::2][: heads - power]


def t5_bucket(distance, buckets, furthest, causal):
    offset = 0
    if not causal:
        buckets //= 2
        offset = buckets if distance < 0 else 0
        distance = abs(distance)
    distance, exact = max(distance, 0), buckets // 2
    if distance < exact:
        return offset + distance
    grown = exact + int((buckets - exact) * math.log(distance / exact) / math.log(furthest / exact))
    return offset + min(grown, buckets - 1)


def attend(spec, x, metadata):
    """Output, lse and every gradient of sum(out * grad_out) + sum(lse * grad_lse)."""
    q, k, v = x["q"], x["k"], x["v"]
    (b, h, t, d), s = q.shape, k.shape[2]
    repeat, temperature, mask = h // k.shape[1], spec.get("temperature", {}), spec.get("mask", {})
    learned, cap, bias = temperature.get("kind") == "learned", spec.get("soft_cap", 0.0), spec.get("bias", {})
    scale = (spec.get("scale", 0.0) or 1 / math.sqrt(d)) / temperature.get("value", 1.0)
    slopes = alibi_slopes(h)
    places = lambda name, length, start: x.get(name, np.arange(start, start + length))
    qp, kp = places("query_positions", t, s - t), places("key_positions", s, 0)
    qd, kd = x.get("query_documents", np.zeros(t)), x.get("key_documents", np.zeros(s))
    out, lse = np.zeros((b, h, t, v.shape[3])), np.full((b, h, t), -np.inf)
    grads = {name: np.zeros_like(x[name]) for name in ("q", "k", "v", "tau", "bias_table", "sink_logit") if name in x}
    grad_out, grad_lse = x["grad_out"], x.get("grad_lse", np.zeros((b, h, t)))
    for n, head, row in np.ndindex(b, h, t):
        g = head // repeat
        seen = [c for c in range(s) if qd[row] == kd[c] and allowed(mask, qp[row], kp[c])]
        distance = np.array([qp[row] - kp[c] for c in seen])
        raw = k[n, g, seen] @ q[n, head, row]
        factor = 1 / x["tau"][n, row] if learned else scale
        scaled = raw * factor
        logits = cap * np.tanh(scaled / cap) if cap else scaled.copy()
        if bias.get("kind") == "alibi":
            logits -= slopes[head] * distance
        if bias.get("kind") == "t5":
            bucket = [t5_bucket(m, bias.get("buckets", 32), bias.get("max_distance", 128), mask.get("causal", True)) for m in distance]
            logits += x["bias_table"][bucket, head]
        sink = [x["sink_logit"][head]] if spec.get("sink_logit") else []
        everything = np.concatenate([logits, sink])
        if everything.size == 0:
            continue
        top = everything.max()
        lse[n, head, row] = top + np.log(np.exp(everything - top).sum())
        p = np.exp(logits - lse[n, head, row])
        factors = np.ones(len(seen))
        if "dropout_seed" in metadata:
            rate, layer = spec["dropout"], int(metadata.get("layer", 0))
            survive = [kept(int(metadata["dropout_seed"]), n, layer, head, s - t + row, c, rate) for c in seen]
            factors = np.where(survive, 1 / (1 - rate), 0.0)
        out[n, head, row] = (p * factors) @ v[n, g, seen]
        # Backward, stage by stage.
        upstream, into_lse = grad_out[n, head, row], grad_lse[n, head, row]
        grad_p = (v[n, g, seen] @ upstream) * factors
        mean = (p * grad_p).sum()
        grad_logits = p * (grad_p - mean + into_lse)
        if sink:
            grads["sink_logit"][head] += np.exp(sink[0] - lse[n, head, row]) * (into_lse - mean)
        if bias.get("kind") == "t5":
            np.add.at(grads["bias_table"][:, head], bucket, grad_logits)
        grad_scaled = grad_logits * (1 - np.tanh(scaled / cap) ** 2 if cap else 1)
        if learned:
            grads["tau"][n, row] -= (grad_scaled * scaled).sum() / x["tau"][n, row]
        grads["q"][n, head, row] = factor * (grad_scaled @ k[n, g, seen])
        for c, weight in zip(seen, grad_scaled * factor):
            grads["k"][n, g, c] += weight * q[n, head, row]
        for c, weight in zip(seen, p * factors):
            grads["v"][n, g, c] += weight * upstream
    return {"out": out, "lse": lse, **{"grad_" + name: grad for name, grad in grads.items()}}


def write_safetensors(path, tensors, metadata):
    header, blob = {"__metadata__": metadata}, b""
    for name, array in sorted(tensors.items()):
        data = np.ascontiguousarray(array).tobytes()
        dtype = "I64" if array.dtype == np.int64 else "F64"
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(blob), len(blob) + len(data)]}
        blob += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + blob)


def packed(*lengths):
    documents = np.concatenate([np.full(n, label, np.int64) for label, n in enumerate(lengths)])
    positions = np.concatenate([np.arange(n, dtype=np.int64) for n in lengths])
    return {"query_documents": documents, "key_documents": documents, "query_positions": positions, "key_positions": positions}


LEARNED = {"kind": "learned"}
# name: (spec, sizes (b, t, s), places, metadata)
CASES = {
    "plain_mha": ({"heads": 2, "kv_heads": 2, "head_dim": 8}, (2, 7, 7), {}, {}),
    "gqa_packed": ({"heads": 4, "kv_heads": 2, "head_dim": 8}, (1, 9, 9), packed(4, 1, 4), {}),
    "mqa_last_queries": ({"heads": 3, "kv_heads": 1, "head_dim": 8, "value_dim": 5}, (1, 3, 8), {}, {}),
    "focal_constant": ({"heads": 2, "kv_heads": 1, "head_dim": 8, "temperature": {"value": 0.4}}, (1, 8, 8), {}, {}),
    "focal_learned_packed": ({"heads": 2, "kv_heads": 1, "head_dim": 8, "temperature": LEARNED}, (2, 7, 7), packed(3, 4), {}),
    "soft_cap": ({"heads": 2, "kv_heads": 2, "head_dim": 8, "soft_cap": 1.5, "scale": 0.6}, (1, 7, 7), {}, {}),
    "alibi_12_heads": ({"heads": 12, "kv_heads": 3, "head_dim": 4, "bias": {"kind": "alibi"}}, (1, 6, 6), {}, {}),
    "t5": ({"heads": 2, "kv_heads": 2, "head_dim": 8, "scale": 1.0,
            "bias": {"kind": "t5", "buckets": 8, "max_distance": 12}}, (1, 14, 14), {}, {}),
    "t5_bidirectional": ({"heads": 2, "kv_heads": 1, "head_dim": 4, "mask": {"causal": False},
                          "bias": {"kind": "t5", "buckets": 8, "max_distance": 12}}, (1, 14, 14), {}, {}),
    "window_sinks": ({"heads": 2, "kv_heads": 1, "head_dim": 8, "mask": {"window": 3, "sinks": 2}}, (1, 12, 12), {}, {}),
    "strided": ({"heads": 2, "kv_heads": 1, "head_dim": 4,
                 "mask": {"sparsity": "strided", "window": 2, "stride": 3}}, (1, 12, 12), {}, {}),
    "fixed": ({"heads": 2, "kv_heads": 1, "head_dim": 4,
               "mask": {"sparsity": "fixed", "block": 4, "summary": 1}}, (1, 12, 12), {}, {}),
    "sink_logit": ({"heads": 2, "kv_heads": 1, "head_dim": 8, "sink_logit": True}, (1, 7, 7), {}, {}),
    "empty_rows": ({"heads": 2, "kv_heads": 1, "head_dim": 4}, (1, 4, 4),
                   {"query_documents": np.array([0, 7, 0, 0]), "key_documents": np.array([0, 0, 0, 0])}, {}),
    "dropout": ({"heads": 2, "kv_heads": 1, "head_dim": 4, "dropout": 0.3}, (2, 6, 6), {}, {"dropout_seed": "12345", "layer": "3"}),
    "everything": ({"heads": 4, "kv_heads": 2, "head_dim": 8, "temperature": LEARNED, "soft_cap": 2.0, "sink_logit": True,
                    "bias": {"kind": "alibi"}, "mask": {"window": 4, "sinks": 1}}, (1, 10, 10), packed(6, 4), {}),
}


def make(index, spec, sizes, places, metadata):
    random, (b, t, s) = np.random.default_rng(1000 + index), sizes
    h, g, d, e = spec["heads"], spec["kv_heads"], spec["head_dim"], spec.get("value_dim", spec["head_dim"])
    x = {"q": random.normal(size=(b, h, t, d)), "k": random.normal(size=(b, g, s, d)), "v": random.normal(size=(b, g, s, e)),
         "grad_out": random.normal(size=(b, h, t, e)), **places}
    if index % 2 == 0:  # the others leave the gradient of lse out, so that fast paths may run
        x["grad_lse"] = random.normal(size=(b, h, t))
    if spec.get("temperature") == LEARNED:
        x["tau"] = random.uniform(1.5, 4.0, size=(b, t))
    if spec.get("bias", {}).get("kind") == "t5":
        x["bias_table"] = random.normal(size=(spec["bias"]["buckets"], h))
    if spec.get("sink_logit"):
        x["sink_logit"] = random.normal(size=h)
    if "grad_lse" in x:  # a row without a key has no finite lse, so nothing flows into it
        empty = np.isneginf(attend(spec, x, metadata)["lse"])
        x["grad_lse"][empty] = 0.0
    expected = {"expected_" + name: value for name, value in attend(spec, x, metadata).items()}
    return {**x, **expected}


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "attention"
    folder.mkdir(parents=True, exist_ok=True)
    for index, (name, (spec, sizes, places, metadata)) in enumerate(CASES.items()):
        tensors = make(index, spec, sizes, places, metadata)
        write_safetensors(folder / f"{name}.safetensors", tensors, {"attention_spec": json.dumps(spec), **metadata})


if __name__ == "__main__":
    main()
