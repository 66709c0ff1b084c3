# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from pathlib import Path

import torch

import fovea._operator
import fovea.nn


def undefined_symbols():
    lines = subprocess.run(["nm", "-DC", "--undefined-only", fovea._operator.LIBRARY], capture_output=True, text=True,
                           check=True).stdout.splitlines()
    return [line.split(maxsplit=1)[1] for line in lines]


def test_the_library_needs_the_stable_abi_of_torch_alone():
    unstable = [name for name in undefined_symbols() if name.startswith(("c10::", "at::", "torch::", "_Py", "Py"))]
    assert unstable == []
    assert any(name.startswith("aoti_torch_") for name in undefined_symbols())


def test_the_library_asks_for_torch_openmp_and_the_compilers_libraries_alone():
    lines = subprocess.run(["readelf", "-d", fovea._operator.LIBRARY], capture_output=True, text=True, check=True).stdout
    needed = {line.split("[")[1].split(".so")[0].rstrip("]") for line in lines.splitlines() if "(NEEDED)" in line}
    assert needed <= {"libtorch_cpu", "libgomp", "libstdc++", "libm", "libgcc_s", "libc", "ld-linux-x86-64", "libpthread"}
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
