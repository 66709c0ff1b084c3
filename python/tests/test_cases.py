# The golden cases of the repository (NumPy, float64), and cases that the program computes, by fovea.attention.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from cases import compute
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import fovea

ROOT = Path(__file__).parents[2]
GOLDEN = sorted((ROOT / "tests/golden/attention").glob("*.safetensors"))
PROGRAM = Path(os.environ.get("FOVEA_PROGRAM", ROOT / "build/bin/fovea"))


def read(path):
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        return json.loads(metadata["attention_spec"]), metadata, {name: file.get_tensor(name) for name in file.keys()}


def assert_close(got, expected, tolerance):
    """Largest difference over largest value, of everything that is expected."""
    for name, y in expected.items():
        x, y = got[name].double(), y.double()
        finite = torch.isfinite(y)
        assert torch.equal(torch.isfinite(x), finite), name
        size = float(y[finite].abs().max()) if finite.any() else 0.0
        error = float((x - y)[finite].abs().max()) if finite.any() else 0.0
        assert error <= tolerance * max(size, 1e-3), f"{name}: {error} of {size}"


@pytest.mark.parametrize("case", GOLDEN, ids=lambda path: path.stem)
def test_golden_cases_are_computed_as_expected_with_gradients(case):
    spec, metadata, tensors = read(case)
    expected = {n.removeprefix("expected_"): x for n, x in tensors.items() if n.startswith("expected_")}
    assert_close(compute(spec, tensors, torch.float64, "automatic", metadata), expected, 1e-7)


B, H, G, T, D = 2, 4, 2, 45, 16


def numbers(*shape, scale=1.0, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64) * scale


QUERY_ROUTES, KEY_ROUTES, NEARNESS = fovea.routes(numbers(B, H, T, D), numbers(B, G, T, D, seed=1), numbers(H, 4, D, seed=5))
SPECS = {
    "routing": ({"routing": {"clusters": 4, "keep": 5}}, {"query_routes": QUERY_ROUTES, "key_routes": KEY_ROUTES}),
    "routing by nearness": ({"routing": {"clusters": 4, "keep": 5, "choice": "nearest"}},
                            {"query_routes": QUERY_ROUTES, "key_routes": KEY_ROUTES, "key_nearness": NEARNESS}),
    "performer": ({"performer": {"features": 24}}, {"features": fovea.performer_features(24, D, seed=3).double()}),
    "sparq": ({"sparq": {"components": 4, "keys": 8}}, {}),
    "sparq without reallocation": ({"sparq": {"components": 4, "keys": 8, "recent": 3, "reallocate": False}}, {}),
    "magic pig": ({"magic_pig": {"bits": 3, "tables": 20, "start": 2, "recent": 5, "seed": 7}}, {}),
    "streaming": ({"streaming": {"recent": 9, "start": 3}}, {"start_queries": numbers(B, H, T, D, seed=8)}),
    "longformer": ({"longformer": {"window": 5, "dilation": [1, 1, 2, 3], "globals": 1, "global_positions": [20]}}, {}),
    "blocks": ({"blocks": {"size": 16, "pairs": [0, 0, 1, 0, 1, 1, 2, 2]}}, {}),
    "gate of heads": ({"head_output": {"norm": "rms", "gate": "full", "depth_scale": "lambda"}, "depth": 2},
                      {"head_gain": numbers(D), "gate_weight": numbers(D, D, scale=0.3), "gate_bias": numbers(D)}),
    "t5": ({"bias": {"kind": "t5", "buckets": 8, "max_distance": 20}}, {"bias_table": numbers(8, H)}),
    "t5 of later keys": ({"bias": {"kind": "t5", "buckets": 8, "max_distance": 20}, "mask": {"causal": False}},
                         {"bias_table": numbers(8, H)}),
    "strided": ({"mask": {"sparsity": "strided", "stride": 7, "window": 5, "sinks": 2}}, {}),
    "strided, later keys too": ({"mask": {"sparsity": "strided", "stride": 7, "window": 5, "causal": False}}, {}),
    "fixed": ({"mask": {"sparsity": "fixed", "block": 8, "summary": 2, "sinks": 1}}, {}),
    "fixed, later keys too": ({"mask": {"sparsity": "fixed", "block": 8, "summary": 2, "causal": False}}, {}),
    "strided with multi-token": ({"mask": {"sparsity": "strided", "stride": 7, "window": 5},
                                  "multi_token": {"before": {"queries": 3, "keys": 5}}}, {"kernel_before": numbers(H, 3, 5, scale=0.3)}),
    "dropout": ({"dropout": 0.3}, {}, {"dropout_seed": "1234567890123", "layer": "3"}),
    "dropout of mixed heads": ({"dropout": 0.4, "head_mix": {"after": "full"}}, {"mix_after": numbers(1, H, H)}, {"dropout_seed": "5"}),
    "dropout under hard Focus": ({"dropout": 0.3, "focus": {"gate": "hard", "groups": 3, "window": 4, "sinks": 1, "top_k": 1}},
                                 {"members": 1 << torch.arange(B * T).reshape(B, T) % 3}, {"dropout_seed": "7"}),
    "dropout of two maps": ({"dropout": 0.3, "differential": True},
                            {"v": numbers(B, G // 2, T, 2 * D), "lambda": numbers(4, D, scale=0.3), "grad_out": numbers(B, H // 2, T, 2 * D)},
                            {"dropout_seed": "8"}),
    "dropout of chosen keys": ({"dropout": 0.3, "sparq": {"components": 4, "keys": 8}}, {}, {"dropout_seed": "9"}),
    "dropout of sampled keys": ({"dropout": 0.3, "magic_pig": {"bits": 3, "tables": 20, "start": 2, "recent": 5}}, {}, {"dropout_seed": "9"}),
    "dropout under Longformer": ({"dropout": 0.3, "longformer": {"window": 5, "dilation": [1, 1, 2, 3], "globals": 1}}, {},
                                 {"dropout_seed": "10"}),
}
# Those that the kernels compute.
FUSED = ["longformer", "blocks", "streaming", "t5", "t5 of later keys", "strided", "strided, later keys too", "fixed",
         "fixed, later keys too", "strided with multi-token", "dropout", "dropout of mixed heads", "dropout under hard Focus",
         "dropout of two maps"]


@pytest.mark.skipif(not PROGRAM.is_file(), reason="no program: make program")
@pytest.mark.parametrize("name", SPECS)
def test_results_and_gradients_are_those_of_the_program(tmp_path, name):
    spec, others, *metadata = SPECS[name]
    metadata = metadata[0] if metadata else {}
    spec = {"heads": H, "kv_heads": G, "head_dim": D, **spec}
    tensors = {"q": numbers(B, H, T, D), "k": numbers(B, G, T, D, seed=1), "v": numbers(B, G, T, D, seed=2),
               "grad_out": numbers(B, H, T, D, seed=3), **others}
    save_file({n: x.contiguous() for n, x in tensors.items()}, tmp_path / "case.safetensors", {"attention_spec": json.dumps(spec), **metadata})
    done = subprocess.run([PROGRAM, "attention", tmp_path / "case.safetensors", "--path", "reference", "--dtype", "float64",
                           "--out", tmp_path / "out.safetensors", "--quiet"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = {n: x for n, x in load_file(tmp_path / "out.safetensors").items() if n in ("out", "lse") or n.startswith("grad_")}
    assert {"out", "grad_q", "grad_k", "grad_v"} <= expected.keys()
    for dtype, path, tolerance in [(torch.float64, "reference", 1e-6), (torch.float32, "fused", 1e-4)][: 1 + (name in FUSED)]:
        got = compute(spec, tensors, dtype, path, metadata)
        assert_close(got, {n: x for n, x in expected.items() if n in got}, tolerance)
