"""`fovea.attention` and the types of its settings.

Shapes: b batch, h query heads, g key/value heads (h is a multiple), t queries, s keys, d width of q and k, e width of v.
The names of settings are those of the recipes (docs/recipes.md).

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, Optional, Union

import torch
from torch import Tensor

from ._operator import operator


@dataclass(frozen=True)
class Alibi:
    """ALiBi (Press et al. 2022): -slope_h (i - j) joins the logits. `slopes` [h]; None: those of the paper."""

    slopes: Optional[Tensor] = None


@dataclass(frozen=True)
class DistanceBias:
    """A learned bias by distance: `table` [h, n], entry m for i - j = first + m; its ends stand for all beyond."""

    table: Tensor
    first: int = 0


@dataclass(frozen=True)
class Documents:
    """Tokens see their own document alone. `queries` [b, t], int64; `keys` [b, s]; None: those of the queries."""

    queries: Tensor
    keys: Optional[Tensor] = None


@dataclass(frozen=True)
class MultiToken:
    """Multi-Token Attention (Golovneva et al. 2025): key-query kernels before and after the softmax, one a head.

    `before`, `after`: [h, queries, keys], at most 8 x 15, last row: the current query; None: no convolution.
    `equation`: "eq5" or "eq4" of the paper (which pairs of an older query count before the softmax).
    `renormalise`: weights sum to 1 again after the second convolution.
    """

    before: Optional[Tensor] = None
    after: Optional[Tensor] = None
    equation: str = "eq5"
    renormalise: bool = False


@dataclass(frozen=True)
class HeadMix:
    """Talking heads (Shazeer et al. 2020) over groups of `width` neighbouring heads, at most 32 wide.

    `before`: [h / width, width, width], stored (out, in), mixes logits; `after`: stored (in, out), mixes weights.
    """

    before: Optional[Tensor] = None
    after: Optional[Tensor] = None


Bias = Union[Alibi, DistanceBias]


def alibi_slopes(heads: int) -> Tensor:
    """The paper's slopes of `heads` heads, any number of them: [heads], float32."""
    power = 2 ** int(math.log2(heads))
    exponents = [-8 * (h + 1) / power if h < power else -4 * (2 * (h - power) + 1) / power for h in range(heads)]
    return torch.tensor([2.0**x for x in exponents], dtype=torch.float32)


def _expect(holds: bool, text: Callable[[], str]) -> None:
    if not holds:  # the text is made for errors alone: it costs more than the check
        raise ValueError(f"[fovea.attention] {text()}")


def _check_rows(q: Tensor, k: Tensor, v: Tensor) -> None:
    def shapes() -> str:
        return f"got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"

    _expect(q.dim() == k.dim() == v.dim() == 4, lambda: f"expected q, k and v of shape [b, heads, tokens, width]; {shapes()}")
    _expect(k.shape[:3] == v.shape[:3] and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3],
            lambda: f"expected q [b, h, t, d], k [b, g, s, d] and v [b, g, s, e]; {shapes()}")
    _expect(q.shape[1] % k.shape[1] == 0, lambda: f"expected heads of q that are a multiple of those of k; {shapes()}")
    _expect(q.dtype == k.dtype == v.dtype, lambda: f"expected one dtype; got {q.dtype}, {k.dtype} and {v.dtype}")
    _expect(q.device == k.device == v.device, lambda: f"expected one device; got {q.device}, {k.device} and {v.device}")
    if q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise NotImplementedError(f"[fovea.attention] expected float32, bfloat16 or float16; got {q.dtype}: "
                                  "convert q, k and v by .float()")
    if q.device.type not in ("cpu", "meta"):
        raise NotImplementedError(f"[fovea.attention] expected tensors on the CPU; got {q.device}: "
                                  "this package has no kernels for other devices")
    if max(q.shape[3], v.shape[3]) > 256:
        raise NotImplementedError(f"[fovea.attention] expected widths of at most 256; {shapes()}")


def _floats(x: Optional[Tensor]) -> Optional[Tensor]:
    return None if x is None else x.float().contiguous()


def _places(x: Optional[Tensor], name: str, batch: int, tokens: int) -> Optional[Tensor]:
    if x is None:
        return None
    x = x[None] if x.dim() == 1 else x
    _expect(x.dim() == 2 and x.shape[0] in (1, batch) and x.shape[1] == tokens and not x.is_floating_point(),
            lambda: f"expected {name} as integers [{batch} or 1, {tokens}]; got {x.dtype} {tuple(x.shape)}")
    return x.long().contiguous()


def _tau(temperature: Union[None, float, Tensor], scale: float, q: Tensor):
    """The scale of all logits, and tau [b, t] where the temperature is a tensor: logits are q.k / tau."""
    if not isinstance(temperature, Tensor):
        temperature = 1.0 if temperature is None else temperature
        _expect(temperature > 0, lambda: f"expected a temperature above 0; got {temperature}")
        return scale / temperature, None
    rows = (q.shape[0], q.shape[2])
    _expect(temperature.dim() <= 2, lambda: f"expected a temperature that broadcasts to [b, t]; got {tuple(temperature.shape)}")
    return scale, (temperature.float() / scale).expand(rows).contiguous()


def _kernel(x: Optional[Tensor], name: str, heads: int) -> Optional[Tensor]:
    if x is not None:
        _expect(x.dim() == 3 and x.shape[0] == heads and 1 <= x.shape[1] <= 8 and 1 <= x.shape[2] <= 15,
                lambda: f"expected {name} [{heads}, 1 to 8 queries, 1 to 15 keys]; got {tuple(x.shape)}")
    return _floats(x)


def _mix(x: Optional[Tensor], name: str, heads: int) -> Optional[Tensor]:
    if x is not None:
        _expect(x.dim() == 3 and x.shape[1] == x.shape[2] <= 32 and x.shape[0] * x.shape[1] == heads,
                lambda: f"expected {name} [{heads} / width, width, width], width at most 32; got {tuple(x.shape)}")
    return _floats(x)


def _autocast(*tensors: Tensor):
    kind = tensors[0].device.type
    if kind != "meta" and torch.is_autocast_enabled(kind):
        return tuple(x.to(torch.get_autocast_dtype(kind)) for x in tensors)
    return tensors


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
    sink_logit: Optional[Tensor] = None,
    documents: Optional[Documents] = None,
    query_positions: Optional[Tensor] = None,
    key_positions: Optional[Tensor] = None,
    bias: Optional[Bias] = None,
    multi_token: Optional[MultiToken] = None,
    head_mix: Optional[HeadMix] = None,
    return_lse: bool = False,
) -> Union[Tensor, tuple[Tensor, Tensor]]:
    """Attention by Fovea's fused kernels, differentiable in every tensor but places and slopes; memory is linear in t and s.

    q [b, h, t, d], k [b, g, s, d], v [b, g, s, e], in float32, bfloat16 or float16 (computed in float32), on the CPU.
    The t queries are the last of the s tokens, unless positions say otherwise.

    causal: key j is seen by query i only where j <= i.
    scale: factor of q.k; None: 1 / sqrt(d).
    temperature: divides the logits: a number, or a tensor that broadcasts to [b, t] (a learned one included).
    softcap: c > 0 turns a logit s into c tanh(s / c) (Gemma 2).
    window: keys with i - j < window in tokens, self included; 0: all.
    sinks: the first positions of a document stay visible before the window (StreamingLLM).
    sink_logit: [h], one logit more in each softmax, with value 0 (gpt-oss).
    documents: packed sequences. query_positions [b, t], key_positions [b, s]: places of the tokens in their document.
    bias: Alibi or DistanceBias. multi_token: MultiToken. head_mix: HeadMix.
    return_lse: also the logarithm of the softmax's sum, [b, h, t], float32.

    Returns [b, h, t, e] in the dtype of q; a query that sees nothing gives 0.
    Raises ValueError for impossible shapes, NotImplementedError for what no kernel computes (float64, other devices,
    vmap, a second derivative). Formulas: docs/kernels/pointwise.md and docs/kernels/mixing.md.
    """
    q, k, v = _autocast(q, k, v)
    _check_rows(q, k, v)
    _expect(window >= 0 and sinks >= 0 and softcap >= 0, lambda: "expected window, sinks and softcap of at least 0; "
            f"got {window}, {sinks} and {softcap}")
    (batch, heads, queries, width), keys = q.shape, k.shape[2]
    scale, tau = _tau(temperature, width**-0.5 if scale is None else scale, q)
    tokens, mix = multi_token or MultiToken(), head_mix or HeadMix()
    _expect(tokens.equation in ("eq4", "eq5"), lambda: f"expected the equation eq4 or eq5; got {tokens.equation!r}")
    of_keys = None
    if documents is not None:
        _expect(documents.keys is not None or queries == keys, lambda: "documents of keys are needed where there are more keys")
        of_keys = documents.queries if documents.keys is None else documents.keys
    slopes = None
    if isinstance(bias, Alibi):
        slopes = alibi_slopes(heads) if bias.slopes is None else bias.slopes.detach().float().contiguous()
        _expect(slopes.shape == (heads,), lambda: f"expected {heads} slopes; got {tuple(slopes.shape)}")
    table = bias.table if isinstance(bias, DistanceBias) else None
    _expect(table is None or (table.dim() == 2 and table.shape[0] == heads), lambda: f"expected a table [{heads}, n]")
    _expect(sink_logit is None or sink_logit.shape == (heads,), lambda: f"expected sink_logit [{heads}]")
    rows = [x.float() if x.dtype == torch.float16 else x for x in (q, k, v)]
    out, lse, _ = operator(
        *(x if x.stride(-1) == 1 else x.contiguous() for x in rows),
        tau=tau,
        bias=_floats(table),
        sink_logit=_floats(sink_logit),
        kernel_before=_kernel(tokens.before, "multi_token.before", heads),
        kernel_after=_kernel(tokens.after, "multi_token.after", heads),
        mix_before=_mix(mix.before, "head_mix.before", heads),
        mix_after=_mix(mix.after, "head_mix.after", heads),
        alibi=slopes,
        query_positions=_places(query_positions, "query_positions", batch, queries),
        key_positions=_places(key_positions, "key_positions", batch, keys),
        query_documents=_places(documents and documents.queries, "documents.queries", batch, queries),
        key_documents=_places(of_keys, "documents.keys", batch, keys),
        causal=causal,
        scale=scale,
        soft_cap=softcap,
        bias_first=bias.first if isinstance(bias, DistanceBias) else 0,
        window=window,
        sinks=sinks,
        eq4=tokens.equation == "eq4",
        renormalise=tokens.renormalise and tokens.after is not None,
    )
    out = out.to(q.dtype)
    return (out, lse) if return_lse else out
