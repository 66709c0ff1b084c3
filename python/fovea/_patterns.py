"""Which keys a query reads under Routing, SparQ, MagicPIG and StreamingLLM, for the reference.

They take the operands of `_reference.py` by name; `seen` [b or 1, h or 1, t, s] are the pairs that the mask allows.
Shapes: b batch, h query heads, g key heads, n query heads of a key head, t queries, s keys, d width.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple, Optional

import torch
from torch import Tensor

from . import _random
from ._settings import MagicPig, Routing, Sparq, Streaming
from ._softmax import softmax

_SMALLEST = 1e-30  # of squares that are divided by
_COSINE_MARGIN = 1e-7  # where the angle has no derivative
_SAMPLED_FLOOR = 1e-4


class Choice(NamedTuple):
    """The keys that a selector reads: bool [b, h, t, s]; what joins their logits; their share of the result."""

    chosen: Tensor
    log_weights: Optional[Tensor] = None
    alpha: Optional[Tensor] = None


def largest(x: Tensor, count: int) -> Tensor:
    """True for the `count` largest of the last axis; ties go to the lower index."""
    if count >= x.shape[-1]:
        return torch.ones_like(x, dtype=torch.bool)
    order = x.detach().argsort(dim=-1, descending=True, stable=True)[..., :count]
    return torch.zeros_like(x, dtype=torch.bool).scatter_(-1, order, True)


def routed(spec: Routing, j: Tensor, seen: Tensor) -> Tensor:
    """`j` [b or 1, 1, 1, s]: positions of the keys."""
    seen = seen & (spec.queries[..., None] == spec.keys[:, :, None])
    score = (spec.nearness[:, :, None] if spec.choice == "nearest" else j).double()
    ranked = score.expand(seen.shape).masked_fill(~seen, -torch.inf).flip(-1)  # later keys first among equals
    return largest(ranked, spec.keep).flip(-1) & seen


def places_in_cache(positions: Tensor, recent: int, start: int = 4) -> Tensor:
    """Where queries at `positions` stand for the first tokens of a StreamingLLM cache: min(i, start + recent - 1)."""
    return positions.clamp(max=start + recent - 1)


def streamed(spec: Streaming, i: Tensor, j: Tensor, seen: Tensor) -> Tensor:
    return seen & ((j < spec.start) | (i - j < spec.recent))


def _grouped(q: Tensor, key_heads: int) -> Tensor:
    return q.unflatten(1, (key_heads, -1))


def _latest(seen: Tensor, j: Tensor, recent: int) -> Tensor:
    """The key of the query itself and the last `recent` before it."""
    positions = j.expand(seen.shape).masked_fill(~seen, -1)
    first = positions.topk(min(recent + 1, positions.shape[-1]), -1).values[..., -1:]
    return (positions >= first) & seen


def sparq(spec: Sparq, q: Tensor, k: Tensor, scale, j: Tensor, seen: Tensor) -> Choice:
    """q [b, h, t, d], k [b, g, s, d]; `scale`: of the logits, a number or [b, 1, t]."""
    heads, key_heads = q.shape[1], k.shape[1]
    grouped = _grouped(q, key_heads)
    components = largest(grouped.detach().abs().sum(2), spec.components)
    cut = (grouped * components[:, :, None]).flatten(1, 2)
    whole, part = q.abs().sum(-1), cut.abs().sum(-1)
    some = part > 0  # components that are all 0 give logits of 0 under any scale
    share = torch.where(some, part, 1.0) / torch.where(some, whole, 1.0)
    logits = cut @ k.repeat_interleave(heads // key_heads, 1).transpose(2, 3) * (scale / share.sqrt())[..., None]
    weights, _ = softmax(logits, seen.expand(logits.shape))
    recent = spec.keys // 4 if spec.recent < 0 else spec.recent
    score = _grouped(weights.detach(), key_heads).sum(2).masked_fill(~seen, -1.0)
    score = score.masked_fill(_latest(seen, j, recent), torch.inf)
    chosen = (largest(score, spec.keys + 1) & seen).repeat_interleave(heads // key_heads, 1)
    return Choice(chosen, alpha=(weights * chosen).sum(-1) if spec.reallocate else None)


@lru_cache(maxsize=8)
def hash_directions(bits: int, tables: int, seed: int, width: int) -> Tensor:
    """[tables * bits, width], float64; bit n of table l is row l * bits + n."""
    return _random.normals(_random.mix_seed(seed, 0x4D50), 0, tables * bits * width).reshape(-1, width)


def _collide_twice(spec: MagicPig, q: Tensor, k: Tensor, centre: Tensor) -> Tensor:
    """Whether two hashes of a query and a centred key agree: [b, g, n, t, s] of q [b, g, n, t, d], centre [b, g, t, d]."""
    w = hash_directions(spec.bits, spec.tables, spec.seed, k.shape[3]).to(k).T
    of_keys, of_centres, of_queries = k @ w, centre @ w, q @ w > 0
    count = torch.zeros(*q.shape[:4], k.shape[2], dtype=torch.int16, device=q.device)
    for table in range(spec.tables):
        same = None
        for n in range(table * spec.bits, (table + 1) * spec.bits):
            sides = of_keys[:, :, None, :, n] > of_centres[..., n, None]
            equal = sides[:, :, None] == of_queries[..., n, None]
            same = equal if same is None else same & equal
        count += same
    return count >= 2


def _cosines(q: Tensor, k: Tensor, centre: Tensor) -> Tensor:
    """Of queries and centred keys."""
    products = q @ k[:, :, None].transpose(3, 4) - (q * centre[:, :, None]).sum(-1, keepdim=True)
    squares = k.square().sum(-1)[:, :, None] - 2.0 * centre @ k.transpose(2, 3) + centre.square().sum(-1, keepdim=True)
    lengths = squares.clamp(min=_SMALLEST).sqrt()[:, :, None] * q.square().sum(-1, keepdim=True).clamp(min=_SMALLEST).sqrt()
    return products / lengths


def magic_pig(spec: MagicPig, q: Tensor, k: Tensor, i: Tensor, j: Tensor, seen: Tensor) -> Choice:
    region = (j >= spec.start) & (j < i - spec.recent) & seen  # [b or 1, 1, t, s]
    region = region & (region.sum(-1, keepdim=True) >= 2)  # one key alone has no direction around its mean
    centre = region.to(k.dtype) / region.sum(-1, keepdim=True).clamp(min=1) @ k
    grouped = _grouped(q, k.shape[1])
    with torch.no_grad():
        found = _collide_twice(spec, grouped, k, centre).flatten(1, 2)
    cosines = _cosines(grouped, k, centre).flatten(1, 2).masked_fill(~region, 0.0)
    same_side = 1.0 - torch.acos(cosines.clamp(_COSINE_MARGIN - 1.0, 1.0 - _COSINE_MARGIN)) / math.pi
    collides = same_side.pow(spec.bits)
    misses = 1.0 - collides
    sampled = 1.0 - misses.pow(spec.tables) - spec.tables * collides * misses.pow(spec.tables - 1)
    log_weights = -torch.log(sampled.clamp(min=0.0) + _SAMPLED_FLOOR)
    return Choice((~region | found) & seen, log_weights.masked_fill(~region, 0.0))


@torch.no_grad()
def routes(q: Tensor, k: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Clusters of queries [b, h, t] and keys [b, h, s], and the nearness of keys [b, h, s], for `fovea.Routing`.

    centroids [h, clusters, d]. Rows are normalised to mean 0 and variance 1; a token belongs to the centroid of the largest
    product. No gradient.
    """
    def scores(x: Tensor) -> Tensor:
        x = x if x.dtype == torch.float64 else x.float()
        return torch.nn.functional.layer_norm(x, x.shape[-1:], eps=1e-6) @ centroids.to(x.dtype).transpose(1, 2)

    nearness, keys = scores(k.repeat_interleave(q.shape[1] // k.shape[1], 1)).max(-1)
    return scores(q).argmax(-1), keys, nearness
