#!/usr/bin/env python3
"""Opens the report in headless Chromium, wide and narrow: browser_test.py WRITE_PAGES FOLDER.

No console error, no network request, no sideways scrolling, no injected script, a curve for every variant, attention maps
that are drawn, a theme that switches. Screenshots stay in FOLDER.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import pathlib
import subprocess
import sys

from devtools import Browser, BrowserError

SIZES = ((1280, 800), (390, 844))
VARIANTS = 4

# What the page says about itself. `curves` counts, for each name in the legend, the visible curves that carry it.
LOOK = """(() => {
  const shown = (node) => node.getClientRects().length > 0;
  const names = [...document.querySelectorAll('[data-toggle]')].map((chip) => chip.dataset.toggle);
  const curves = [...document.querySelectorAll('svg .curve')].filter(shown);
  const canvas = document.getElementById('left-map');
  const pixels = canvas ? canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data : [];
  const colors = new Set();
  for (let k = 0; k < pixels.length; k += 4 * 97) colors.add(pixels[k] << 16 | pixels[k + 1] << 8 | pixels[k + 2]);
  const paths = curves.map((curve) => curve.querySelector('path'));
  return {
    names,
    curves: names.map((name) => curves.filter((curve) => curve.dataset.variant === name).length),
    strokes: new Set(paths.map((path) => getComputedStyle(path).stroke)).size,
    requests: performance.getEntriesByType('resource').map((entry) => entry.name),
    width: document.documentElement.scrollWidth,
    window: innerWidth,
    colors: colors.size,
    readout: document.getElementById('map-readout').textContent,
    hacked: 'hacked' in window,
    background: getComputedStyle(document.body).backgroundColor,
    heading: document.querySelector('h1').textContent,
    openTables: document.querySelectorAll('figure details[open]').length,
    notice: [...document.querySelectorAll('.notice')].map((node) => node.textContent).join(' '),
  };
})()"""

failures = []


def check(condition: bool, page: str, what: str) -> None:
    if not condition:
        failures.append(f"{page}: {what}")


def complaints(events: list) -> list:
    """Console errors and warnings, uncaught exceptions, and requests other than for the page itself."""
    found = []
    for event in events:
        params = event.get("params", {})
        if event["method"] == "Runtime.exceptionThrown":
            found.append(params["exceptionDetails"])
        elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            found.append(params["args"])
        elif event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            found.append(params["entry"]["text"])
        elif event["method"] == "Network.requestWillBeSent":
            address = params["request"]["url"]
            if params.get("type") != "Document" and not address.startswith("data:"):
                found.append("request " + address)
    return found


def visit(browser: Browser, folder: pathlib.Path, name: str, width: int, height: int, dark: bool) -> dict:
    page = f"{name} {width}x{height}{' dark' if dark else ''}"
    browser.open((folder / f"{name}.html").as_uri(), width, height, dark)
    look = browser.evaluate(LOOK)
    for complaint in complaints(browser.events):
        check(False, page, f"the browser complains: {complaint}")
    check(look["requests"] == [], page, f"requests {look['requests']}")
    check(look["window"] == width, page, f"the window is {look['window']} wide")
    check(look["width"] <= width, page, f"scrolls sideways: {look['width']} of {width} pixels")
    check(not look["hacked"], page, "a script from a name or text ran")
    check(len(look["heading"]) > 10, page, "no heading")
    check(look["colors"] > 8, page, f"the attention map has {look['colors']} colours")
    check("looks at position" in look["readout"], page, f"no readout: {look['readout']!r}")
    browser.screenshot(str(folder / f"{name}-{width}{'-dark' if dark else ''}.png"))
    return look


def check_charts(look: dict, page: str) -> None:
    check(len(look["names"]) == VARIANTS, page, f"{len(look['names'])} names in the legend")
    # Training loss, validation, the lead over the reference and ln Z.
    check(look["curves"] == [4] * VARIANTS, page, f"curves per variant: {look['curves']}")
    check(look["strokes"] == VARIANTS, page, f"{look['strokes']} colours of curves")


def check_controls(browser: Browser, folder: pathlib.Path) -> None:
    browser.open((folder / "plain.html").as_uri(), 1280, 800)
    before = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    browser.evaluate("document.getElementById('theme').click()")
    after = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    check(before != after, "theme", "the button does not change the background")
    faded = "document.querySelectorAll('.curve.faded').length"
    browser.evaluate("document.querySelectorAll('[data-toggle]')[1].click()")
    check(browser.evaluate(faded) == 9, "legend", f"{browser.evaluate(faded)} curves faded, not 4 in all sizes")
    drawn = "document.getElementById('right-map').toDataURL()"
    first = browser.evaluate(drawn)
    browser.evaluate("{const s = document.getElementById('right-variant'); s.value = '3'; "
                     "s.dispatchEvent(new Event('change'));}")
    check(browser.evaluate(drawn) != first, "maps", "choosing another variant draws the same map")
    readout = "document.getElementById('map-readout').textContent"
    first = browser.evaluate(readout)
    browser.evaluate("document.getElementById('left-map').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowUp'}))")
    check(browser.evaluate(readout) != first, "maps", "the arrow keys do not move the mark")
    browser.evaluate("{const c = document.getElementById('left-map'), b = c.getBoundingClientRect(); c.dispatchEvent("
                     "new PointerEvent('pointermove', {clientX: b.left + 2, clientY: b.bottom - 2}));}")
    check("at position 0 " in browser.evaluate(readout), "maps", f"pointing shows {browser.evaluate(readout)!r}")


def check_inspection(browser: Browser, folder: pathlib.Path) -> None:
    for width, height in SIZES:
        visit(browser, folder, "inspect", width, height, dark=width < 600)
        for what, least in (("svg.kernel", 10), ("#groups tbody tr", 8), ("#layers tbody tr", 4)):
            count = browser.evaluate(f"document.querySelectorAll('{what}').length")
            check(count >= least, f"inspect {width}", f"{count} of {what}")
        colors = browser.evaluate("new Set([...document.querySelectorAll('svg.kernel rect[x]')].map("
                                  "(cell) => getComputedStyle(cell).fill)).size")
        check(colors == 2, f"inspect {width}", f"kernels have {colors} colours, not one a sign")
        markup = browser.evaluate("document.querySelectorAll('#groups i, #groups b').length")
        check(markup == 0, f"inspect {width}", "a token became markup")


def main(program: str, folder: pathlib.Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([program, str(folder)], check=True)
    with Browser() as browser:
        for width, height in SIZES:
            for name in ("plain", "hostile", "one_seed"):
                look = visit(browser, folder, name, width, height, dark=False)
                check_charts(look, f"{name} {width}x{height}")
                check(look["notice"] == "", name, f"notice: {look['notice']}")
            light = visit(browser, folder, "plain", width, height, dark=False)
            dark = visit(browser, folder, "plain", width, height, dark=True)
            check(light["background"] != dark["background"], "plain", "the system's dark theme changes nothing")
            bare = visit(browser, folder, "no_gnuplot", width, height, dark=False)
            check("gnuplot-nox" in bare["notice"], "no_gnuplot", f"the notice does not help: {bare['notice']!r}")
            check(bare["openTables"] >= 7, "no_gnuplot", f"{bare['openTables']} tables stand open for charts")
        check_controls(browser, folder)
        check_inspection(browser, folder)
    for failure in failures:
        print("FAILED", failure)
    print(f"screenshots: {folder}")
    return 1 if failures else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: browser_test.py WRITE_PAGES FOLDER")
    try:
        sys.exit(main(sys.argv[1], pathlib.Path(sys.argv[2]).resolve()))
    except BrowserError as error:
        sys.exit(f"FAILED {error}")
