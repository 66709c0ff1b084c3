#!/usr/bin/env python3
"""The fused pointwise attention of fovea/kernels/cpu/attention_*.h in NumPy: the same loops, in the same order.

For reading. The blocks are small, so that even small cases have several; tests/peers/check_example.py runs the case files
of tests/golden/attention with it, forward and backward. `run` says what goes in and comes out (docs/attention-case.md).

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
import numpy as np

ROWS, TILE, SAFE = 4, 3, 2.0**64  # query rows of a block, keys of a tile, the largest sum that is trusted


def philox(key, low, high):
    """Philox 4x32-10 over arrays of counters: [..., 4] words. Dropout is a function of places alone (base/rng.h)."""
    key, low, high = (np.asarray(x, np.uint64) for x in (key, low, high))
    k, mask, half = [key & 0xFFFFFFFF, key >> np.uint64(32)], np.uint64(0xFFFFFFFF), np.uint64(32)
    c = list(np.broadcast_arrays(low & mask, low >> half, high & mask, high >> half))
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [p1 >> half ^ c[1] ^ k[0], p1 & mask, p0 >> half ^ c[3] ^ k[1], p0 & mask]
        k = [k[0] + np.uint64(0x9E3779B9) & mask, k[1] + np.uint64(0xBB67AE85) & mask]
    return np.stack(c, -1)


class Head:
    """One head of one sequence: from places and raw products to logits (stages 1, 2, 5, 6 and dropout)."""

    def __init__(self, case, spec, meta, b, h):
        heads, self.mask, bias = spec["heads"], spec.get("mask", {}), spec.get("bias", {})
        t, s, d = case["q"].shape[2], case["k"].shape[2], spec["head_dim"]
        place = lambda name, default: np.broadcast_to(case.get(name, default), (len(case["q"]), len(default)))[b]
        self.i, self.j = place("query_positions", np.arange(s - t, s)), place("key_positions", np.arange(s))
        self.documents = place("query_documents", np.zeros(t)), place("key_documents", np.zeros(s))
        temperature = spec.get("temperature", {}).get("value", 1.0)
        self.scale = 1 / case["tau"][b] if "tau" in case else np.full(t, (spec.get("scale") or d**-0.5) / temperature)
        self.cap, self.alibi, self.table, self.kind = spec.get("soft_cap", 0.0), 0.0, np.zeros(0), bias.get("kind")
        if self.kind == "alibi":
            power = 2 ** int(np.log2(heads))
            self.alibi = 2.0 ** (-8 * (h + 1) / power if h < power else -8 * (2 * (h - power) + 1) / (2 * power))
        if self.kind == "t5":
            self.table, self.buckets, self.far = case["bias_table"][:, h], bias["buckets"], bias["max_distance"]
        self.sink = case["sink_logit"][h] if "sink_logit" in case else -np.inf
        self.drop = spec.get("dropout", 0.0) if "dropout_seed" in meta else 0.0
        words = philox(int(meta.get("dropout_seed", 0)), b, 0x466F766561)
        self.seed, self.stream = int(words[1]) << 32 | int(words[0]), int(meta.get("layer", 0)) << 32 | h
        self.first = s - t  # index of query 0 in the sequence

    def seen(self, r, c):
        i, j, get = self.i[r][:, None], self.j[c][None], self.mask.get
        near = abs(i - j) < (get("window") or (1 << 60 if get("sparsity", "full") == "full" else 0))
        if get("sparsity") == "strided":
            near |= abs(i - j) % get("stride") == 0
        if get("sparsity") == "fixed":
            near = (i // get("block") == j // get("block")) | (j % get("block") >= get("block") - get("summary"))
        near |= (j < get("sinks", 0)) & (j <= i)
        return near & ((j <= i) | (not get("causal", True))) & (self.documents[0][r][:, None] == self.documents[1][c])

    def bucket(self, distance):
        causal = self.mask.get("causal", True)
        count = self.buckets if causal else self.buckets // 2
        n, exact = np.clip(distance if causal else abs(distance), 0, self.far), count // 2
        large = exact + ((count - exact) * (np.log(np.maximum(n, 1) / exact) / np.log(self.far / exact))).astype(int)
        return np.where(n < exact, n, np.minimum(large, count - 1)) + (0 if causal else (distance < 0) * count)

    def logits(self, raw, r, c):
        """Logits with -inf where unseen, and d logit / d (scaled product)."""
        x, slope, distance = raw * self.scale[r][:, None], np.ones_like(raw), self.i[r][:, None] - self.j[c][None]
        if self.cap:
            slope = 1 - np.tanh(x / self.cap) ** 2
            x = self.cap * np.tanh(x / self.cap)
        x = x - self.alibi * distance + (self.table[self.bucket(distance)] if self.kind == "t5" else 0.0)
        return np.where(self.seen(r, c), x, -np.inf), slope

    def keep(self, r, c):
        """The factors of dropout; four neighbouring keys share a block of random words."""
        i, j = np.ogrid[r.start + self.first : r.stop + self.first, c.start : c.stop]
        words = philox(self.seed, i << 32 | j >> 2, self.stream)[np.arange(len(i))[:, None], np.arange(j.size), j & 3]
        return np.where((words >> np.uint64(8)) * 2.0**-24 >= np.float32(self.drop), 1 / (1 - self.drop), 0.0)


def forward(head, q, k, v):
    """out and lse of one head. Tiles from the nearest keys backwards; no pass for the maximum, no rescaling."""
    t, s = len(q), len(k)
    out, lse = np.zeros((t, v.shape[1])), np.full(t, -np.inf)
    tiles = [slice(n, min(n + TILE, s)) for n in range(0, s, TILE)]
    for n in range(0, t, ROWS):
        r = slice(n, min(n + ROWS, t))
        visited = [c for c in tiles if head.seen(r, c).any()]  # masked-out tiles cost nothing
        reference = np.full(r.stop - n, np.nan)  # of a row: its largest logit in the first tile where it sees a key
        while True:
            total, sums = np.zeros(len(reference)), np.zeros((len(reference), v.shape[1]))
            for c in reversed(visited):
                x, _ = head.logits(q[r] @ k[c].T, r, c)
                top = x.max(1)
                reference = np.where(np.isnan(reference) & (top > -np.inf), top, reference)
                p = np.exp(x - np.nan_to_num(reference)[:, None])
                total += p.sum(1)  # the exponent of the numbers absorbs what grows
                sums += p * (head.keep(r, c) if head.drop else 1.0) @ v[c]
            unsafe = ~(total < SAFE)
            if not unsafe.any():
                break
            exact = np.max([head.logits(q[r] @ k[c].T, r, c)[0].max(1) for c in visited], axis=0)
            reference = np.where(unsafe, exact, reference)  # once more, with exact maxima for these rows
        reference = np.nan_to_num(reference)
        with np.errstate(divide="ignore"):
            lse[r] = np.logaddexp(reference + np.log(total), head.sink)  # the sink: one more key, with value 0
        out[r] = sums * np.exp(reference - np.where(total > 0, lse[r], np.inf))[:, None]
    return out, lse


def backward(head, q, k, v, out, lse, dout, dlse):
    """All gradients of one head; P is recomputed from lse. Keys outside, queries inside: dk and dv stay in place."""
    g = {name: np.zeros_like(x) for name, x in (("q", q), ("k", k), ("v", v), ("bias_table", head.table))}
    delta, safe = (dout * out).sum(1) - dlse, np.where(lse > -np.inf, lse, np.inf)
    for c in (slice(n, min(n + TILE, len(k))) for n in range(0, len(k), TILE)):
        for r in (slice(n, min(n + ROWS, len(q))) for n in range(0, len(q), ROWS)):
            if not head.seen(r, c).any():
                continue
            x, slope = head.logits(q[r] @ k[c].T, r, c)
            p, z = np.exp(x - safe[r][:, None]), head.keep(r, c) if head.drop else 1.0
            ds = p * (z * (dout[r] @ v[c].T) - delta[r][:, None])
            if head.kind == "t5":
                np.add.at(g["bias_table"], head.bucket(head.i[r][:, None] - head.j[c][None]), ds)
            ds = ds * slope * head.scale[r][:, None]
            g["v"][c] += (p * z).T @ dout[r]
            g["k"][c] += ds.T @ q[r]
            g["q"][r] += ds @ k[c]
    g["tau"] = -(q * g["q"]).sum(1) * head.scale
    g["sink_logit"] = -(np.exp(head.sink - safe) * delta).sum()
    return g


def run(case, spec, meta):
    """All heads of all sequences: the names of a case file's expected tensors and their values."""
    q, k, v, zeros = case["q"], case["k"], case["v"], np.zeros(case["q"].shape[:3])
    parts = ("q", "k", "v", "tau", "sink_logit", "bias_table")
    got = {"grad_" + n: np.zeros_like(case[n]) for n in parts if n in case}
    got |= {"out": np.zeros((*zeros.shape, v.shape[3])), "lse": zeros.copy()}
    for b, h in np.ndindex(*q.shape[:2]):
        head, g = Head(case, spec, meta, b, h), h * k.shape[1] // q.shape[1]
        got["out"][b, h], got["lse"][b, h] = both = forward(head, q[b, h], k[b, g], v[b, g])
        d = backward(head, q[b, h], k[b, g], v[b, g], *both, case["grad_out"][b, h], case.get("grad_lse", zeros)[b, h])
        for name, at in zip(parts, ((b, h), (b, g), (b, g), b, h, (slice(None), h))):
            if name in case:
                got["grad_" + name][at] += d[name]
    return got
