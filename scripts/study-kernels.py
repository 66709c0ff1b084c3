#!/usr/bin/env python3
"""What do the kernels of Multi-Token Attention become? Numbers of trained runs, one a seed.

    fovea compare recipes/laptop/mta-components.yaml
    scripts/study-kernels.py runs/studies multi-token before-gate before-no-norm

Printed is JSON, a row a run (docs/findings/results/mta-shapes.json):

depth     mean diagonal of the head mixes in the last layer minus that in the first (the paper's Figure 16); diagonals: layer by layer
others    the mean share of the other entries, by size, of the diagonal ones: the last layer minus the first (Figure 17); shares: layer
          by layer
diagonal  in the convolutions before the softmax, the mean weight of pairs "as far back in the queries as in the keys" minus the
          mean of all other pairs with an older query (Figures 4 and 9 to 14), as a share of the size of the current pair

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import json
import pathlib
import re
import struct
import sys

RUN = re.compile(r"(?P<variant>.+)-(?P<seed>\d+)-[0-9a-f]{8}$")


def mean(values) -> float:
    values = list(values)
    return sum(values) / len(values)


def tensors(path: pathlib.Path, wanted: str) -> dict:
    """name -> (matrices of the last two dimensions as lists of rows), for the float32 tensors whose name has `wanted`."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, entry in json.loads(raw[8 : 8 + size]).items():
        if wanted in name and name != "__metadata__":
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            values = struct.unpack(f"<{(end - begin) // 4}f", raw[begin:end])
            rows, columns = entry["shape"][-2:]
            flat = [values[at : at + columns] for at in range(0, len(values), columns)]
            out[name] = [flat[at : at + rows] for at in range(0, len(flat), rows)]
    return out


def layer_of(name: str) -> int:
    return int(re.search(r"layers\.(\d+)\.", name).group(1))


def by_layer(mixes: dict, measure) -> list:
    """`measure` of a mix of heads, averaged over groups and over the mixes before and after the softmax of a layer."""
    values: dict = {}
    for name, groups in mixes.items():
        values.setdefault(layer_of(name), []).append(mean(measure(mix) for mix in groups))
    return [mean(values[layer]) for layer in sorted(values)]


def diagonal(mix: list) -> float:
    return mean(mix[i][i] for i in range(len(mix)))


def others(mix: list) -> float:
    heads = range(len(mix))
    return mean(abs(mix[i][j]) for i in heads for j in heads if i != j) / mean(abs(mix[i][i]) for i in heads)


def diagonal_excess(kernel: list) -> float:
    """kernel: [queries][keys]; the last query and the middle key are the current ones (spec M-4)."""
    now, middle = len(kernel) - 1, (len(kernel[0]) - 1) // 2
    older = [(a, b) for a in range(now) for b in range(len(kernel[0]))]
    same = [(a, b) for a, b in older if now - a == middle - b]
    rest = [(a, b) for a, b in older if now - a != middle - b]
    return (mean(kernel[a][b] for a, b in same) - mean(kernel[a][b] for a, b in rest)) / abs(kernel[now][middle])


def main() -> int:
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    folder, *variants = sys.argv[1:]
    rows = []
    for run in sorted(pathlib.Path(folder).iterdir()):
        match = RUN.match(run.name)
        if not match or match["variant"] not in variants:
            continue
        path = sorted((run / "checkpoints").iterdir())[-1] / "model.safetensors"
        row = {"variant": match["variant"], "seed": int(match["seed"])}
        mixes = tensors(path, "head_mix")
        if mixes:
            for key, measure, name in (("depth", diagonal, "diagonals"), ("others", others, "shares")):
                layers = by_layer(mixes, measure)
                row[key] = round(layers[-1] - layers[0], 4)
                row[name] = [round(value, 4) for value in layers]
        kernels = [kernel for heads in tensors(path, "key_query_before").values() for kernel in heads]
        if kernels:
            row["diagonal"] = round(mean(diagonal_excess(kernel) for kernel in kernels), 5)
        rows.append(row)
    print('{"runs": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
