"""Groups of tokens for `fovea.attention(focus=...)`.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor


def sinkhorn_potentials(scores: Tensor, rounds: int = 10) -> Tensor:
    """Potentials [.., K] that balance the groups over all tokens of scores [.., n, K], centred (Sinkhorn, log domain).

    softmax(scores + potentials) has rows that sum to 1 and columns near n / K. It sees later tokens: a causal model takes
    a running mean of earlier batches.
    """
    of_columns = -torch.logsumexp(scores, -2, keepdim=True)
    for _ in range(1, rounds):
        of_rows = -torch.logsumexp(scores + of_columns, -1, keepdim=True)
        of_columns = -torch.logsumexp(scores + of_rows, -2, keepdim=True)
    of_columns = of_columns.squeeze(-2)
    return of_columns - of_columns.mean(-1, keepdim=True)


def top_members(scores: Tensor, top_k: int) -> Tensor:
    """The bits of the `top_k` largest of K <= 64 scores, int64; ties go to the lower index."""
    chosen = torch.sort(scores.detach(), dim=-1, descending=True, stable=True).indices[..., :top_k]
    return (torch.ones_like(chosen) << chosen).sum(-1)


def focus_groups(x: Tensor, weight: Tensor, centroids: Tensor, *, bias: Optional[Tensor] = None,
                 potentials: Optional[Tensor] = None, temperature: float = 0.1, top_k: int = 2) -> tuple[Tensor, Tensor]:
    """assignment [b, s, K] and members [b, s] of the layer's inputs x [b, s, c].

    weight [w, c], bias [w]: into the space of the centroids [K, w]. Scores are divided by `temperature`; potentials [K]
    (or [b, s, K]) join them, without gradient. A token is in its `top_k` groups.
    """
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    z = torch.nn.functional.linear(x.to(wide), weight.to(wide), None if bias is None else bias.to(wide))
    scores = z @ centroids.to(wide).T / temperature
    if potentials is not None:
        scores = scores + potentials.detach().to(wide)
    return torch.softmax(scores, -1), top_members(scores, top_k)
