"""Damaged checkpoints and what stands where a file is written.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

from case import Case

CASES = [
    Case(
        "a flipped bit of the weights is found and its file named",
        "cp -r {run} run && python3 {tools}/flip.py run/checkpoints/0000000012/model.safetensors && "
        "{fovea} checkpoint verify run",
        says=("model.safetensors", "is not what was written"),
    ),
]
