#!/usr/bin/env python3
"""Opens the built site in headless Chromium: open_pages.py FOLDER

Every page that mkdocs made of ours: no complaint of the browser, nothing fetched from elsewhere, a heading, no sideways
scrolling on a telephone. Then the search must find a page. Without Chromium it says so and checks nothing.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import functools
import http.server
import json
import pathlib
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/report/browser_test"))
from devtools import Browser, BrowserError  # noqa: E402

WORD, PAGE = "sinkhorn", "focus"
LOOK = """({heading: (document.querySelector('h1') || {textContent: ''}).textContent.length,
            width: document.documentElement.scrollWidth})"""
SEARCH = f"""new Promise((done) => {{
  document.querySelector('label[for=__search]').click();
  const field = document.querySelector('input[name=query]');
  field.focus();
  field.value = '{WORD}';
  field.dispatchEvent(new Event('keyup', {{bubbles: true}}));
  field.dispatchEvent(new Event('input', {{bubbles: true}}));
  const end = Date.now() + 15000;
  const look = () => {{
    const found = [...document.querySelectorAll('.md-search-result__link')].map((link) => link.href);
    if (found.length || Date.now() > end) done(JSON.stringify(found)); else setTimeout(look, 100);
  }};
  look();
}})"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_) -> None:
        pass


def complaints(events: list[dict], address_of_site: str) -> list[str]:
    found = []
    for event in events:
        params = event["params"]
        if event["method"] == "Runtime.exceptionThrown":
            found.append(str(params["exceptionDetails"]))
        elif event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
            found.append(f"{params['entry']['text']} {params['entry'].get('url', '')}".rstrip())
        elif event["method"] == "Network.requestWillBeSent":
            address = params["request"]["url"]
            if not address.startswith((address_of_site, "data:", "blob:")):
                found.append(f"fetches {address}")
    return found


def main(folder: pathlib.Path) -> int:
    pages = [page for page in sorted(folder.rglob("*.html")) if "api" not in page.relative_to(folder).parts]
    # Sources and lists of files are shown by the same few lines; the pages that were written are opened.
    pages = [page for page in pages if "." not in page.stem and page.name not in ("404.html", "files.html")]
    failures, started = [], time.time()
    try:
        browser = Browser()
    except BrowserError as error:
        print(f"[docs] the pages were not opened: {error}")
        return 0
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    site = f"http://127.0.0.1:{server.server_port}/"
    with browser:
        for page in pages:
            name = page.relative_to(folder).as_posix()
            browser.open(site + name, 390, 844)
            look = browser.evaluate(LOOK)
            failures += [f"{name}: {complaint}" for complaint in complaints(browser.events, site)]
            if look["heading"] < 2:
                failures.append(f"{name}: no heading")
            if look["width"] > 390:
                failures.append(f"{name}: scrolls sideways, {look['width']} of 390 pixels")
        browser.open(site, 1280, 800)
        found = json.loads(browser.evaluate(SEARCH))
        if not any(PAGE in address for address in found):
            failures.append(f"search: '{WORD}' should find the page of {PAGE}; found {found}")
    print("\n".join(f"[docs] {failure}" for failure in failures), end="\n" if failures else "")
    print(f"[docs] {len(pages)} pages opened in {time.time() - started:.0f} s, {len(failures)} problems")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve()))
