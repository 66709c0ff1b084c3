"""Numbers of Fovea's counter-based generator, Philox 4x32-10 (fovea/base/rng.h): the same draws as the program's.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from __future__ import annotations

import math

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF


def _philox(key: int, low: Tensor, high: int) -> Tensor:
    """64 random bits a counter: [words 0 and 1, n], each of 32 bits in int64."""
    k0, k1 = key & _LOW, key >> 32
    c = [low & _LOW, (low >> 32) & _LOW, torch.full_like(low, high & _LOW), torch.full_like(low, high >> 32)]
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57  # modulo 2^64
        c = [((p1 >> 32) & _LOW) ^ c[1] ^ k0, p1 & _LOW, ((p0 >> 32) & _LOW) ^ c[3] ^ k1, p0 & _LOW]
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    return torch.stack(c[:2])


def mix_seed(seed: int, value: int) -> int:
    low, high = _philox(seed, torch.tensor([value]), 0x466F766561)[:, 0].tolist()
    return high << 32 | low


def normals(seed: int, first: int, count: int) -> Tensor:
    """Standard normals `first`, ... of the seed's sequence, float64 (Box-Muller, two draws each)."""
    low, high = _philox(seed, torch.arange(2 * first, 2 * (first + count)), 0)
    uniform = ((high << 21) | (low >> 11)).double() * 2.0**-53
    return torch.sqrt(-2.0 * torch.log(1.0 - uniform[::2])) * torch.cos(2.0 * math.pi * uniform[1::2])
