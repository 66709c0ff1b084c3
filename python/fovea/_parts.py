"""Patterns by the kernels of plain attention, in parts that are merged: exact, and linear in the tokens.

Longformer: a residue class of positions is a text of its own, in which a dilated window is a plain one; global keys are a
second part, global queries a third. StreamingLLM: recent keys and start keys. Routing: a cluster is a document, in which
the most recent keys are a window. The tokens stand at their own places: no documents, no positions are given.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from __future__ import annotations

from typing import Callable, Optional

import torch
from torch import Tensor

from ._patterns import places_in_cache
from ._reference import dilations
from ._settings import Longformer, Pattern, Routing, Streaming

Attend = Callable[[dict], tuple[Tensor, Tensor]]  # out, lse


def merged(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Attention to two disjoint sets of keys as one; at least one of them is not empty in each row."""
    lse = torch.logaddexp(a[1], b[1])
    out = sum(x.float() * torch.exp(of_x - lse)[..., None] for x, of_x in (a, b))
    return out.to(a[0].dtype), lse


def _at(x: Optional[Tensor], axis: int, indices: list[int]) -> Optional[Tensor]:
    return None if x is None else x.index_select(axis, torch.tensor(indices, device=x.device))


def _row(numbers: list[int]) -> Tensor:
    """Places: on the CPU, where plans are made for every device."""
    return torch.tensor(numbers)[None]


def _of_heads(call: dict, heads: list[int]) -> dict:
    """The call of some query heads; key heads are repeated for them."""
    group = call["q"].shape[1] // call["k"].shape[1]
    if len(heads) == call["q"].shape[1]:
        return call
    keys = [h // group for h in heads]
    return call | {"q": _at(call["q"], 1, heads), "k": _at(call["k"], 1, keys), "v": _at(call["v"], 1, keys)} | {
        name: _at(call[name], 0, heads) for name in ("sink_logit", "alibi", "bias")}


def _with_tokens(call: dict, queries: list[int], keys: list[int], first: int, dilation: int = 1) -> dict:
    """The call of queries and keys at these positions; residue classes are documents, ranks in them positions."""
    rows = [i - first for i in queries]
    return call | {
        "q": _at(call["q"], 2, rows), "tau": _at(call["tau"], 1, rows), "k": _at(call["k"], 2, keys), "v": _at(call["v"], 2, keys),
        "query_positions": _row([i // dilation for i in queries]), "key_positions": _row([j // dilation for j in keys]),
        "query_documents": _row([i % dilation for i in queries]), "key_documents": _row([j % dilation for j in keys])}


def _window(call: dict, spec: Longformer, dilation: int, of_globals: list[int], attend: Attend):
    """Keys in the window and global ones, of heads of one dilation."""
    first, keys = call["k"].shape[2] - call["q"].shape[2], call["k"].shape[2]
    if dilation == 1 and of_globals == list(range(len(of_globals))):
        return attend(call | {"window": spec.window + 1, "sinks": len(of_globals)})
    apart = set(of_globals)
    queries = sorted(range(first, keys), key=lambda i: (i % dilation, i))
    others = sorted((j for j in range(keys) if j not in apart), key=lambda j: (j % dilation, j))
    result = None
    if others:
        near = _with_tokens(call, queries, others, first, dilation) | {"window": spec.window + 1}
        back = [0] * len(queries)
        for n, i in enumerate(queries):
            back[i - first] = n
        result = tuple(_at(x, 2, back) for x in attend(near))
    if not of_globals:
        return result
    every = list(range(first, keys))
    far = attend(_with_tokens(call, every, of_globals, first) | ({"sink_logit": None} if result else {}))
    return merged(result, far) if result else far


def _longformer(call: dict, spec: Longformer, attend: Attend) -> tuple[Tensor, Tensor]:
    q, keys, heads = call["q"], call["k"].shape[2], call["q"].shape[1]
    first = keys - q.shape[2]
    of_globals = sorted({*range(min(spec.globals, keys)), *(p for p in spec.global_positions if p < keys)})
    by_head = dilations(spec, heads)
    parts, order = [], []
    for dilation in sorted(set(by_head)):
        members = [h for h in range(heads) if by_head[h] == dilation]
        parts.append(_window(_of_heads(call, members), spec, dilation, of_globals, attend))
        order += members
    out, lse = (torch.cat(x, 1) for x in zip(*parts))
    if len(parts) > 1:
        back = [order.index(h) for h in range(heads)]
        out, lse = _at(out, 1, back), _at(lse, 1, back)
    rows = [p for p in of_globals if p >= first]
    if not rows or (spec.global_q is None and of_globals == list(range(len(of_globals)))):
        return out, lse
    whole = call if spec.global_q is None else call | {"q": spec.global_q, "k": spec.global_k, "v": spec.global_v}
    of_rows = attend(_with_tokens(whole, rows, list(range(keys)), first))
    index = torch.tensor([p - first for p in rows], device=q.device)
    return out.index_copy(2, index, of_rows[0]), lse.index_copy(2, index, of_rows[1])


def _streaming(call: dict, spec: Streaming, attend: Attend) -> tuple[Tensor, Tensor]:
    """Rows before position `start` read start keys alone; no later row is without a recent key."""
    keys, queries = call["k"].shape[2], call["q"].shape[2]
    first, start = keys - queries, min(spec.start, keys)
    early = max(start - first, 0)  # rows
    if start == 0:
        return attend(call | {"window": spec.recent})
    positions = torch.arange(first, keys)[None]
    of_starts = attend(call | {
        "q": spec.queries, "k": call["k"][:, :, :start], "v": call["v"][:, :, :start],
        "query_positions": places_in_cache(positions, spec.recent, spec.start), "key_positions": torch.arange(start)[None]})
    if early == queries:
        return of_starts
    recent = attend(call | {
        "q": call["q"][:, :, early:], "tau": None if call["tau"] is None else call["tau"][:, early:].contiguous(),
        "k": call["k"][:, :, start:], "v": call["v"][:, :, start:], "window": spec.recent, "sink_logit": None})
    later = merged(tuple(x[:, :, early:] for x in of_starts), recent)
    return later if early == 0 else tuple(torch.cat([x[:, :, :early], y], 2) for x, y in zip(of_starts, later))


def _by_cluster(x: Tensor, order: Tensor) -> Tensor:
    """Rows [b, h, tokens, width] in an order for each head, as [b h, 1, tokens, width]."""
    return x.gather(2, order[..., None].expand(-1, -1, -1, x.shape[3])).flatten(0, 1)[:, None]


def _routing(call: dict, spec: Routing, attend: Attend) -> tuple[Tensor, Tensor]:
    """Every head is a row of the batch, its tokens in the order of clusters and positions."""
    q, tau, group = call["q"], call["tau"], call["q"].shape[1] // call["k"].shape[1]
    queries, keys = q.shape[2], call["k"].shape[2]
    of_queries, of_keys = (x.argsort(dim=-1, stable=True) for x in (spec.queries, spec.keys))
    cluster_q, cluster_k = spec.queries.gather(2, of_queries), spec.keys.gather(2, of_keys)
    before = torch.searchsorted(cluster_k, cluster_k)  # keys of earlier clusters
    rank_k = torch.arange(keys, device=q.device) - before
    # Ranks of queries: keys of the cluster up to the query's position.
    places = cluster_q * keys + of_queries + (keys - queries)
    rank_q = torch.searchsorted(cluster_k * keys + of_keys, places, right=True) - torch.searchsorted(cluster_k, cluster_q) - 1
    parts = call | {
        "q": _by_cluster(q, of_queries),
        "k": _by_cluster(call["k"].repeat_interleave(group, 1), of_keys),
        "v": _by_cluster(call["v"].repeat_interleave(group, 1), of_keys),
        "tau": None if tau is None else tau[:, None].expand(-1, q.shape[1], -1).gather(2, of_queries).flatten(0, 1),
        "query_documents": cluster_q.flatten(0, 1), "key_documents": cluster_k.flatten(0, 1),
        "query_positions": 1 + rank_q.flatten(0, 1), "key_positions": 1 + rank_k.flatten(0, 1),  # 0: no key yet
        "window": spec.keep, "sink_logit": None}
    back = of_queries.argsort(-1)
    out, lse = (x[:, 0].unflatten(0, q.shape[:2]) for x in attend(parts))
    out, lse = out.gather(2, back[..., None].expand(out.shape)), lse.gather(2, back)
    if (sink := call["sink_logit"]) is None:
        return out, lse
    total = torch.logaddexp(lse, sink[:, None].expand(lse.shape))
    return (out.float() * torch.exp(lse - total)[..., None]).to(out.dtype), total


def by_parts(call: dict, pattern: Pattern, attend: Attend) -> tuple[Tensor, Tensor]:
    """out and lse of a call without places; `attend` computes a call of plain attention."""
    of = {Longformer: _longformer, Streaming: _streaming, Routing: _routing}[type(pattern)]
    return of(call, pattern, attend)


def why_not_parts(call: dict, pattern: Pattern) -> Optional[str]:
    """Why kernels cannot compute a pattern in parts, or None."""
    name, biased = type(pattern).__name__, call["bias"] is not None or call["alibi"] is not None
    if type(pattern) not in (Longformer, Streaming, Routing):
        return f"there are no kernels of {name}"
    if any(call[name] is not None for name in ("query_positions", "key_positions", "query_documents", "key_documents")):
        return f"the kernels compute {name} for one document at its own positions"
    joined = ("kernel_before", "kernel_after", "mix_before", "mix_after", "gate_key", "members", "block_pairs")
    if call["stats"] or any(call[name] is not None for name in joined):
        return f"the kernels have no {name} beside statistics, other patterns, convolutions and mixes"
    if call["dropout"]:
        return "dropout counts pairs in the order of the text, which parts of it do not have"
    if isinstance(pattern, Routing) and pattern.choice != "recent":
        return "the kernels choose the most recent keys of a cluster"
    if isinstance(pattern, Routing) and biased:
        return "a position bias counts distances that clusters do not have"
    if isinstance(pattern, Longformer) and pattern.dilation != 1 and biased:
        return "a position bias counts distances that dilated heads do not have"
    if call["q"].is_cuda and not (isinstance(pattern, Longformer) and pattern.dilation == 1
                                  and not pattern.global_positions and pattern.global_q is None):
        return "the CUDA kernels have Longformer alone, without dilation and with globals that come first"
    return None
