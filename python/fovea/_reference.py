"""The reference: attention as a page of tensor operations, for every dtype and device, with any number of derivatives.

It takes the operands of the operator (python/src/operators.cpp) by name. Memory grows with t x s.
Shapes: b batch, h query heads, t queries, s keys.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor
from torch.nn.functional import conv2d, logsigmoid, pad

from ._patterns import Choice, magic_pig, places_in_cache, routed, sparq, streamed
from ._performer import performer_logits
from ._random import dropout_factors
from ._settings import Longformer, MagicPig, Pattern, Performer, Routing, Sparq, Streaming
from ._softmax import softmax


class Places:
    """Where queries and keys stand: positions and documents, each [b or 1, tokens]."""

    def __init__(self, call: dict):
        self.queries, self.keys, device = call["q"].shape[2], call["k"].shape[2], call["q"].device
        i, j, self.documents, of_keys = (
            None if call[name] is None else call[name].to(device)
            for name in ("query_positions", "key_positions", "query_documents", "key_documents"))
        i = torch.arange(self.keys - self.queries, self.keys, device=device)[None] if i is None else i
        j = torch.arange(self.keys, device=device)[None] if j is None else j
        self.i, self.j = i[:, None, :, None], j[:, None, None, :]
        self.distance = self.i - self.j
        self.same = torch.ones_like(self.distance, dtype=torch.bool)
        if self.documents is not None:
            self.same = self.documents[:, None, :, None] == of_keys[:, None, None, :]

    def earlier(self, x: Tensor, count: int) -> Tensor:
        """Rows `count` before: x [b, h, t, s], 0 where that row is not of the same run of a document."""
        if count == 0:
            return x
        shifted = pad(x, (0, 0, count, 0))[:, :, : self.queries]
        if self.documents is None:
            return shifted
        starts = pad((self.documents[:, 1:] != self.documents[:, :-1]).long(), (1, 0)).cumsum(1)
        of_run = pad(starts, (count, 0), value=-1)[:, : self.queries] == starts
        return shifted * of_run[:, None, :, None]


def globals_of(spec: Longformer, positions: Tensor) -> Tensor:
    found = positions < spec.globals
    for position in spec.global_positions:
        found = found | (positions == position)
    return found


def dilations(spec: Longformer, heads: int) -> list[int]:
    return [spec.dilation] * heads if isinstance(spec.dilation, int) else list(spec.dilation)


def _in_blocks(call: dict, places: Places) -> Tensor:
    pairs, size = call["block_pairs"], call["block_size"]
    blocks = int(pairs.max()) + 1 if len(pairs) else 0
    table = torch.zeros(blocks + 1, blocks + 1, dtype=torch.bool, device=pairs.device)  # the last: any later block
    table[pairs[:, 0], pairs[:, 1]] = True
    of_query, of_key = (x.div(size, rounding_mode="floor").clamp(0, blocks) for x in (places.i, places.j))
    return table[of_query, of_key]


def _near(call: dict, places: Places) -> Optional[Tensor]:
    """Pairs of a window or of a sparse mask; None: there is neither."""
    window, stride, block = call["window"], call["mask_stride"], call["mask_block"]
    if block:
        of_query, of_key = (x.div(block, rounding_mode="floor") for x in (places.i, places.j))
        return (of_query == of_key) | (places.j % block >= block - call["mask_summary"])
    if not (window or stride):
        return None
    near = places.distance.abs() < window
    return near | (places.distance % stride == 0) if stride else near


def _indices(call: dict, places: Places) -> tuple[Tensor, ...]:
    """Batch row, head, and positions of query and key, as functions of the caller take them."""
    batch, heads = (torch.arange(n, device=places.i.device) for n in call["q"].shape[:2])
    return batch[:, None, None, None], heads[:, None, None], places.i, places.j


def _seen(call: dict, places: Places, local: Tensor, pattern: Optional[Pattern]) -> Tensor:
    """The relation of stage 6: [b or 1, h or 1, t, s]."""
    seen, distance = places.same, places.distance
    if call["causal"]:
        seen = seen & (distance >= 0)
    if (near := _near(call, places)) is not None:
        seen = seen & (near | ((places.j < call["sinks"]) & (distance >= 0)))
    if (members := call["members"]) is not None:
        of_queries = members[:, places.keys - places.queries :]
        seen = seen & (local | ((of_queries[:, None, :, None] & members[:, None, None, :]) != 0))
    if call["block_pairs"] is not None:
        seen = seen & _in_blocks(call, places)
    if call["mask_mod"] is not None:
        seen = seen & call["mask_mod"](*_indices(call, places))
    if isinstance(pattern, Longformer):
        step = torch.tensor(dilations(pattern, call["q"].shape[1]), device=seen.device)[:, None, None]
        near = (distance <= pattern.window * step) & (distance % step == 0)
        seen = seen & (near | globals_of(pattern, places.i) | globals_of(pattern, places.j))
    if isinstance(pattern, Routing):
        seen = routed(pattern, places.j, seen)
    if isinstance(pattern, Streaming):
        seen = streamed(pattern, places.i, places.j, seen)
    return seen


def _choice(call: dict, pattern: Optional[Pattern], places: Places, seen: Tensor, wide: torch.dtype) -> Optional[Choice]:
    """The keys that a selector reads; None without one."""
    q, k = call["q"].to(wide), call["k"].to(wide)
    if isinstance(pattern, Sparq):
        return sparq(pattern, q, k, call["scale"] if call["tau"] is None else 1.0 / call["tau"][:, None], places.j, seen)
    return magic_pig(pattern, q, k, places.i, places.j, seen) if isinstance(pattern, MagicPig) else None


def _convolved(x: Tensor, taps: Tensor, seen: Tensor, places: Places, later_mask: bool) -> Tensor:
    """Sum over taps [h, queries, keys] of x where a pair is seen; `later_mask` (eq4): by the current query."""
    queries, keys = taps.shape[1:]
    older, total = (keys - 1) // 2, None
    for row in range(queries):
        rows = places.earlier(x if later_mask else x * seen, queries - 1 - row)
        rows = pad(rows * seen if later_mask else rows, (older, keys - 1 - older))
        part = conv2d(rows, taps[:, None, row : row + 1], groups=x.shape[1])
        total = part if total is None else total + part
    return total


def _mixed(x: Tensor, matrices: Tensor, equation: str) -> Tensor:
    return torch.einsum(equation, matrices, x.unflatten(1, matrices.shape[:2])).flatten(1, 2)


def _gated(s: Tensor, call: dict, local: Tensor) -> Tensor:
    """Logits after the gate of Focus; the forms are those of fovea/kernels/common/pair_gate.h."""
    z = (call["gate_query"] @ call["gate_key"].transpose(1, 2))[:, None] + call["gate_offset"]
    form = call["gate"]
    if form == 2:
        z = z + (z.detach().clamp(max=1.0 + call["gate_offset"]) - z.detach())
    if form == 4:
        return s * torch.sigmoid(z).masked_fill(local, 1.0)
    z = z.masked_fill(local, 1.0)
    return s + (logsigmoid(z) if form == 3 else z.log()).masked_fill(local, 0.0)


def _stats(p: Tensor, places: Places) -> Tensor:
    p = p.detach()
    largest = p.amax(-1) if p.shape[-1] else p.sum(-1)
    return torch.stack([-torch.xlogy(p, p).sum(-1), largest, (p * (places.j == 0)).sum(-1)], -1).float()


def reference(call: dict, pattern: Optional[Pattern] = None):
    """out [b, h, t, e], lse [b, h, t], statistics [b, h, t, 3] or None, in float32, or float64 for float64."""
    q, wide = call["q"], torch.float64 if call["q"].dtype == torch.float64 else torch.float32
    group = q.shape[1] // call["k"].shape[1]

    def of_heads(x):
        return x.to(wide).repeat_interleave(group, 1)

    def scores(queries, keys):
        s = queries.to(wide) @ of_heads(keys).transpose(2, 3)
        return s * call["scale"] if call["tau"] is None else s / call["tau"][:, None, :, None]

    places = Places(call)
    local = (places.distance < call["near"]) | (places.j < call["near_sinks"])
    seen = _seen(call, places, local, pattern)
    if isinstance(pattern, Performer):
        factor = call["scale"] if call["tau"] is None else 1.0 / call["tau"][:, None, :, None]
        s = performer_logits(pattern, q.to(wide), of_heads(call["k"]), factor)
    else:
        s = scores(q, call["k"])
    distance, of_globals = places.distance, None
    if isinstance(pattern, Longformer) and pattern.global_q is not None:
        of_globals = globals_of(pattern, places.i)
        s = torch.where(of_globals, scores(pattern.global_q, pattern.global_k), s)
    if isinstance(pattern, Streaming):
        starts = places.j < pattern.start
        s = torch.where(starts, scores(pattern.queries, call["k"]), s)
        distance = torch.where(starts, places_in_cache(places.i, pattern.recent, pattern.start) - places.j, distance)
    cap = call["soft_cap"]
    s = cap * torch.tanh(s / cap) if cap else s
    if call["kernel_before"] is not None:
        s = _convolved(s, call["kernel_before"], seen, places, call["eq4"])
    s = s if call["mix_before"] is None else _mixed(s, call["mix_before"], "goi,bgits->bgots")
    s = s if call["gate_query"] is None else _gated(s, call, local)
    if call["score_mod"] is not None:
        s = call["score_mod"](s, *_indices(call, places))
    if call["alibi"] is not None:
        s = s - call["alibi"].to(wide)[:, None, None] * distance
    if call["bias"] is not None:
        entries = (distance[:, 0] - call["bias_first"]).clamp(0, call["bias"].shape[1] - 1)
        s = s + call["bias"][:, entries].transpose(0, 1)
    seen = seen.expand(s.shape)
    choice = _choice(call, pattern, places, seen[:, :1], wide)  # no selector goes with masks of single heads
    if choice is not None and choice.log_weights is not None:
        s = s + choice.log_weights
    p, lse = softmax(s, seen if choice is None else choice.chosen, call["sink_logit"])
    if choice is not None and choice.alpha is not None:
        share = choice.alpha[..., None]
        p = p * share + (1.0 - share) * (seen.to(p.dtype) / seen.sum(-1, keepdim=True).clamp(min=1))
    stats = _stats(p, places) if call["stats"] else None
    if call["kernel_after"] is not None:
        p = _convolved(p, call["kernel_after"], seen, places, False) * seen
        if call["renormalise"]:
            total = p.sum(-1, keepdim=True)
            p = p / total.masked_fill(total.abs() <= 1e-6, 1.0)
    p = p if call["mix_after"] is None else _mixed(p, call["mix_after"], "gio,bgits->bgots")
    if call["dropout"]:
        p = p * dropout_factors(call["dropout"], call["dropout_seed"], call["dropout_layer"], p.shape, p)
    out = p @ of_heads(call["v"])
    if of_globals is not None:
        out = torch.where(of_globals, p @ of_heads(pattern.global_v), out)
    return out, lse, stats
