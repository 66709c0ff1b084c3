# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
import subprocess

import fovea._operator


def undefined_symbols():
    lines = subprocess.run(["nm", "-DC", "--undefined-only", fovea._operator.LIBRARY], capture_output=True, text=True,
                           check=True).stdout.splitlines()
    return [line.split(maxsplit=1)[1] for line in lines]


def test_the_library_needs_the_stable_abi_of_torch_alone():
    unstable = [name for name in undefined_symbols() if name.startswith(("c10::", "at::", "torch::", "_Py", "Py"))]
    assert unstable == []
    assert any(name.startswith("aoti_torch_") for name in undefined_symbols())
