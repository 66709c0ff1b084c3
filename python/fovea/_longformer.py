"""Longformer by the kernels of plain attention, in parts that are merged: exact, and linear in the tokens.

A residue class of positions is a text of its own, in which a dilated window is a plain one. Global keys are a second
part, global queries a third. The tokens stand at their own places: no documents, no positions are given.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from __future__ import annotations

from typing import Callable, Optional

import torch
from torch import Tensor

from ._reference import dilations
from ._settings import Longformer

Attend = Callable[[dict], tuple[Tensor, Tensor]]  # out, lse


def merged(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Attention to two disjoint sets of keys as one; at least one of them is not empty in each row."""
    lse = torch.logaddexp(a[1], b[1])
    out = sum(x.float() * torch.exp(of_x - lse)[..., None] for x, of_x in (a, b))
    return out.to(a[0].dtype), lse


def _at(x: Optional[Tensor], axis: int, indices: list[int]) -> Optional[Tensor]:
    return None if x is None else x.index_select(axis, torch.tensor(indices, device=x.device))


def _row(numbers: list[int], like: Tensor) -> Tensor:
    return torch.tensor(numbers, device=like.device)[None]


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
    q, rows = call["q"], [i - first for i in queries]
    return call | {
        "q": _at(q, 2, rows), "tau": _at(call["tau"], 1, rows), "k": _at(call["k"], 2, keys), "v": _at(call["v"], 2, keys),
        "query_positions": _row([i // dilation for i in queries], q), "key_positions": _row([j // dilation for j in keys], q),
        "query_documents": _row([i % dilation for i in queries], q), "key_documents": _row([j % dilation for j in keys], q)}


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


def by_parts(call: dict, spec: Longformer, attend: Attend) -> tuple[Tensor, Tensor]:
    """out and lse of a call without places; `attend` computes a call of plain attention."""
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
