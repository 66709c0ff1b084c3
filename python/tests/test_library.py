# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from pathlib import Path

import fovea._operator


def undefined_symbols():
    lines = subprocess.run(["nm", "-DC", "--undefined-only", fovea._operator.LIBRARY], capture_output=True, text=True,
                           check=True).stdout.splitlines()
    return [line.split(maxsplit=1)[1] for line in lines]


def test_the_library_needs_the_stable_abi_of_torch_alone():
    unstable = [name for name in undefined_symbols() if name.startswith(("c10::", "at::", "torch::", "_Py", "Py"))]
    assert unstable == []
    assert any(name.startswith("aoti_torch_") for name in undefined_symbols())


def test_the_small_gpt_learns_with_either_attention():
    root = Path(__file__).parents[2]
    for swap in ([], ["--multi-token"]):
        lines = subprocess.run([sys.executable, root / "examples/small_gpt.py", root / "CONTRIBUTING.md", "--steps", "30", *swap],
                               capture_output=True, text=True, check=True).stdout.splitlines()
        first, *_, last = (float(line.split()[-1]) for line in lines)
        assert first > 5 and last < first - 1.5, lines
