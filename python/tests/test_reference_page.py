# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
import inspect
import re
import subprocess
import sys
from pathlib import Path

import fovea

ROOT = Path(__file__).parents[2]


def test_the_reference_page_is_what_the_docstrings_say():
    done = subprocess.run([sys.executable, ROOT / "scripts/python-reference.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_every_public_name_has_a_docstring_and_a_place_on_the_page():
    page = (ROOT / "docs/python-reference.md").read_text()
    for name in fovea.__all__:
        if name == "nn":
            continue
        assert inspect.getdoc(getattr(fovea, name)) and f"### fovea.{name}\n" in page, name
    for parameter in inspect.signature(fovea.attention).parameters:
        assert parameter in "qkv" or re.search(rf"^- `(\w+, )*{parameter}\b", page, re.M), parameter
