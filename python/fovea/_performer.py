"""Performer: its features, the logits that they define, and attention by running sums, linear in the tokens.

Shapes: b batch, h query heads, g key heads, t queries, s keys, d width of q and k, e width of v, m features.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from __future__ import annotations

import math

import torch
from torch import Tensor

from . import _random
from ._settings import Performer

_CHUNK = 128  # tokens whose pairs are computed together


def projected(spec: Performer, q: Tensor, k: Tensor, scale) -> tuple[Tensor, ...]:
    """w.x' and |x'|^2 / 2 of queries and of keys; `scale` is that of the logits, a number or [b, 1, t, 1]."""
    root = q.shape[3] ** 0.25
    rows = q * (root * scale), k / root
    products = [x @ spec.features.to(x.dtype).T for x in rows]
    return products[0], 0.5 * rows[0].square().sum(-1, keepdim=True), products[1], 0.5 * rows[1].square().sum(-1, keepdim=True)


def _safe_log(x: Tensor) -> Tensor:
    """The logarithm, with gradient 0 where it is -inf."""
    return torch.where(x.detach() > 0, x, 1.0).log().masked_fill(x.detach() <= 0, -torch.inf)


def performer_logits(spec: Performer, q: Tensor, k: Tensor, scale) -> Tensor:
    """q [b, h, t, d] and k [b, h, s, d], of every query head: logits [b, h, t, s]."""
    of_q, q_squares, of_k, k_squares = projected(spec, q, k, scale)
    count = math.log(spec.features.shape[0])
    if spec.epsilon > 0:
        top_q, top_k = of_q.detach().amax(-1, keepdim=True), of_k.detach().amax((2, 3), keepdim=True)
        phi_q = torch.exp(of_q - q_squares - top_q) + spec.epsilon
        return _safe_log(phi_q @ (torch.exp(of_k - k_squares - top_k) + spec.epsilon).transpose(2, 3)) - count
    of_q, of_k = of_q - q_squares, of_k - k_squares
    top_q, top_k = (x.detach().amax(-1, keepdim=True) for x in (of_q, of_k))
    return _safe_log(torch.exp(of_q - top_q) @ torch.exp(of_k - top_k).transpose(2, 3)) + top_q + top_k.transpose(2, 3) - count


def performer_features(features: int, width: int, seed: int = 0, scaling: str = "gaussian") -> Tensor:
    """Directions [features, width] of `fovea.Performer`, float32: orthogonal in blocks of `width` rows.

    scaling: rows as long as Gaussian vectors ("gaussian"), or sqrt(width) ("root"). The same draws as the program's.
    """
    if scaling not in ("gaussian", "root"):
        raise ValueError(f"[fovea.performer_features] expected the scaling gaussian or root; got {scaling!r}")
    drawn, rows = 0, []

    def normals() -> Tensor:
        nonlocal drawn
        drawn += width
        return _random.normals(seed, drawn - width, width)

    for first in range(0, features, width):
        block = []
        for _ in range(min(width, features - first)):
            row = normals()
            for _ in range(2):  # the second time takes out the rounding of the first
                for other in block:
                    row = row - row.dot(other) * other
            block.append(row / row.norm())
        rows += [row * (math.sqrt(width) if scaling == "root" else normals().norm()) for row in block]
    return torch.stack(rows).float()


def by_sums(call: dict, spec: Performer) -> tuple[Tensor, Tensor]:
    """out and lse of a call of one document, without an epsilon. Memory is linear in t and s.

    Numbers are divided by e^M, M the largest exponent of the keys so far, which cancels in the result.
    """
    q, k, v = (call[name].to(torch.float64 if call["q"].dtype == torch.float64 else torch.float32) for name in "qkv")
    b, h, t, _ = q.shape
    g, s = k.shape[1:3]
    of_q, q_squares, of_k, k_squares = projected(spec, q, k, _scale(call))
    of_q, of_k = of_q - q_squares, of_k - k_squares
    top_q = of_q.detach().amax(-1, keepdim=True)
    phi_q = torch.exp(of_q - top_q).reshape(b, g, h // g, t, -1)
    v = torch.cat([v, torch.ones_like(v[..., :1])], -1)  # the last column sums to the divisor
    sums, top = v.new_zeros(b, g, of_k.shape[3], v.shape[3]), of_k.new_full((b, g, 1, 1), -torch.inf)
    outs, lses = [], []
    for begin in [0, *range(s - t, s, _CHUNK)] if s > t else range(0, s, _CHUNK):
        end = s - t if s > t and begin == 0 else min(begin + _CHUNK, s)
        keys, values = of_k[:, :, begin:end], v[:, :, begin:end]
        larger = torch.maximum(top, keys.detach().amax((2, 3), keepdim=True))
        phi_k, sums = torch.exp(keys - larger), sums * torch.exp(top - larger)
        if end > s - t:
            rows = phi_q[..., begin - (s - t) : end - (s - t), :]
            pairs = (rows @ phi_k[:, :, None].transpose(3, 4)).tril()
            both = pairs @ values[:, :, None] + rows @ sums[:, :, None]
            total = both[..., -1:].clamp(min=torch.finfo(both.dtype).tiny)
            outs.append(both[..., :-1] / total)
            lses.append(total[..., 0].log() + larger)
        sums, top = sums + phi_k.transpose(2, 3) @ values, larger
    lse = torch.cat(lses, 3).reshape(b, h, t) + top_q[..., 0] - math.log(spec.features.shape[0])
    return torch.cat(outs, 3).reshape(b, h, t, -1), lse


def _scale(call: dict):
    return call["scale"] if call["tau"] is None else 1.0 / call["tau"][:, None, :, None]
