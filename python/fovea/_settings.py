"""The types of the settings of `fovea.attention`. Names are those of the recipes (docs/training.md).

Shapes: b batch, h query heads, t queries, s keys, d width of q and k, e width of v.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Optional, Sequence, Union

import torch
from torch import Tensor


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
class Strided:
    """Strided sparse masks (Child et al. 2019): keys of the call's `window`, and those with (i - j) mod `stride` = 0."""

    stride: int


@dataclass(frozen=True)
class Fixed:
    """Fixed sparse masks (Child et al. 2019): keys of the query's own block, and the last `summary` ones of every block.

    `block`: positions of a block. The call has no window: the blocks are the near keys.
    """

    block: int
    summary: int = 1


@dataclass(frozen=True)
class Dropout:
    """Weights are dropped with probability `rate`, the others divided by 1 - rate.

    A weight is dropped or not by a counter of `seed`, `layer`, batch row, head, query and key alone, as in the program.
    `seed`: a number or an int64 tensor with one; None: drawn from torch's generator, so that torch.manual_seed rules.
    """

    rate: float
    seed: Union[None, int, Tensor] = None
    layer: int = 0


@dataclass(frozen=True)
class Documents:
    """Tokens see their own document alone. `queries` [b, t], int64; `keys` [b, s]; None: those of the queries."""

    queries: Tensor
    keys: Optional[Tensor] = None


@dataclass(frozen=True)
class MultiToken:
    """Multi-Token Attention (Golovneva et al. 2025): key-query kernels before and after the softmax, one a head.

    `before`, `after`: [h, queries, keys], last row: the current query; None: no convolution. Fused up to 8 x 15.
    `equation`: "eq5" or "eq4" of the paper (which pairs of an older query count before the softmax).
    `renormalise`: weights sum to 1 again after the second convolution.
    """

    before: Optional[Tensor] = None
    after: Optional[Tensor] = None
    equation: str = "eq5"
    renormalise: bool = False


@dataclass(frozen=True)
class HeadMix:
    """Talking heads (Shazeer et al. 2020) over groups of `width` neighbouring heads, fused up to 32 wide.

    `before`: [h / width, width, width], stored (out, in), mixes logits; `after`: stored (in, out), mixes weights.
    """

    before: Optional[Tensor] = None
    after: Optional[Tensor] = None


@dataclass(frozen=True)
class Focus:
    """Focus: learned groups of tokens decide which distant pairs attend. The queries are the last of the keys.

    `assignment` [b, s, K]: share of every group in a token, differentiable; `members` [b, s], int64: bit n is set where
    the token is in group n. `fovea.focus_groups` makes both.
    `gate`: the logit of a distant pair, with the agreement a of two tokens' assignments:
    "log" s + ln(a + epsilon), "identity" s + ln(K a + epsilon), "mul" s sigma(strength a),
    "logsig" s + ln sigma(strength (a - threshold)), "hard" s if the members share a group, else -inf,
    "straight_through" as hard with epsilon, and the gradient of "log".
    `window`, `sinks`: pairs with i - j < window, and keys at the first positions of a document, are never gated.
    `strength`: a number, or a tensor with one number that may be learned.
    `top_k`: groups of a token at most, where known: a GPU's kernels of "hard" plan for that many. Else they are counted, for
    which the host waits; a compiled graph plans for all.
    """

    assignment: Optional[Tensor] = None
    members: Optional[Tensor] = None
    gate: str = "log"
    window: int = 128
    sinks: int = 4
    strength: Union[float, Tensor] = 10.0
    threshold: float = 0.5
    epsilon: float = 1e-6
    top_k: Optional[int] = None


@dataclass(frozen=True)
class Differential:
    """Differential Transformer (Ye et al. 2024): heads 2n and 2n + 1 are two maps; one minus lambda times the other.

    `lambdas` [4, d]: lambda = exp(l0.l1) - exp(l2.l3) + 0.8 - 0.6 exp(-0.3 depth); `depth`: the layer, from 0.
    q has 2H heads and k 2G; v has G, and the result H, which is neither normalised nor scaled.
    """

    lambdas: Tensor
    depth: int = 0


@dataclass(frozen=True)
class Longformer:
    """Longformer (Beltagy et al. 2020), causal: a window, dilated by head, and global tokens.

    Key j is seen by query i >= j of its document where i - j is a multiple of the head's dilation and at most `window`
    times it, or where i or j is global. `dilation`: one number, or one for each query head.
    `globals`: the first positions of a document are global; `global_positions`: these are, too.
    `global_q`, `global_k`, `global_v`: projections that global queries have and read, in the shapes of q, k and v; all
    or none.
    """

    window: int
    dilation: Union[int, Sequence[int]] = 1
    globals: int = 0
    global_positions: Sequence[int] = ()
    global_q: Optional[Tensor] = None
    global_k: Optional[Tensor] = None
    global_v: Optional[Tensor] = None


@dataclass(frozen=True)
class Blocks:
    """A given block-sparse rule: positions of a document in blocks of `size`; a query sees what is not later in the
    blocks that its own is paired with. `pairs`: (query block, key block), counted from 0."""

    size: int
    pairs: Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Routing:
    """Routing (Roy et al. 2021), causal: a query sees `keep` keys of its own cluster and document, and no others.

    `queries` [b, h, t], `keys` [b, h, s], int64: the cluster of each token for every query head; `fovea.routes` makes them.
    `choice`: "recent", the latest keys, or "nearest", those of the largest `nearness` [b, h, s] to the centroid, later ones
    first among equals.
    """

    queries: Tensor
    keys: Tensor
    keep: int = 256
    choice: str = "recent"
    nearness: Optional[Tensor] = None


@dataclass(frozen=True)
class Performer:
    """Performer (Choromanski et al. 2021), causal: random features in place of the softmax.

    Logits are ln(1/m sum_r exp(w_r.(q' + k') - |q'|^2/2 - |k'|^2/2)), q' = d^(1/4) scale q, k' = d^(-1/4) k.
    `features` [m, d]: the directions w_r; `fovea.performer_features` draws them.
    `stabiliser`, `epsilon`: "global" with an epsilon above 0 gives the published form, in which a row knows of later keys.
    """

    features: Tensor
    stabiliser: str = "running"
    epsilon: float = 0.0


@dataclass(frozen=True)
class Sparq:
    """SparQ (Ribar et al. 2023): a query chooses the keys that it reads by its largest components.

    `components`: r of the width that choose; `keys`: past keys that are read, the last `recent` always among them (-1:
    keys / 4). `reallocate`: the mean of all values gets the weight of keys that are not read. The choice has no gradient.
    """

    components: int
    keys: int = 128
    recent: int = -1
    reallocate: bool = True


@dataclass(frozen=True)
class MagicPig:
    """MagicPIG (Chen et al. 2024): a query samples keys by hashes and divides each weight by the chance of its choice.

    `bits` of a hash, `tables` hashes of a key; a key that agrees on two hashes is read. The first `start` positions of a
    document and the last `recent` keys always are. `seed`: of the projections. The choice has no gradient, weights have one.
    """

    bits: int
    tables: int = 150
    start: int = 4
    recent: int = 64
    seed: int = 0


@dataclass(frozen=True)
class Streaming:
    """StreamingLLM (Xiao et al. 2023): the first `start` and the `recent` last keys, at positions inside this cache.

    `queries` [b, h, t, d]: q as rotated to min(i, start + recent - 1), which start keys are read by; `fovea.places_in_cache`
    gives these positions. `recent` counts the token itself.
    """

    queries: Tensor
    recent: int
    start: int = 4


@dataclass(frozen=True)
class KvShift:
    """KV shifting (Xu et al. 2024): k'_i = a1 k_i + a2 k_(i-1), and values alike; nothing is before a document's first token.

    `keys` [g, 2]: (a1, a2) of every key head; `values`: of every value head; None: no shift. Keys are shifted after their
    rotation.
    """

    keys: Optional[Tensor] = None
    values: Optional[Tensor] = None


@dataclass(frozen=True)
class HeadOutput:
    """Norm, constant of the depth and gate of each head's output o, in this order.

    `norm` [e]: gain of an RMSNorm, shared by the heads, with `norm_eps`; None: no norm.
    `depth_scale`: "lambda" 0.2 + 0.6 exp(-0.3 depth), "inverse_sqrt" 1 / sqrt(depth + 1), or "none"; `depth`: the layer, from 0.
    `gate` with `gate_bias`: o sigma(u.o + c), u [e] and c []; or o sigma(U o + c), U [e, e] and c [e]; None: no gate.
    """

    norm: Optional[Tensor] = None
    norm_eps: float = 1e-5
    depth_scale: str = "none"
    depth: int = 0
    gate: Optional[Tensor] = None
    gate_bias: Optional[Tensor] = None


class Stats(NamedTuple):
    """Numbers of every row of weights, [b, h, t], float32, without gradient: the softmax's, before any convolution."""

    entropy: Tensor
    """In nats."""
    largest_weight: Tensor
    first_weight: Tensor
    """On position 0 of the document."""


Bias = Union[Alibi, DistanceBias]
Sparsity = Union[Strided, Fixed]
# A rule for distant keys; one at a time.
Pattern = Union[Longformer, Routing, Performer, Sparq, MagicPig, Streaming]


def alibi_slopes(heads: int) -> Tensor:
    """The paper's slopes of `heads` heads, any number of them: [heads], float32."""
    power = 2 ** int(math.log2(heads))
    exponents = [-8 * (h + 1) / power if h < power else -4 * (2 * (h - power) + 1) / power for h in range(heads)]
    return torch.tensor([2.0**x for x in exponents], dtype=torch.float32)


def _t5_buckets(buckets: int, max_distance: int, causal: bool) -> list[int]:
    """The bucket of every distance i - j: from 0, or from -max_distance where later keys are seen, to max_distance."""
    count = buckets if causal else buckets // 2
    exact = count // 2

    def bucket(n: int) -> int:
        if n < exact:
            return n
        return min(exact + int((count - exact) * (math.log(n / exact) / math.log(max_distance / exact))), count - 1)

    later = [] if causal else [count + bucket(n) for n in range(max_distance, 0, -1)]
    return later + [bucket(n) for n in range(max_distance + 1)]


def t5_bias(table: Tensor, *, max_distance: int = 128, causal: bool = True) -> DistanceBias:
    """The position bias of T5 (Raffel et al. 2020) for `fovea.attention`: distances share the rows of `table` in buckets.

    `table` [buckets, h], as T5's embedding has it; gradients reach it. Half of the buckets stand for one distance each, the
    others for ranges that grow up to `max_distance`. With causal=False half of them are for later keys. T5 has scale=1.0.
    """
    buckets = table.shape[0] if table.dim() == 2 else 0
    one_side = buckets if causal else buckets // 2
    if one_side < 2 or one_side % 2 or (not causal and buckets % 2):
        raise ValueError("[fovea.t5_bias] expected a table [buckets, h] with an even number of buckets, a multiple of 4 with "
                         f"causal=False; got {tuple(table.shape)}")
    if max_distance <= one_side // 2:
        raise ValueError(f"[fovea.t5_bias] expected a max_distance above the {one_side // 2} buckets of one distance; got "
                         f"{max_distance}")
    rows = torch.tensor(_t5_buckets(buckets, max_distance, causal), device=table.device)
    return DistanceBias(table.index_select(0, rows).T, 0 if causal else -max_distance)
