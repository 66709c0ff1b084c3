"""The program `fovea`, which this wheel carries: starts it on the torch of the same environment.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""
import importlib.util
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAM, SHARE = HERE / "bin/fovea", HERE / "share/fovea"
TORCH = "2.11"


def _in_share(word: str) -> str:
    """recipes/... where the caller has none is the one in the wheel."""
    there = SHARE / word
    return str(there) if word.startswith("recipes/") and not os.path.exists(word) and there.exists() else word


def _torch_folder() -> str:
    try:
        found = version("torch")
    except PackageNotFoundError:
        found = None
    if found is None or found.split(".")[:2] != TORCH.split("."):
        sys.exit(f"fovea: expected torch {TORCH} in {sys.prefix}; got {found or 'none'}: pip install 'torch=={TORCH}.*'")
    return importlib.util.find_spec("torch").submodule_search_locations[0]


def main() -> None:
    words = sys.argv[1:]
    if words[:1] == ["demo"]:
        words = ["compare", "recipes/demo.yaml", *words[1:]]
    # The program looks for torch beside this package; where torch is in another folder, this tells.
    torch = _torch_folder()
    paths = [f"{torch}/lib", *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    own = {"LD_LIBRARY_PATH": ":".join(paths), "TORCH_PYTHON": os.environ.get("TORCH_PYTHON") or torch}
    os.execve(PROGRAM, ["fovea", *map(_in_share, words)], os.environ | own)
