"""Exits 0 when the named wheels (name==version) are installed in this Python's environment with every file at its full size.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import importlib.metadata
import sys


def problem(pin: str) -> str:
    name, version = pin.split("==")
    try:
        wheel = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return "is not installed"
    if wheel.version != version:
        return f"is version {wheel.version}"
    if not wheel.files:
        return "has no list of files"
    for file in wheel.files:
        path = file.locate()
        if file.size is None:  # byte code and the list itself
            continue
        if not path.is_file() or path.stat().st_size != file.size:
            return f"is damaged: {path}"
    return ""


found = [f"{pin} {what}" for pin in sys.argv[1:] if (what := problem(pin))]
sys.exit("\n".join(found) or 0)
