#!/usr/bin/env python3
"""The NumPy transcriptions of our kernels (examples/*_attention.py) on the golden cases.

The pointwise kernels forward and backward, the mixing kernels forward.

    <python of `make python-peers`> tests/peers/check_example.py [FILE ...]      default: tests/golden/attention/*

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import json
import pathlib
import sys

import numpy as np
from safetensors import safe_open

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "examples"))
import mixing_attention  # noqa: E402
import pointwise_attention  # noqa: E402

BOUND = 1e-12
OTHER_KERNELS, JOINED = {"differential", "focus", "head_output"}, {"multi_token", "head_mix"}


def error_of(case: dict, spec: dict, metadata: dict) -> float:
    """Largest difference of an expected tensor over its largest element; infinities must be equal."""
    example = mixing_attention if JOINED & spec.keys() else pointwise_attention
    got, error = example.run(case, spec, metadata), 0.0
    for name in (n for n in case if n.startswith("expected_") and n.removeprefix("expected_") in got):
        a, b = got[name.removeprefix("expected_")], case[name]
        different = a != b
        error = max(error, np.abs(a[different] - b[different]).max(initial=0.0) / np.abs(b[np.isfinite(b)]).max())
    return error


def main() -> int:
    good = True
    for file in sys.argv[1:] or sorted((ROOT / "tests/golden/attention").glob("*.safetensors")):
        with safe_open(file, "np") as f:
            case, metadata = {name: f.get_tensor(name) for name in f.keys()}, f.metadata()
        spec = json.loads(metadata["attention_spec"])
        if OTHER_KERNELS & spec.keys() or (JOINED & spec.keys() and "bias" in spec):
            continue  # the reference's, or other kernels'
        error = error_of(case, spec, metadata)
        good &= bool(error < BOUND)
        print(f"{'ok  ' if error < BOUND else 'FAIL'} {pathlib.Path(file).name:36} largest error {error:.1e}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
