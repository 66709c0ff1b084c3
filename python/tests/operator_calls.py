"""torch's checks of the operator, on the call that `fovea.attention` makes of it.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
import torch

import fovea
from fovea import _attention, _operator


def operands(rows, **settings):
    """The operands by name of the one call that fovea.attention makes."""
    calls = []
    compute = _attention.attention_operator
    _attention.attention_operator = lambda call: calls.append(call) or compute(call)
    try:
        fovea.attention(*rows, **settings)
    finally:
        _attention.attention_operator = compute
    call, = calls
    return call


def opcheck(rows, **settings):
    call = operands(rows, **settings)
    leaves = {n: x.detach().requires_grad_(x.requires_grad or n in "qkv") if isinstance(x, torch.Tensor) else x
              for n, x in call.items()}
    torch.library.opcheck(_operator.operator, tuple(leaves[name] for name in _operator.NAMES))
