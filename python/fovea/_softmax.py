"""The softmax of rows that may see nothing.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor


def softmax(x: Tensor, seen: Tensor, sink: Optional[Tensor] = None) -> tuple[Tensor, Tensor]:
    """Weights, and the logarithm of their sum; rows that see nothing are 0 and -inf."""
    top = torch.cat([x.detach().masked_fill(~seen, -torch.inf), x.new_full((*x.shape[:3], 1), -torch.inf)], -1)
    top = top.amax(-1, keepdim=True)
    if sink is not None:
        sink = sink[None, :, None, None]
        top = torch.maximum(top, sink.detach())
    top = top.masked_fill(top == -torch.inf, 0.0)
    e = torch.exp(x.masked_fill(~seen, -torch.inf) - top)
    total = e.sum(-1, keepdim=True)
    total = total if sink is None else total + torch.exp(sink - top)
    empty = total == 0
    total = total.masked_fill(empty, 1.0)
    return e / total, (total.log() + top).masked_fill(empty, -torch.inf)[..., 0]
