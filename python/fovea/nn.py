"""Modules: self-attention of a layer, projections included.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor, nn

from ._attention import attention
from ._decode import Cache, decode
from ._settings import Focus, MultiToken
from .focus import focus_groups, sinkhorn_potentials


class Attention(nn.Module):
    """Causal self-attention: x [b, t, width] to [b, t, width]. `settings` are those of `fovea.attention`.

    dropout: of attention weights, in training mode alone.
    """

    def __init__(self, width: int, heads: int, *, kv_heads: Optional[int] = None, linear_bias: bool = False,
                 dropout: float = 0.0, **settings):
        super().__init__()
        if width % heads or heads % (kv_heads or heads):
            raise ValueError(f"[fovea.nn.Attention] expected heads that divide the width, and kv_heads that divide the "
                             f"heads; got width {width}, heads {heads}, kv_heads {kv_heads}")
        self.heads, self.kv_heads, self.dropout, self.settings = heads, kv_heads or heads, dropout, settings
        head_dim = width // heads
        self.q_proj = nn.Linear(width, width, linear_bias)
        self.k_proj = nn.Linear(width, self.kv_heads * head_dim, linear_bias)
        self.v_proj = nn.Linear(width, self.kv_heads * head_dim, linear_bias)
        self.o_proj = nn.Linear(width, width, linear_bias)

    def mechanism(self, x: Tensor) -> dict:
        """Settings of the call on x; a subclass adds its own learned ones."""
        return self.settings

    def forward(self, x: Tensor, *, cache: Optional[Cache] = None, **settings) -> Tensor:
        """With a cache, x are the next tokens: their keys and values join those there (`fovea.decode`)."""
        q = self.q_proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (f(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2) for f in (self.k_proj, self.v_proj))
        settings = self.mechanism(x) | settings
        if self.training and self.dropout:
            if cache is not None:
                raise ValueError("[fovea.nn.Attention] expected no dropout with a cache: call eval() before; got "
                                 f"dropout {self.dropout} in training mode")
            settings = {"dropout": self.dropout} | settings
        if cache is None:
            out = attention(q, k, v, **settings)
        elif not settings.pop("causal", True):
            raise ValueError("[fovea.nn.Attention] expected causal attention with a cache; got causal=False")
        else:
            out = decode(q, k, v, cache, **settings)
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

    def mechanism(self, x: Tensor) -> dict:
        return self.settings | {"multi_token": MultiToken(before=self.kernel)}


class FocusAttention(Attention):
    """`Attention` whose distant pairs attend by learned groups of tokens (Focus), shared by the heads.

    groups, top_k, gate, window, sinks: as in `fovea.Focus`; group_width: of the space where tokens meet centroids;
    temperature: of the groups' scores. In training, potentials that balance the groups follow the batches with `decay`;
    those of earlier batches act, so that no token sees later ones. Set `gate` to "hard" for inference on few pairs.
    """

    def __init__(self, width: int, heads: int, *, groups: int = 8, top_k: int = 2, gate: str = "log", window: int = 128,
                 sinks: int = 4, group_width: int = 16, temperature: float = 0.1, decay: float = 0.99, **settings):
        super().__init__(width, heads, **settings)
        self.top_k, self.gate, self.window, self.sinks = top_k, gate, window, sinks
        self.temperature, self.decay = temperature, decay
        self.group_weight = nn.Parameter(torch.randn(group_width, width) * width**-0.5)
        self.centroids = nn.Parameter(nn.functional.normalize(torch.randn(groups, group_width), dim=-1))
        self.register_buffer("potentials", torch.zeros(groups))
        self.register_buffer("updates", torch.zeros(()))

    @torch.no_grad()
    def _balance(self, x: Tensor) -> None:
        scores = nn.functional.linear(x.float(), self.group_weight.float()) @ self.centroids.float().T / self.temperature
        found = sinkhorn_potentials(scores.flatten(0, 1))
        self.potentials.lerp_(found, torch.where(self.updates == 0, 1.0, 1.0 - self.decay))  # the first copies
        self.updates += 1

    def mechanism(self, x: Tensor) -> dict:
        shares, members = focus_groups(x, self.group_weight, self.centroids, potentials=self.potentials.clone(),
                                       temperature=self.temperature, top_k=self.top_k)
        if self.training:
            self._balance(x)
        return self.settings | {"focus": Focus(shares, members, self.gate, self.window, self.sinks, top_k=self.top_k)}
