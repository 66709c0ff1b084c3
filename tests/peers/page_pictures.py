#!/usr/bin/env python3
"""Takes the documentation's pictures of the page: page_pictures.py FOVEA MODEL ADAPTER [docs/images].

MODEL has a chat template (`make model`), ADAPTER is of Focus (`make retrofit`). Writes serve-chat.webp and serve-lens.webp.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import base64
import pathlib
import sys
import tempfile
import urllib.parse

import served
from page_test import IDLE, Browser, Visitor, ask, failures

SIZE = (1280, 860)
QUESTION = "Why is the sky blue? Answer in two sentences."
TEXT = ("The capital of France is Paris. The capital of Italy is Rome. What is the capital of France? "
        "The capital of France is")


def picture(visitor: Visitor, path: pathlib.Path) -> None:
    data = visitor.browser.call("Page.captureScreenshot", format="webp", quality=82)["data"]
    path.write_bytes(base64.b64decode(data))
    print(path, path.stat().st_size, "bytes")


def main() -> int:
    fovea, model, adapter = sys.argv[1:4]
    out = pathlib.Path(sys.argv[4] if len(sys.argv) > 4 else "docs/images")
    with tempfile.TemporaryDirectory() as folder, Browser(timeout=300) as browser, \
            served.Server(fovea, pathlib.Path(model), pathlib.Path(folder) / "log", "--adapter", f"focus={adapter}") as server:
        visitor = Visitor(browser, server.address)
        visitor.open("#view=chat", SIZE)
        visitor.until("!document.getElementById('chat').hidden", "chat")
        visitor.set("chat-seed", 1)
        ask(visitor, QUESTION, 80)
        visitor.until(f"{IDLE} && document.querySelector('.message.assistant .figures')", "chat", 300)
        picture(visitor, out / "serve-chat.webp")
        base = visitor.js("document.getElementById('model').value")
        address = {"view": "lens", "model": base, "beside": "focus", "text": TEXT, "layer": 12, "head": 3}
        visitor.open("#" + urllib.parse.urlencode(address), SIZE)
        visitor.until("document.querySelectorAll('#lens-panels .keys').length === 2", "lens", 300)
        visitor.js("document.getElementById('lens-text').rows = 2; scrollTo(0, document.getElementById('lens-form').offsetTop - 70)")
        picture(visitor, out / "serve-lens.webp")
    for failure in failures:
        print("FAILED", failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
