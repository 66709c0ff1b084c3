"""Fovea for PyTorch: attention whose temperatures, caps, windows, groups, kernels and head mixes are fused.

`fovea.attention` is the function, `fovea.nn` has modules, `fovea.transformers.register()` makes
`attn_implementation="fovea"` known to the library transformers.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from . import nn
from ._attention import attention
from ._settings import (Alibi, Blocks, Differential, DistanceBias, Documents, Focus, HeadMix, Longformer, MultiToken,
                        Stats)
from .focus import focus_groups, sinkhorn_potentials

__all__ = ["Alibi", "Blocks", "Differential", "DistanceBias", "Documents", "Focus", "HeadMix", "Longformer", "MultiToken",
           "Stats", "attention", "focus_groups", "nn", "sinkhorn_potentials"]
__version__ = "0.1.0"
