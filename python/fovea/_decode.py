"""`fovea.decode`: attention of the next tokens over a cache of those before.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from __future__ import annotations

from dataclasses import replace
from typing import Callable, Optional, Union

import torch
from torch import Tensor

from ._attention import attention, autocast
from ._call import check_rows
from ._settings import (Bias, Blocks, Differential, Documents, Focus, HeadMix, HeadOutput, KvShift, Longformer, MagicPig,
                        MultiToken, Performer, Routing, Sparq, Sparsity, Streaming)

_OF_HEADS = ("k", "v", "q", "global_q", "global_k", "global_v", "routes", "nearness")  # [b, heads, tokens, ..]; others: [b, tokens, ..]


def _expect(holds: bool, text: str) -> None:
    if not holds:
        raise ValueError(f"[fovea.decode] {text}")


class Cache:
    """Keys and values of one layer's tokens so far, and the rows of their groups, documents and places, for `fovea.decode`.

    It grows by doubling, from room for `capacity` tokens. `len(cache)`: tokens so far. Every row of the batch has as many.
    Under Multi-Token Attention it keeps queries, too.
    """

    def __init__(self, capacity: int = 0):
        if capacity < 0:
            raise ValueError(f"[fovea.Cache] expected a capacity of at least 0; got {capacity}")
        self._capacity, self._length, self._rows = capacity, 0, {}

    def __len__(self) -> int:
        return self._length

    @property
    def keys(self) -> Optional[Tensor]:
        """[b, g, s, d], or None before the first tokens."""
        return self._of("k") if "k" in self._rows else None

    @property
    def values(self) -> Optional[Tensor]:
        """[b, g, s, e], or None before the first tokens."""
        return self._of("v") if "v" in self._rows else None

    def truncate(self, length: int) -> None:
        """Forgets all but the first `length` tokens: rejected drafts, another answer to the same prompt."""
        if not 0 <= length <= self._length:
            raise ValueError(f"[fovea.Cache] expected a length of 0 to {self._length}; got {length}")
        self._length = length
        if length == 0:
            self._rows = {}

    def reorder(self, rows: Tensor) -> None:
        """Row n of the batch becomes what row `rows[n]` was, as in a beam search; `rows` may be longer or shorter."""
        self._rows = {name: x.index_select(0, rows) for name, x in self._rows.items()}

    def _of(self, name: str) -> Tensor:
        return self._rows[name].narrow(_axis(name), 0, self._length)

    def _append(self, new: dict[str, Tensor]) -> None:
        """The rows of the next tokens: all names that the first call had, and no other."""
        if self._length:
            for name in sorted(new.keys() ^ self._rows.keys()):
                _expect(False, f"expected the settings of the earlier calls on this cache; got {name} "
                        f"{'for the first time' if name in new else 'no more'}")
            for name, x in new.items():
                old = self._rows[name]
                axis = _axis(name)
                _expect(_without(x.shape, axis) == _without(old.shape, axis) and x.dtype == old.dtype and x.device == old.device,
                        f"expected {name} like the cache's, {old.dtype} {tuple(old.shape)} on {old.device}; got {x.dtype} "
                        f"{tuple(x.shape)} on {x.device}")
        tokens = new["k"].shape[2]
        needed = self._length + tokens
        for name, x in new.items():
            axis = _axis(name)
            if name not in self._rows or self._rows[name].shape[axis] < needed:
                sizes = list(x.shape)
                sizes[axis] = max(self._capacity, needed if name not in self._rows else 2 * needed)
                grown = x.new_empty(sizes)
                if name in self._rows:
                    grown.narrow(axis, 0, self._length).copy_(self._of(name))
                self._rows[name] = grown
            self._rows[name].narrow(axis, self._length, tokens).copy_(x)
        self._length = needed


def _axis(name: str) -> int:
    return 2 if name in _OF_HEADS else 1


def _without(shape: torch.Size, axis: int) -> tuple:
    return (*shape[:axis], *shape[axis + 1:])


def _by_token(x: Tensor, name: str, q: Tensor) -> Tensor:
    """[t] or [b, t] as [b, t]."""
    _expect(x.dim() in (1, 2) and x.shape[-1] == q.shape[2] and (x.dim() == 1 or x.shape[0] in (1, q.shape[0])),
            f"expected {name} of the new tokens, [{q.shape[0]}, {q.shape[2]}]; got {tuple(x.shape)}")
    return x.expand(q.shape[0], q.shape[2])


def _new_rows(q: Tensor, k: Tensor, v: Tensor, temperature, documents, positions, multi_token, focus, longformer,
              routing) -> dict:
    """What the cache keeps of the new tokens, by name."""
    rows = {"k": k, "v": v}
    if documents is not None:
        _expect(documents.keys is None, "expected documents of the new tokens alone; got some of keys")
        rows["documents"] = _by_token(documents.queries, "documents", q).long()
    if positions is not None:
        rows["positions"] = _by_token(positions, "positions", q).long()
    if focus is not None:
        for name in ("assignment", "members"):
            x = getattr(focus, name)
            if x is not None:
                _expect(x.shape[:2] == (q.shape[0], q.shape[2]), f"expected focus.{name} of the new tokens, [{q.shape[0]}, "
                        f"{q.shape[2]}, ..]; got {tuple(x.shape)}")
                rows[name] = x
    if longformer is not None and longformer.global_k is not None:
        _expect(longformer.global_q is not None and longformer.global_v is not None
                and longformer.global_k.shape == k.shape and longformer.global_v.shape == v.shape,
                "expected global_q, global_k and global_v of the new tokens, or none of them")
        rows |= {"global_k": longformer.global_k, "global_v": longformer.global_v}
    if routing is not None:
        rows["routes"] = routing.keys
        rows |= {} if routing.nearness is None else {"nearness": routing.nearness}
    if multi_token is not None:  # its kernels read earlier queries
        rows["q"] = q
        if isinstance(temperature, Tensor):
            _expect(temperature.dim() <= 2, f"expected a temperature that broadcasts to [b, t]; got {tuple(temperature.shape)}")
            rows["temperature"] = temperature.expand(q.shape[0], q.shape[2])
        if "global_k" in rows:
            rows["global_q"] = longformer.global_q
    return rows


def _earlier_queries(spec: Optional[MultiToken], before: int) -> int:
    """Queries before the new ones whose logits and weights the convolutions read."""
    if spec is None:
        return 0
    return min(before, sum(x.shape[1] - 1 for x in (spec.before, spec.after) if x is not None))


def _over_cache(cache: Cache, count: int, settings: dict) -> dict:
    """Settings of fovea.attention for the last `count` tokens as queries."""
    rows = {name: cache._of(name) for name in cache._rows}
    def last(name):
        return rows[name].narrow(_axis(name), len(cache) - count, count)

    if "documents" in rows:
        settings["documents"] = Documents(last("documents"), rows["documents"])
    if "positions" in rows:
        settings |= {"query_positions": last("positions"), "key_positions": rows["positions"]}
    if "temperature" in rows:
        settings["temperature"] = last("temperature")
    if settings["focus"] is not None:
        settings["focus"] = replace(settings["focus"], **{n: rows[n] for n in ("assignment", "members") if n in rows})
    if "routes" in rows:
        settings["routing"] = replace(settings["routing"], keys=rows["routes"], nearness=rows.get("nearness"))
    if "global_k" in rows:
        own = {"global_q": last("global_q")} if "global_q" in rows else {}
        settings["longformer"] = replace(settings["longformer"], global_k=rows["global_k"], global_v=rows["global_v"], **own)
    return settings


@torch.no_grad()
def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: Cache,
    *,
    scale: Optional[float] = None,
    temperature: Union[None, float, Tensor] = None,
    softcap: float = 0.0,
    window: int = 0,
    sinks: int = 0,
    sparsity: Optional[Sparsity] = None,
    sink_logit: Optional[Tensor] = None,
    documents: Optional[Documents] = None,
    positions: Optional[Tensor] = None,
    bias: Optional[Bias] = None,
    multi_token: Optional[MultiToken] = None,
    head_mix: Optional[HeadMix] = None,
    focus: Optional[Focus] = None,
    differential: Optional[Differential] = None,
    longformer: Optional[Longformer] = None,
    blocks: Optional[Blocks] = None,
    routing: Optional[Routing] = None,
    performer: Optional[Performer] = None,
    sparq: Optional[Sparq] = None,
    magic_pig: Optional[MagicPig] = None,
    streaming: Optional[Streaming] = None,
    kv_shift: Optional[KvShift] = None,
    head_output: Optional[HeadOutput] = None,
    score_mod: Optional[Callable] = None,
    mask_mod: Optional[Callable] = None,
    return_lse: bool = False,
    stats: bool = False,
    path: str = "automatic",
) -> Union[Tensor, tuple]:
    """Appends the next t tokens to `cache` and returns their attention to all tokens there: causal, without gradients.

    q [b, h, t, d], k [b, g, t, d], v [b, g, t, e]: of the new tokens, one or many (a prompt, drafts).
    The result is that of the last t rows of `fovea.attention` over the whole sequence.

    temperature, documents, positions, focus, longformer, routing, streaming: what is given by token is given for the new tokens alone; the
    cache holds the rest. Other settings are those of `fovea.attention`, and the same in all calls on a cache.

    Where a call raises, the cache is as before.
    """
    q, k, v = autocast(q, k, v)
    check_rows(q, k, v, 1 if differential is None else 2)
    _expect(q.shape[2] == k.shape[2], f"expected q, k and v of the new tokens; got {q.shape[2]} queries, {k.shape[2]} keys")
    before = len(cache)
    kept = dict(cache._rows)
    try:
        cache._append(_new_rows(q, k, v, temperature, documents, positions, multi_token, focus, longformer, routing))
        extra = _earlier_queries(multi_token, before)
        settings = _over_cache(cache, q.shape[2] + extra, {
            "scale": scale, "temperature": temperature, "softcap": softcap, "window": window, "sinks": sinks,
            "sparsity": sparsity, "sink_logit": sink_logit, "bias": bias, "multi_token": multi_token, "head_mix": head_mix,
            "focus": focus, "differential": differential, "longformer": longformer, "blocks": blocks, "routing": routing,
            "performer": performer, "sparq": sparq, "magic_pig": magic_pig, "streaming": streaming, "kv_shift": kv_shift,
            "head_output": head_output, "score_mod": score_mod, "mask_mod": mask_mod, "return_lse": return_lse,
            "stats": stats, "path": path})
        queries = cache._of("q")[:, :, before - extra:] if extra else q
        result = attention(queries, cache.keys, cache.values, **settings)
    except BaseException:
        cache._rows, cache._length = kept, before
        raise
    return _without_first(result, extra)


def _without_first(result, rows: int):
    if not rows:
        return result
    if isinstance(result, Tensor):
        return result[:, :, rows:]
    return type(result)(*(_without_first(x, rows) for x in result)) if hasattr(result, "_fields") else tuple(
        _without_first(x, rows) for x in result)
