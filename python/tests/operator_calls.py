"""torch's checks of the operator, on the call that `fovea.attention` makes of it.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
import torch

import fovea
from fovea import _attention


def opcheck(rows, **settings):
    calls = []
    operator = _attention.operator
    _attention.operator = lambda *x, **given: calls.append((x, given)) or operator(*x, **given)
    try:
        fovea.attention(*rows, **settings)
    finally:
        _attention.operator = operator
    (x, given), = calls
    leaves = {n: y.detach().requires_grad_(y.requires_grad) if isinstance(y, torch.Tensor) else y
              for n, y in given.items()}
    torch.library.opcheck(operator, tuple(y.detach().requires_grad_() for y in x), leaves)
