#!/usr/bin/env python3
"""The forward mixing kernels of fovea/kernels/cpu/mixing/mixing_forward.h in NumPy: Multi-Token Attention and talking heads.

For reading (docs/kernels/mixing.md has the pictures). Strips and steps are small, so that even small cases have several;
tests/peers/check_example.py runs the case files of tests/golden/attention with it. Heads are the first axis everywhere.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
import numpy as np
from pointwise_attention import SAFE, Head

ROWS, STEP, LAG = 4, 6, 7  # queries of a strip, keys of a step, keys that a convolution's results lag behind
HISTORY = 3 * LAG  # columns before key 0: what lags twice, and the older half of the taps


class Strip:
    """Rows [n, n + ROWS) of one sequence: which pairs are seen, and which older rows count for a row (M-11)."""

    def __init__(self, head, n, t, s):
        self.rows = slice(n, min(n + ROWS, t))
        self.seen = np.zeros((ROWS, HISTORY + s + 3 * LAG + STEP), bool)  # key j is column HISTORY + j
        self.seen[: self.rows.stop - n, HISTORY : HISTORY + s] = head.seen(self.rows, slice(0, s))
        labels, self.first = head.documents[0], n
        borders = np.flatnonzero(np.r_[True, labels[1:] != labels[:-1]])
        self.document = borders[np.searchsorted(borders, np.arange(n, n + ROWS), "right") - 1]

    def at(self, j):
        """Which of the STEP keys from j on the rows see."""
        return self.seen[:, HISTORY + j : HISTORY + j + STEP]


def convolve(window, taps, strip, j, eq4=False):
    """STEP results from key j on. window: rows of the strip below its older rows; only keys up to j + ck/2 are read."""
    cq, ck = taps.shape[1:]
    total = np.zeros((len(taps), ROWS, STEP))
    for a in range(cq):
        counts = (strip.first + np.arange(ROWS) + a - (cq - 1) >= strip.document)[:, None]
        for b in range(ck):
            column = HISTORY + j - (ck - 1) // 2 + b
            here = counts & strip.seen[:, column : column + STEP] if eq4 else counts
            total += taps[:, a, b, None, None] * np.where(here, window[:, a : a + ROWS, column : column + STEP], 0.0)
    return total


def mix(x, matrices):
    """Groups of heads, pair by pair; matrices [groups, m, m] stored (out, in)."""
    groups, m = matrices.shape[:2]
    return np.einsum("goi,gint->gont", matrices, x.reshape(groups, m, *x.shape[1:])).reshape(x.shape)


class Stages:
    """One sequence: its operands, and the rows that strips hand on."""

    def __init__(self, case, spec, meta, b):
        self.heads = [Head(case, spec, meta, b, h) for h in range(spec["heads"])]
        groups = spec["heads"] // case["k"].shape[1]
        self.q = case["q"][b]
        self.k, self.v = (np.repeat(case[n][b], groups, 0) for n in "kv")
        self.before, self.after = case.get("kernel_before"), case.get("kernel_after")
        self.mix_before = case.get("mix_before")
        self.mix_after = case["mix_after"].swapaxes(1, 2) if "mix_after" in case else None
        tokens = spec.get("multi_token", {})
        self.eq4, self.renormalise = tokens.get("equation") == "eq4", tokens.get("renormalise", False)
        self.t, self.s = self.q.shape[1], self.k.shape[1]
        self.width = HISTORY + self.s + 3 * LAG + STEP
        self.lag_before = LAG if self.before is not None else 0
        self.lag = self.lag_before + (LAG if self.after is not None else 0)
        older = lambda taps: np.zeros((len(self.heads), 0 if taps is None else taps.shape[1] - 1, self.width))
        self.carried_logits, self.carried_weights = older(self.before), older(self.after)

    def steps(self, strip, lag):
        """First keys of the steps whose results some row sees."""
        every = range(0, self.s + lag, STEP)
        return [j for j in every if strip.seen[:, max(0, HISTORY + j - lag - LAG) : HISTORY + j + STEP].any()]

    def products(self, rows, j):
        """soft_cap(scale q.k) of STEP keys from j on; keys that do not exist give 0."""
        k = np.zeros((len(self.heads), STEP, self.k.shape[2]))
        k[:, : max(0, min(STEP, self.s - j))] = self.k[:, j : j + STEP]
        x = self.q[:, rows] @ k.swapaxes(1, 2) * self.heads[0].scale[rows][:, None]
        return np.tanh(x / self.heads[0].cap) * self.heads[0].cap if self.heads[0].cap else x

    def logits(self, strip, take):
        """Pass 1: take(j, x, seen) gets the mixed logits of STEP keys from j on."""
        rows = strip.rows
        older = self.carried_logits.shape[1]
        window = np.concatenate([self.carried_logits, np.zeros((len(self.heads), ROWS, self.width))], 1)
        if self.eq4 and older:  # older rows gain keys: they are computed again
            window[:, :older] = 0.0
        for j in self.steps(strip, self.lag_before):
            at = slice(HISTORY + j, HISTORY + j + STEP)
            x = np.zeros((len(self.heads), ROWS, STEP))
            x[:, : rows.stop - rows.start] = self.products(rows, j)
            if self.before is not None:
                window[:, older:, at] = x if self.eq4 else np.where(strip.at(j), x, 0.0)  # Mask0
                if self.eq4:
                    again = slice(max(0, rows.start - older), rows.start)
                    window[:, older - (again.stop - again.start) : older, at] = self.products(again, j)
                x = convolve(window, self.before, strip, j - LAG, self.eq4)
            x = x if self.mix_before is None else mix(x, self.mix_before)
            take(j - self.lag_before, x, strip.at(j - self.lag_before))
        if older:
            self.carried_logits = window[:, -older:]

    def softmax(self, strip):
        """E = exp(x - m) of the whole strip, l and m: no pass for the maximum."""
        shape = (len(self.heads), ROWS)
        m, sink = np.full(shape, np.nan), np.array([[head.sink] for head in self.heads])
        carried, top = self.carried_logits, np.full(shape, -np.inf)

        def raise_top(j, x, seen):
            np.maximum(top, np.where(seen, x, -np.inf).max(2), out=top)

        while True:
            weights, total = np.zeros((*shape, self.width)), np.zeros(shape)

            def weigh(j, x, seen):
                x = np.where(seen, x, -np.inf)
                first = np.maximum(x.max(2), sink)  # the largest of the first step where the row sees a key
                m[...] = np.where(np.isnan(m) & seen.any(1), first, m)
                e = np.exp(x - np.nan_to_num(m)[:, :, None])
                weights[:, :, HISTORY + j : HISTORY + j + STEP] = e
                total[...] += e.sum(2)

            self.carried_logits = carried
            self.logits(strip, weigh)
            unsafe = ~(total < SAFE)
            if not unsafe.any():
                break
            self.carried_logits = carried
            self.logits(strip, raise_top)
            m = np.where(unsafe, np.maximum(top, sink), m)  # once more, with exact maxima for these rows
        with np.errstate(divide="ignore"):
            lse = np.logaddexp(np.nan_to_num(m) + np.log(total), sink)
        p = weights * np.exp(np.nan_to_num(m) - np.where(total > 0, lse, np.inf))[:, :, None]
        return p, lse

    def joined(self, window, strip, j):
        """Convolved weights of STEP keys from j on, 0 where not seen."""
        return np.where(strip.at(j), convolve(window, self.after, strip, j), 0.0)

    def outputs(self, strip, p):
        """Pass 2: out of the strip's rows."""
        window = np.concatenate([self.carried_weights, p], 1)
        steps, n = self.steps(strip, self.lag), 1.0
        if self.renormalise and self.after is not None:
            n = sum((self.joined(window, strip, j - self.lag).sum(2) for j in steps), np.zeros(p.shape[:2]))
            n = np.where(abs(n) > 1e-6, n, 1.0)[:, :, None]
        out = np.zeros((*p.shape[:2], self.v.shape[2]))
        v = np.zeros((len(p), self.width, out.shape[2]))
        v[:, HISTORY : HISTORY + self.s] = self.v
        for j in (j - self.lag for j in steps):
            at = slice(HISTORY + j, HISTORY + j + STEP)
            x = p[:, :, at] if self.after is None else self.joined(window, strip, j) / n
            x = x if self.mix_after is None else mix(x, self.mix_after)
            if self.heads[0].drop:
                keep = np.stack([head.keep(slice(strip.first, strip.first + ROWS), slice(max(j, 0), max(j, 0) + STEP))
                                 for head in self.heads])
                x = x * np.roll(keep, min(j, 0), 2)  # keys before the first one weigh 0
            out += x @ v[:, at]
        if self.carried_weights.shape[1]:
            self.carried_weights = window[:, -self.carried_weights.shape[1] :]
        return out


def run(case, spec, meta):
    """out and lse of all sequences."""
    got = {"out": np.zeros((*case["q"].shape[:3], case["v"].shape[3])), "lse": np.zeros(case["q"].shape[:3])}
    for b in range(len(case["q"])):
        stages = Stages(case, spec, meta, b)
        for n in range(0, stages.t, ROWS):
            strip = Strip(stages.heads[0], n, stages.t, stages.s)
            p, lse = stages.softmax(strip)
            rows = strip.rows.stop - n
            got["out"][b, :, strip.rows], got["lse"][b, :, strip.rows] = stages.outputs(strip, p)[:, :rows], lse[:, :rows]
    return got
