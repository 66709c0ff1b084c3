#!/usr/bin/env python3
"""Writes gguf_blocks.json: blocks of every number format of GGUF that is read, and their values by the `gguf` package;
and values with their blocks of Q8_0.

Bytes and float32 values stand as hexadecimal text, little-endian. Run by hand (`pip install gguf`); the tests only read
the file.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import json
import pathlib

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize, quantize

# Bytes of a block that are float16 scales; the rest may be anything.
SCALES = {"F32": [], "F16": [0], "BF16": [], "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
# The largest and smallest float16, both signs, zero, and usual scales.
HALVES = [0.0123, -0.5, 65504.0, -65504.0, 6e-8, -3e-6, 6.1e-5, 0.0, 1.0]
BLOCKS = 9


def blocks_of(kind: GGMLQuantizationType, random: np.random.Generator) -> np.ndarray:
    values, size = GGML_QUANT_SIZES[kind]
    if kind == GGMLQuantizationType.F32:
        return random.standard_normal(BLOCKS).astype(np.float32).view(np.uint8).reshape(BLOCKS, size)
    if kind == GGMLQuantizationType.BF16:
        return (random.standard_normal(BLOCKS).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(
            np.uint8).reshape(BLOCKS, size)
    blocks = random.integers(0, 256, (BLOCKS if values < 256 else 3, size), dtype=np.uint8)
    for i, block in enumerate(blocks):
        for j, at in enumerate(SCALES[kind.name]):
            block[at:at + 2] = np.array([HALVES[(i + 4 * j) % len(HALVES)]], np.float16).view(np.uint8)
    return blocks


def values_for_q8_0(random: np.random.Generator) -> np.ndarray:
    rows = random.standard_normal((8, 32)).astype(np.float32) * np.float32(10.0) ** random.integers(-6, 5, (8, 1))
    rows[1] = 0.0
    rows[2, :4] = [127.0, 0.5, -0.5, 126.5]  # d = 1: halves are rounded away from 0
    rows[2, 4:] = np.arange(28, dtype=np.float32) - 13.5
    return rows.astype(np.float32)


def main() -> None:
    random = np.random.default_rng(7)
    cases = []
    for name in SCALES:
        kind = GGMLQuantizationType[name]
        blocks = blocks_of(kind, random)
        values = np.concatenate([dequantize(b, kind).ravel() for b in blocks]).astype("<f4")
        assert np.isfinite(values).all(), name
        cases.append({"type": name, "number": int(kind), "blocks": blocks.tobytes().hex(), "values": values.tobytes().hex()})
    rows = values_for_q8_0(random)
    quantised = quantize(rows, GGMLQuantizationType.Q8_0)
    result = {"read": cases, "q8_0": {"values": rows.astype("<f4").tobytes().hex(), "blocks": quantised.tobytes().hex()}}
    path = pathlib.Path(__file__).with_name("gguf_blocks.json")
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{path}: {len(cases)} formats")


if __name__ == "__main__":
    main()
