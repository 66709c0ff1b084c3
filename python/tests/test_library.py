# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fovea._operator
import fovea.nn

CUDA = fovea._operator.LIBRARY.with_name("libfovea_cuda.so")
# Where nvcc was, the CUDA kernels are a library of their own, which needs no torch.
LIBRARIES = {"kernels": (fovea._operator.LIBRARY, {"libtorch_cpu", "libgomp"})} | (
    {"CUDA kernels": (CUDA, {"libdl", "librt"})} if CUDA.is_file() else {})


def undefined_symbols(library):
    lines = subprocess.run(["nm", "-DC", "--undefined-only", library], capture_output=True, text=True, check=True).stdout
    return [line.split(maxsplit=1)[1] for line in lines.splitlines()]


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_libraries_need_the_stable_abi_of_torch_at_most(name):
    symbols = undefined_symbols(LIBRARIES[name][0])
    assert [x for x in symbols if x.startswith(("c10::", "at::", "torch::", "_Py", "Py", "cu"))] == []
    assert any(x.startswith("aoti_torch_") for x in symbols) == (name == "kernels")
    assert not any("cuda_stream" in x for x in symbols)  # a torch for the CPU has none


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_libraries_ask_for_torch_openmp_and_the_compilers_libraries_at_most(name):
    library, others = LIBRARIES[name]
    lines = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    needed = {line.split("[")[1].split(".so")[0].rstrip("]") for line in lines.splitlines() if "(NEEDED)" in line}
    assert needed <= others | {"libstdc++", "libm", "libgcc_s", "libc", "ld-linux-x86-64", "libpthread"}
    assert "RPATH" not in lines and "RUNPATH" not in lines


def test_the_package_needs_torch_alone():
    code = """import sys
for name in ("transformers", "accelerate", "peft", "scipy"): sys.modules[name] = None
import torch, fovea
x = torch.randn(1, 2, 5, 16)
assert torch.allclose(fovea.attention(x, x, x),
                      torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True), atol=1e-5)"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_small_gpt_writes_from_a_cache_what_it_would_write_by_reading_all_again(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    import small_gpt

    torch.manual_seed(0)
    model = small_gpt.GPT(lambda width: fovea.nn.MultiTokenAttention(width, 4, bias=fovea.Alibi()), width=32)
    text = torch.randint(256, (1, 20))
    written = model.write(text, 12)
    assert torch.equal(written[:, :20], text)
    assert torch.equal(model(written[:, :-1])[0, 19:].argmax(-1), written[0, 20:])


def test_the_small_gpt_learns_with_either_attention():
    root = Path(__file__).parents[2]
    for swap in ([], ["--multi-token"]):
        lines = subprocess.run([sys.executable, root / "examples/small_gpt.py", root / "CONTRIBUTING.md", "--steps", "14", *swap],
                               capture_output=True, text=True, check=True).stdout.splitlines()
        first, *_, last = (float(line.split()[-1]) for line in lines)
        assert first > 5 and last < first - 1.5, lines
