"""Fovea for PyTorch: attention whose temperatures, caps, windows, groups, kernels and head mixes are fused.

`fovea.attention` is the function, `fovea.decode` the same over a cache, `fovea.nn` has modules,
`fovea.transformers.register()` makes `attn_implementation="fovea"` known to the library transformers.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from . import nn
from ._attention import attention
from ._decode import Cache, decode
from ._patterns import places_in_cache, routes
from ._performer import performer_features
from ._settings import (Alibi, Blocks, Differential, DistanceBias, Documents, Dropout, Fixed, Focus, HeadMix, HeadOutput, KvShift,
                        Longformer, MagicPig, MultiToken, Performer, Routing, Sparq, Stats, Streaming, Strided, t5_bias)
from .focus import focus_groups, sinkhorn_potentials

__all__ = ["Alibi", "Blocks", "Cache", "Differential", "DistanceBias", "Documents", "Dropout", "Fixed", "Focus", "HeadMix",
           "HeadOutput", "KvShift", "Longformer", "MagicPig", "MultiToken", "Performer", "Routing", "Sparq", "Stats",
           "Streaming", "Strided", "attention", "decode", "focus_groups", "nn", "performer_features", "places_in_cache",
           "routes", "sinkhorn_potentials", "t5_bias"]
__version__ = "0.1.0"
