"""Checks of a pattern, the rule by which queries choose distant keys, and what may stand beside it.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from __future__ import annotations

from typing import Optional

import torch

from ._call import expect
from ._reference import dilations
from ._settings import Longformer, MagicPig, Pattern, Performer, Routing, Sparq, Streaming

PATTERNS = {"longformer": Longformer, "routing": Routing, "performer": Performer, "sparq": Sparq, "magic_pig": MagicPig,
            "streaming": Streaming}
_TWO_RULES = ("window", "sinks", "sparsity", "focus", "blocks")
# A choice of keys knows q.k alone.
_ALONE = ("differential", "multi_token", "head_mix", "soft_cap", "bias", "sink_logit", "score_mod", "mask_mod")
_REFUSED = {
    "longformer": _TWO_RULES,
    "routing": (*_TWO_RULES, "differential", "multi_token", "head_mix"),
    "performer": (*_TWO_RULES, *_ALONE, "dropout"),
    "sparq": (*_TWO_RULES, *_ALONE),
    "magic_pig": (*_TWO_RULES, *_ALONE),
    "streaming": (*_TWO_RULES, "multi_token"),
}


def pattern_of(patterns: tuple, others: dict) -> Pattern:
    """The one pattern among those given, in the order of PATTERNS. `others`: the other settings of the call by name."""
    given = dict(zip(PATTERNS, patterns))
    found = [name for name, x in given.items() if x is not None]
    expect(len(found) == 1, lambda: f"expected one rule for distant keys; got {found[0]} and {found[1]}")
    name, = found
    expect(isinstance(given[name], PATTERNS[name]),
           lambda: f"expected fovea.{PATTERNS[name].__name__} for {name}; got {type(given[name]).__name__}")
    expect(others["causal"], lambda: f"expected causal=True with {name}")
    for other in _REFUSED[name]:
        acts = others[other] is not None and not (isinstance(others[other], (int, float)) and not others[other])
        expect(not acts, lambda: f"expected {name} without {other}; got both: one of them has to go")
    return given[name]


def _longformer(spec: Longformer, call: dict) -> None:
    q, k, v = call["q"], call["k"], call["v"]
    given = [x for x in (spec.global_q, spec.global_k, spec.global_v) if x is not None]
    expect(spec.window > 0 and spec.globals >= 0, lambda: "expected longformer.window above 0 and globals of at least 0")
    steps = dilations(spec, q.shape[1])
    expect(len(steps) == q.shape[1] and min(steps) >= 1,
           lambda: f"expected longformer.dilation of at least 1, one or {q.shape[1]} numbers; got {spec.dilation}")
    expect(not given or (len(given) == 3 and all(x.shape == y.shape and x.dtype == y.dtype
                                                 for x, y in zip(given, (q, k, v)))),
           lambda: "expected global_q, global_k and global_v in the shapes and dtype of q, k and v, or none of them")


def _routing(spec: Routing, call: dict) -> None:
    b, h, t, s = *call["q"].shape[:3], call["k"].shape[2]
    expect(spec.keep >= 1 and spec.choice in ("recent", "nearest"),
           lambda: f"expected routing.keep of at least 1 and the choice recent or nearest; got {spec.keep} and {spec.choice!r}")
    for name, tokens in (("queries", t), ("keys", s)):
        x = getattr(spec, name)
        expect(x.shape == (b, h, tokens) and x.dtype == torch.int64,
               lambda: f"expected routing.{name} [{b}, {h}, {tokens}], int64; got {x.dtype} {tuple(x.shape)}")
    near = spec.nearness
    expect(spec.choice == "recent" or (near is not None and near.shape == (b, h, s)),
           lambda: f"expected routing.nearness [{b}, {h}, {s}]; got {None if near is None else tuple(near.shape)}")


def _performer(spec: Performer, call: dict) -> None:
    shape, width = spec.features.shape, call["q"].shape[3]
    expect(len(shape) == 2 and shape[0] > 0 and shape[1] == width,
           lambda: f"expected performer.features [m, {width}]; got {tuple(shape)}")
    expect(spec.stabiliser in ("running", "global") and spec.epsilon >= 0,
           lambda: f"expected the stabiliser running or global and an epsilon of at least 0; got {spec.stabiliser!r} and {spec.epsilon}")
    expect(spec.epsilon == 0 or spec.stabiliser == "global",
           lambda: "expected an epsilon of 0 with the stabiliser running: the result would depend on the order of the keys")


def _sparq(spec: Sparq, call: dict) -> None:
    expect(1 <= spec.components <= call["q"].shape[3],
           lambda: f"expected sparq.components of 1 to {call['q'].shape[3]}; got {spec.components}")
    expect(spec.keys >= 1 and -1 <= spec.recent <= spec.keys,
           lambda: f"expected sparq.keys of at least 1 and recent of -1 to as many; got {spec.keys} and {spec.recent}")


def _magic_pig(spec: MagicPig, call: dict) -> None:
    expect(1 <= spec.bits <= 30 and 2 <= spec.tables <= 4096,
           lambda: f"expected magic_pig.bits of 1 to 30 and tables of 2 to 4096; got {spec.bits} and {spec.tables}")
    expect(spec.start >= 0 and spec.recent >= 0 and spec.seed >= 0,
           lambda: f"expected magic_pig.start, recent and seed of at least 0; got {spec.start}, {spec.recent} and {spec.seed}")


def _streaming(spec: Streaming, call: dict) -> None:
    q = call["q"]
    expect(spec.recent >= 1 and spec.start >= 0,
           lambda: f"expected streaming.recent of at least 1 and start of at least 0; got {spec.recent} and {spec.start}")
    expect(spec.queries.shape == q.shape and spec.queries.dtype == q.dtype,
           lambda: f"expected streaming.queries like q, {q.dtype} {tuple(q.shape)}; got {spec.queries.dtype} {tuple(spec.queries.shape)}")


def check_pattern(pattern: Pattern, call: dict) -> None:
    """ValueError where a pattern's numbers and shapes are impossible for the call."""
    {Longformer: _longformer, Routing: _routing, Performer: _performer, Sparq: _sparq, MagicPig: _magic_pig,
     Streaming: _streaming}[type(pattern)](pattern, call)
