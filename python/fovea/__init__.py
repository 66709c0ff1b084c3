"""Fovea for PyTorch: attention whose temperatures, caps, windows, sinks, kernels and head mixes are fused.

`fovea.attention` is the function, `fovea.nn` has modules, `fovea.transformers.register()` makes
`attn_implementation="fovea"` known to the library transformers.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
from . import nn
from ._attention import Alibi, DistanceBias, Documents, HeadMix, MultiToken, attention

__all__ = ["Alibi", "DistanceBias", "Documents", "HeadMix", "MultiToken", "attention", "nn"]
__version__ = "0.1.0"
