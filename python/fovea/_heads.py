"""What stands before and behind attention: KV shifting of keys and values, norm and gate of each head's output.

Shapes: b batch, h heads, g key heads, t queries, s keys, d width of k, e width of v.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from __future__ import annotations

import math
from typing import Callable, Optional

import torch
from torch import Tensor

from ._settings import Documents, HeadOutput, KvShift

Expect = Callable[[bool, Callable[[], str]], None]


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _apart(positions: Optional[Tensor], documents: Optional[Documents]) -> Optional[Tensor]:
    """Where a key is not the next token of the document before it, [b or 1, 1, s - 1, 1]; None: nowhere."""
    labels = None if documents is None else documents.queries if documents.keys is None else documents.keys
    found = None
    for x, step in ((positions, 1), (labels, 0)):
        if x is not None:
            breaks = x.reshape(-1, x.shape[-1]).diff(dim=1) != step
            found = breaks if found is None else found | breaks
    return None if found is None else found[:, None, :, None]


def _shifted(x: Tensor, weights: Tensor, apart: Optional[Tensor]) -> Tensor:
    before = x[:, :, :-1] if apart is None else x[:, :, :-1].masked_fill(apart.to(x.device), 0.0)
    before = torch.cat([torch.zeros_like(x[:, :, :1]), before], 2)
    own, other = (weights.to(_wide(x))[:, n, None, None] for n in range(2))
    return (x.to(own.dtype) * own + before.to(own.dtype) * other).to(x.dtype)


def shift_rows(k: Tensor, v: Tensor, spec: KvShift, positions: Optional[Tensor], documents: Optional[Documents],
               expect: Expect) -> tuple[Tensor, Tensor]:
    """k and v after KV shifting."""
    apart = _apart(positions, documents)
    rows = []
    for name, x, weights in (("keys", k, spec.keys), ("values", v, spec.values)):
        if weights is not None:
            expect(weights.shape == (x.shape[1], 2),
                   lambda: f"expected kv_shift.{name} [{x.shape[1]}, 2]; got {tuple(weights.shape)}")
            x = _shifted(x, weights, apart) if x.shape[2] else x
        rows.append(x)
    return rows[0], rows[1]


def _check_output(spec: HeadOutput, width: int, expect: Expect) -> None:
    scales = ("none", "lambda", "inverse_sqrt")
    expect(spec.depth_scale in scales, lambda: f"expected a depth_scale of {', '.join(scales)}; got {spec.depth_scale!r}")
    expect(spec.norm is None or spec.norm.shape == (width,), lambda: f"expected head_output.norm [{width}]; got {tuple(spec.norm.shape)}")
    if spec.gate is None:
        expect(spec.gate_bias is None, lambda: "expected no head_output.gate_bias without a gate")
        return
    expect(spec.gate.shape in ((width,), (width, width)),
           lambda: f"expected head_output.gate [{width}] or [{width}, {width}]; got {tuple(spec.gate.shape)}")
    expect(spec.gate_bias is not None and spec.gate_bias.shape == spec.gate.shape[1:],
           lambda: f"expected head_output.gate_bias {tuple(spec.gate.shape[1:])}; got "
           f"{None if spec.gate_bias is None else tuple(spec.gate_bias.shape)}")


def head_output(out: Tensor, spec: HeadOutput, expect: Expect) -> Tensor:
    """out [b, h, t, e] after norm, constant of the depth, and gate."""
    _check_output(spec, out.shape[3], expect)
    wide = _wide(out)
    o = out.to(wide)
    if spec.norm is not None:
        o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + spec.norm_eps) * spec.norm.to(wide)
    if spec.depth_scale == "lambda":
        o = o * (0.2 + 0.6 * math.exp(-0.3 * spec.depth))
    elif spec.depth_scale == "inverse_sqrt":
        o = o / math.sqrt(spec.depth + 1)
    if spec.gate is not None and spec.gate.dim() == 1:
        o = o * torch.sigmoid((o @ spec.gate.to(wide))[..., None] + spec.gate_bias.to(wide))
    elif spec.gate is not None:
        o = o * torch.sigmoid(torch.nn.functional.linear(o, spec.gate.to(wide), spec.gate_bias.to(wide)))
    return o.to(out.dtype)
