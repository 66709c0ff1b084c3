"""Modules: self-attention of a layer, projections included.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor, nn

from ._attention import MultiToken, attention


class Attention(nn.Module):
    """Causal self-attention: x [b, t, width] to [b, t, width]. `settings` are those of `fovea.attention`."""

    def __init__(self, width: int, heads: int, *, kv_heads: Optional[int] = None, linear_bias: bool = False, **settings):
        super().__init__()
        if width % heads or heads % (kv_heads or heads):
            raise ValueError(f"[fovea.nn.Attention] expected heads that divide the width, and kv_heads that divide the "
                             f"heads; got width {width}, heads {heads}, kv_heads {kv_heads}")
        self.heads, self.kv_heads, self.settings = heads, kv_heads or heads, settings
        head_dim = width // heads
        self.q_proj = nn.Linear(width, width, linear_bias)
        self.k_proj = nn.Linear(width, self.kv_heads * head_dim, linear_bias)
        self.v_proj = nn.Linear(width, self.kv_heads * head_dim, linear_bias)
        self.o_proj = nn.Linear(width, width, linear_bias)

    def mechanism(self) -> dict:
        """Learned settings of the call; a subclass adds its own."""
        return self.settings

    def forward(self, x: Tensor, **settings) -> Tensor:
        q = self.q_proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (f(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2) for f in (self.k_proj, self.v_proj))
        out = attention(q, k, v, **(self.mechanism() | settings))
        return self.o_proj(out.transpose(1, 2).flatten(2))


class MultiTokenAttention(Attention):
    """`Attention` with learned key-query kernels before the softmax, `queries` x `keys` taps a head.

    They start as the identity: the module computes plain attention until it learns otherwise.
    """

    def __init__(self, width: int, heads: int, *, queries: int = 6, keys: int = 11, **settings):
        super().__init__(width, heads, **settings)
        taps = torch.zeros(heads, queries, keys)
        taps[:, -1, (keys - 1) // 2] = 1.0
        self.kernel = nn.Parameter(taps)

    def mechanism(self) -> dict:
        return self.settings | {"multi_token": MultiToken(before=self.kernel)}
