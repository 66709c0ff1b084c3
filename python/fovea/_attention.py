"""`fovea.attention`: the function.

Shapes: b batch, h query heads, g key/value heads (h is a multiple), t queries, s keys, d width of q and k, e width of v.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from __future__ import annotations

import math
from dataclasses import replace
from typing import Callable, Optional, Union

import torch
from torch import Tensor

from ._call import check_rows, drawn, expect, operands, why_not_kernels
from ._heads import head_output as of_heads
from ._heads import shift_rows
from ._operator import REFUSED, attention_operator
from ._parts import by_parts, why_not_parts
from ._performer import by_sums
from ._reference import reference
from ._rules import PATTERNS, check_pattern, pattern_of
from ._settings import (Alibi, Bias, Blocks, Differential, DistanceBias, Documents, Dropout, Focus, HeadMix, HeadOutput, KvShift,
                        Longformer, MagicPig, MultiToken, Pattern, Performer, Routing, Sparq, Sparsity, Stats, Streaming)


def autocast(*tensors: Tensor):
    kind = "cpu" if tensors[0].is_cpu else tensors[0].device.type
    if kind != "meta" and torch.is_autocast_enabled(kind):
        return tuple(x.to(torch.get_autocast_dtype(kind)) for x in tensors)
    return tensors


def _fused(call: dict):
    for name in ("q", "k", "v"):
        x = call[name]
        if x.dtype == torch.float16 or x.stride(-1) != 1:
            x = x.float() if x.dtype == torch.float16 else x
            call = call | {name: x.contiguous()}
    out, lse, _, stats = attention_operator(call)
    return out, lse, stats.detach() if call["stats"] else None


def _by_kernels(call: dict, pattern: Optional[Pattern]):
    if pattern is None:
        return _fused(call)
    return *by_parts(call, pattern, lambda part: _fused(part)[:2]), None


def _refuse_fused(why_not: str) -> None:
    raise NotImplementedError("[fovea.attention] expected a call that the kernels compute; got path='fused' and: "
                              f"{why_not}; path='reference' computes it")


def _has_sums(call: dict, pattern: Pattern) -> bool:
    places = ("query_positions", "key_positions", "query_documents", "key_documents")
    return (isinstance(pattern, Performer) and pattern.epsilon == 0 and not call["stats"]
            and all(call[name] is None for name in places) and call["q"].shape[2] <= call["k"].shape[2])


def _by_kernels_of_device(call: dict, pattern: Optional[Pattern], path: str):
    """On a GPU the library reads places just now, and may refuse what the settings alone allow."""
    if torch.compiler.is_compiling():
        return _by_kernels(call, pattern)
    try:
        return _by_kernels(call, pattern)
    except RuntimeError as error:
        if REFUSED not in str(error):
            raise
        if path == "fused":
            _refuse_fused(str(error))
        return reference(call, pattern)


def _halves(call: dict) -> Optional[tuple[dict, dict]]:
    """The call with either half of values that are twice as wide as keys, where the CUDA kernels compute these; else None."""
    if not call["q"].is_cuda or call["v"].shape[3] != 2 * call["q"].shape[3]:
        return None
    first, second = (call | {"v": x} for x in call["v"].chunk(2, -1))
    return (first, second) if why_not_kernels(first) is None else None


def _run(call: dict, pattern: Optional[Pattern], path: str):
    """out in the dtype of q, lse, statistics or None."""
    if path not in ("automatic", "fused", "reference"):
        expect(False, lambda: f"expected the path automatic, fused or reference; got {path!r}")
    why_not = why_not_kernels(call)
    if why_not and path != "reference" and (halves := _halves(call)) is not None:
        (first, lse, stats), (second, *_) = (_run(half, pattern, path) for half in halves)
        return torch.cat([first, second], -1), lse, stats
    sums = False
    if pattern is not None:
        check_pattern(pattern, call)
        why_not = why_not or why_not_parts(call, pattern)
        sums = path == "automatic" and _has_sums(call, pattern)
    if path == "fused" and why_not:
        _refuse_fused(why_not)
    if sums:
        (out, lse), stats = by_sums(call, pattern), None
    elif path == "reference" or why_not:
        out, lse, stats = reference(call, pattern)
    elif call["q"].is_cuda:
        out, lse, stats = _by_kernels_of_device(call, pattern, path)
    else:
        out, lse, stats = _fused(call) if pattern is None else _by_kernels(call, pattern)
    return out if out.dtype == call["q"].dtype else out.to(call["q"].dtype), lse, stats


def _every_second(x, n: int):
    """What a setting has for heads 2m + n."""
    if isinstance(x, Tensor):
        return x[n::2]
    if isinstance(x, Alibi):
        return x if x.slopes is None else Alibi(x.slopes[n::2])
    if isinstance(x, DistanceBias):
        return DistanceBias(x.table[n::2], x.first)
    if isinstance(x, Longformer) and not isinstance(x.dilation, int):
        return Longformer(x.window, tuple(x.dilation)[n::2], x.globals, x.global_positions)
    if isinstance(x, Streaming):
        return replace(x, queries=x.queries[:, n::2])
    return x


def _differential(q: Tensor, k: Tensor, v: Tensor, spec: Differential, settings: dict, pattern, path: str):
    """Two attentions with the same values: heads 2n minus lambda times heads 2n + 1."""
    expect(q.shape[1] % 2 == 0 and k.shape[1] % 2 == 0,
           lambda: f"expected pairs of heads under differential; got {q.shape[1]} and {k.shape[1]}")
    expect(spec.lambdas.shape == (4, q.shape[3]),
           lambda: f"expected lambdas [4, {q.shape[3]}]; got {tuple(spec.lambdas.shape)}")
    for name in ("multi_token", "head_mix", "score_mod", "mask_mod"):
        expect(settings[name] is None, lambda: f"expected no {name} beside differential")
    expect(not isinstance(pattern, Longformer) or pattern.global_q is None,
           lambda: "expected no projections of longformer beside differential")
    maps = []
    for n in range(2):
        own = settings | {name: _every_second(settings[name], n) for name in ("sink_logit", "bias")}
        maps.append(_run(operands(q[:, n::2], k[:, n::2], v, own), _every_second(pattern, n), path))
    first, second = maps
    rows = spec.lambdas.to(second[1].dtype)
    start = 0.8 - 0.6 * math.exp(-0.3 * spec.depth)
    weight = torch.exp((rows[0] * rows[1]).sum()) - torch.exp((rows[2] * rows[3]).sum()) + start
    out = (first[0].to(rows.dtype) - weight * second[0].to(rows.dtype)).to(q.dtype)
    both = [None if x is None else torch.stack([x, y], 2).flatten(1, 2) for x, y in zip(first[1:], second[1:])]
    return out, *both


_NO_PATTERN = (None,) * len(PATTERNS)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    scale: Optional[float] = None,
    temperature: Union[None, float, Tensor] = None,
    softcap: float = 0.0,
    window: int = 0,
    sinks: int = 0,
    sparsity: Optional[Sparsity] = None,
    sink_logit: Optional[Tensor] = None,
    documents: Optional[Documents] = None,
    query_positions: Optional[Tensor] = None,
    key_positions: Optional[Tensor] = None,
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
    dropout: Union[float, Dropout] = 0.0,
    score_mod: Optional[Callable] = None,
    mask_mod: Optional[Callable] = None,
    return_lse: bool = False,
    stats: bool = False,
    path: str = "automatic",
) -> Union[Tensor, tuple]:
    """Attention by Fovea's fused kernels, differentiable in every tensor but places, members and slopes.

    q [b, h, t, d], k [b, g, s, d], v [b, g, s, e], on a CPU or a GPU. The kernels compute float32, bfloat16 and float16 (in
    float32) on the CPU, and bfloat16 on a GPU.
    The t queries are the last of the s tokens, unless positions say otherwise.

    causal: key j is seen by query i only where j <= i.
    scale: factor of q.k; None: 1 / sqrt(d).
    temperature: divides the logits: a number, or a tensor that broadcasts to [b, t] (a learned one included).
    softcap: c > 0 turns a logit s into c tanh(s / c) (Gemma 2).
    window: keys with i - j < window in tokens, self included; 0: all.
    sinks: the first positions of a document stay visible before the window (StreamingLLM).
    sparsity: Strided or Fixed, sparse masks.
    sink_logit: [h], one logit more in each softmax, with value 0 (gpt-oss).
    documents: packed sequences.
    query_positions, key_positions: [b, t] and [b, s], places of the tokens in their document.
    bias: Alibi or DistanceBias; t5_bias makes the latter of T5's buckets.
    multi_token, head_mix, focus, blocks: mechanisms; their types say what they compute.
    longformer, routing, performer, sparq, magic_pig, streaming: rules for distant keys, one at a time.
    differential: two maps a head; v and the result have half the heads.
    kv_shift: mixes keys and values with those of the token before.
    head_output: norm, constant of the depth and gate of each head's result.
    dropout: probability that a weight is dropped, by a seed of torch's generator; Dropout names a seed. For training.
    score_mod: your own stage, score_mod(score, b, h, q_idx, kv_idx) as in FlexAttention: what takes the place of the logits,
    where a bias joins. Called once with tensors that broadcast to [b, h, t, s]; indices of tokens are their positions.
    mask_mod: mask_mod(b, h, q_idx, kv_idx), pairs that are seen, of those that the other settings allow. The reference
    computes both; gradients reach what they read.
    return_lse: also the logarithm of the softmax's sum, [b, h, t], float32.
    stats: also Stats, numbers of every row of weights.
    path: "fused" takes the kernels or raises; "reference" takes plain tensor operations, whose memory grows with t x s;
    "automatic" takes the kernels where they can compute the call, else the reference; docs/python.md says which those are.

    Returns [b, h, t, e] in the dtype of q, or a tuple (result, lse if asked for, Stats if asked for); a query that sees
    nothing gives 0. Memory of the kernels is linear in t and s.
    Raises ValueError for impossible shapes, NotImplementedError for vmap and a second derivative of the kernels.
    Formulas: docs/kernels/pointwise.md, docs/kernels/mixing.md and docs/kernels/grouped.md.
    """
    q, k, v = autocast(q, k, v)
    check_rows(q, k, v, 1 if differential is None else 2)
    if kv_shift is not None:
        k, v = shift_rows(k, v, kv_shift, key_positions, documents, expect)
    if window < 0 or sinks < 0 or softcap < 0:
        expect(False, lambda: f"expected window, sinks and softcap of at least 0; got {window}, {sinks} and {softcap}")
    settings = {
        "causal": causal, "scale": scale, "temperature": temperature, "soft_cap": float(softcap), "window": window,
        "sinks": sinks, "sink_logit": sink_logit, "documents": documents, "query_positions": query_positions,
        "key_positions": key_positions, "bias": bias, "multi_token": multi_token, "head_mix": head_mix, "focus": focus,
        "blocks": blocks, "sparsity": sparsity, "dropout": drawn(dropout) if dropout else None,
        "score_mod": score_mod, "mask_mod": mask_mod, "stats": stats}
    pattern, patterns = None, (longformer, routing, performer, sparq, magic_pig, streaming)
    if patterns != _NO_PATTERN:
        pattern = pattern_of(patterns, settings | {"differential": differential})
        if streaming is not None:
            pattern = replace(streaming, queries=streaming.queries.to(q.dtype))
    if differential is not None:
        result = _differential(q, k, v, differential, settings, pattern, path)
    else:
        result = _run(operands(q, k, v, settings), pattern, path)
    out, lse, rows = result
    out = out if head_output is None else of_heads(out, head_output, expect)
    if not (return_lse or stats):
        return out
    return (out, *((lse,) if return_lse else ()), *((Stats(*rows.unbind(-1)),) if stats else ()))
