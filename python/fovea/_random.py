"""Numbers of Fovea's counter-based generator, Philox 4x32-10 (fovea/base/rng.h): the same draws as the program's.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from __future__ import annotations

import math
from typing import Union

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF


def philox(key: Union[int, Tensor], low: Tensor, high: Union[int, Tensor]) -> list[Tensor]:
    """128 random bits of a counter: four words of 32 bits in int64. Tensors broadcast."""
    k0, k1 = key & _LOW, (key >> 32) & _LOW
    c = [low & _LOW, (low >> 32) & _LOW, high & _LOW, (high >> 32) & _LOW]
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57  # modulo 2^64
        c = [((p1 >> 32) & _LOW) ^ c[1] ^ k0, p1 & _LOW, ((p0 >> 32) & _LOW) ^ c[3] ^ k1, p0 & _LOW]
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    return c


def mixed_seeds(seed: Union[int, Tensor], values: Tensor) -> Tensor:
    """The seed mixed with each of the values, int64."""
    low, high, *_ = philox(seed, values, 0x466F766561)
    return high << 32 | low


def mix_seed(seed: int, value: int) -> int:
    return int(mixed_seeds(seed, torch.tensor(value))) & (1 << 64) - 1


def normals(seed: int, first: int, count: int) -> Tensor:
    """Standard normals `first`, ... of the seed's sequence, float64 (Box-Muller, two draws each)."""
    low, high, *_ = philox(seed, torch.arange(2 * first, 2 * (first + count)), 0)
    uniform = ((high << 21) | (low >> 11)).double() * 2.0**-53
    return torch.sqrt(-2.0 * torch.log(1.0 - uniform[::2])) * torch.cos(2.0 * math.pi * uniform[1::2])


def dropout_factors(rate: float, seed: Tensor, layer: int, sizes: tuple[int, int, int, int], like: Tensor) -> Tensor:
    """1 / (1 - rate) or 0 for the weights [b, h, t, s] of these sizes: the draws of fovea/kernels/common/dropout.h.

    `seed` [1]; the queries are the last of the keys. Four neighbouring keys share the words of a counter.
    """
    b, h, t, s = sizes
    batch, heads, queries, fours = (torch.arange(n, device=like.device) for n in (b, h, t, (s + 3) // 4))
    keys_of_rows = mixed_seeds(seed.to(like.device), batch)[:, None, None, None]
    words = philox(keys_of_rows, ((queries + (s - t)) << 32)[:, None] | fours, (layer << 32 | heads)[:, None, None])
    uniform = (torch.stack(torch.broadcast_tensors(*words), -1) >> 8).flatten(-2)[..., :s].float() * 2.0**-24
    return (uniform >= torch.tensor(rate, dtype=torch.float32, device=like.device)).to(like.dtype) / (1.0 - rate)
