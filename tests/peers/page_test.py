#!/usr/bin/env python3
"""Uses the page of `fovea serve` in headless Chromium as a visitor would: page_test.py FOVEA FOLDER.

A small random model and an adapter of Focus and Multi-Token Attention are made in FOLDER; the server is the real one.
Screenshots stay in FOLDER. Without Chromium, one line says that nothing was run.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import json
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "report" / "browser_test"))
from devtools import Browser, BrowserError  # noqa: E402
import served  # noqa: E402

TEXT = "the keeper gave the key to the keeper, and the key"
WIDE, PHONE = (1280, 800), (390, 844)
HOSTILE = "<img src=x onerror=\"window.hacked = 1\"><script>window.hacked = 1</script>"
failures = []


def check(condition, part: str, what: str) -> None:
    if not condition:
        failures.append(f"{part}: {what}")


class Visitor:
    """A browser with the few moves that the tests need."""

    def __init__(self, browser: Browser, address: str):
        self.browser, self.address = browser, address
        self.js = browser.evaluate

    def open(self, fragment: str = "", size=WIDE, dark: bool = False) -> None:
        self.browser.open("about:blank", *size, dark)
        self.browser.open(f"{self.address}/{fragment}", *size, dark)

    def until(self, condition: str, part: str, seconds: float = 60) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.js(f"Boolean({condition})"):
                return True
            time.sleep(0.05)
        check(False, part, f"never became true: {condition}")
        return False

    def set(self, element: str, value) -> None:
        self.js(f"{{const e = document.getElementById('{element}'); e.value = {json.dumps(value)};"
                " e.dispatchEvent(new Event('input', {bubbles: true})); e.dispatchEvent(new Event('change', {bubbles: true}));}")

    def click(self, element: str) -> None:
        self.js(f"document.getElementById('{element}').click()")

    def text(self, selector: str) -> str:
        return self.js(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''")

    def count(self, selector: str) -> int:
        return self.js(f"document.querySelectorAll({json.dumps(selector)}).length")

    def key(self, name: str, code: int, text: str = "") -> None:
        """A key as the keyboard sends it."""
        common = {"key": name, "code": name, "windowsVirtualKeyCode": code}
        self.browser.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **common, **({"text": text} if text else {}))
        self.browser.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def complaints(self, part: str, allowed: str = "\0") -> None:
        for event in self.browser.events:
            params = event.get("params", {})
            found = None
            if event["method"] == "Runtime.exceptionThrown":
                found = params["exceptionDetails"]
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found = params["entry"]["text"]
            elif event["method"] == "Network.requestWillBeSent":
                url = params["request"]["url"]
                found = None if url.startswith((self.address, "data:", "about:", "blob:")) else "request " + url
            check(found is None or allowed in str(found), part, f"the browser complains: {found}")
        self.browser.events.clear()
        check(not self.js("'hacked' in window"), part, "a script from a text ran")

    def fits(self, part: str) -> None:
        wide, room = self.js("[document.documentElement.scrollWidth, innerWidth]")
        check(wide <= room, part, f"scrolls sideways: {wide} of {room} pixels")


IDLE = "!document.getElementById('chat-stop') || document.getElementById('chat-stop').hidden"


def ask(visitor: Visitor, text: str, longest: int = 24) -> None:
    visitor.set("chat-max", longest)
    visitor.set("chat-input", text)
    visitor.js("document.getElementById('chat-form').requestSubmit()")


def test_chat(visitor: Visitor, folder: pathlib.Path) -> None:
    part = "chat"
    visitor.open()
    visitor.until("!document.getElementById('chat').hidden", part)
    visitor.set("chat-seed", 5)  # an answer of several tokens
    ask(visitor, "Where is the key? " + HOSTILE)
    visitor.until("document.querySelectorAll('.message.assistant .figures')[0]?.textContent.includes('first after')", part)
    check(visitor.text(".message.user .body").endswith(HOSTILE), part, "the question is not shown as it was written")
    check(len(visitor.text(".message.assistant .body")) > 10, part, "no answer")
    visitor.browser.screenshot(str(folder / "page-chat.png"), False)
    visitor.complaints(part)

    part = "chat: again, edit"
    visitor.set("chat-seed", 5)
    button = "[...document.querySelectorAll('.message.%s .foot button')].filter((b) => b.textContent === '%s')[%d].click()"
    visitor.js(button % ("assistant", "Again", 0))
    visitor.until(IDLE, part)
    first = visitor.text(".message.assistant .body")
    visitor.js(button % ("assistant", "Again", 0))
    visitor.until(IDLE, part)
    check(visitor.text(".message.assistant .body") == first, part, "the same seed writes another answer")
    visitor.js(button % ("assistant", "Edit", 0))
    visitor.js("document.querySelector('.message textarea').value = 'My own answer.'")
    visitor.js("document.querySelector('.message .controls button').click()")
    check(visitor.text(".message.assistant .body") == "My own answer.", part, "an edited answer is not kept")
    visitor.js(button % ("user", "Edit", 0))
    visitor.js("document.querySelector('.message textarea').value = 'Another question'")
    visitor.js("document.querySelector('.message .controls button').click()")
    visitor.until(IDLE, part)
    check(visitor.text(".message.user .body") == "Another question" and visitor.count(".message") == 2, part, "an edited question is not sent again")
    check(visitor.text(".message.assistant .body") not in ("", "My own answer."), part, "no new answer")

    part = "chat: stop"
    ask(visitor, "Tell me everything", 6000)
    visitor.until("document.querySelectorAll('.message.assistant .body')[1]?.textContent.length > 20", part)
    visitor.key("Escape", 27)
    visitor.until(IDLE, part, 10)
    figures = visitor.js("[...document.querySelectorAll('.message .figures')].at(-1).textContent")
    check("stopped" in figures, part, f"the answer is not marked as stopped: {figures}")
    check("tokens/s" in figures, part, f"no speed: {figures}")  # a short answer may come in one piece: it has none
    visitor.complaints(part)

    part = "chat: reload"
    before = visitor.js("document.getElementById('chat-log').textContent")
    time.sleep(0.4)  # it is written down a moment after the last change
    visitor.open()
    visitor.until("document.querySelectorAll('.message').length === 4", part)
    check(visitor.js("document.getElementById('chat-log').textContent") == before, part, "a reload changes the conversation")


    part = "chat: lens"
    visitor.js(button % ("assistant", "Lens", 0))
    visitor.until("!document.getElementById('lens').hidden && document.querySelectorAll('#lens-panels .flow-token').length > 10", part)
    visitor.until("location.hash.includes('ids=')", part)
    visitor.complaints(part)


def test_keyboard(visitor: Visitor) -> None:
    part = "keyboard"
    visitor.open("#view=chat")
    visitor.until("!document.getElementById('chat').hidden", part)
    visitor.click("chat-new")
    visitor.js("document.getElementById('chat-input').focus()")
    visitor.browser.call("Input.insertText", text="Only keys")
    visitor.set("chat-max", 12)
    visitor.key("Enter", 13, "\r")
    visitor.until("document.querySelectorAll('.message.assistant .figures').length === 1", part)
    visitor.open("#view=lens&text=" + TEXT.replace(" ", "+"))
    visitor.until("!document.getElementById('lens-result').hidden", part)
    steps = 0
    while visitor.js("document.activeElement?.className") != "flow" and steps < 60:
        visitor.key("Tab", 9)
        steps += 1
    check(steps < 60, part, "Tab never reaches the tokens")
    before = visitor.text("#lens-readout")
    visitor.key("ArrowLeft", 37)
    visitor.until(f"document.getElementById('lens-readout').textContent !== {json.dumps(before)}", part)
    check(visitor.js("document.querySelector('#lens-panels .flow').getAttribute('aria-activedescendant')"), part, "no active token for a screen reader")
    visitor.complaints(part)


def test_playground(visitor: Visitor, folder: pathlib.Path) -> None:
    part = "playground"
    visitor.open("#view=playground&text=" + TEXT.replace(" ", "+"))
    idle = "document.getElementById('play-stop').hidden && document.querySelectorAll('.flow-token').length"
    visitor.until(idle, part)
    read = visitor.count("#play-flow .flow-token")
    visitor.set("play-max", 8)
    visitor.js("document.getElementById('play-form').requestSubmit()")
    visitor.until(f"{idle} > {read}", part)
    check(visitor.count("#play-flow .flow-token") == read + 8, part, f"{visitor.count('#play-flow .flow-token')} tokens after {read} and 8")
    visitor.js(f"document.querySelectorAll('#play-flow .flow-token')[{read}].click()")
    names = visitor.js("[...document.querySelectorAll('#play-alternatives code')].map((n) => n.textContent)")
    check(len(names) >= 10, part, f"{len(names)} alternatives")
    taken = next(i for i, name in enumerate(names) if name.isascii() and name.strip().isalpha() and
                 name != visitor.js(f"document.querySelectorAll('#play-flow .flow-token')[{read}].textContent"))
    visitor.js(f"document.querySelectorAll('#play-alternatives button')[{taken}].click()")
    visitor.until(f"document.querySelectorAll('#play-flow .flow-token')[{read}]?.textContent === {json.dumps(names[taken])} && {idle} === {read + 9}", part)
    check(visitor.js("document.getElementById('play-text').value").startswith(TEXT + names[taken]), part, "the text does not go on from the alternative")
    visitor.browser.screenshot(str(folder / "page-playground.png"), False)
    visitor.complaints(part)


def test_lens(visitor: Visitor, folder: pathlib.Path, fovea: str, model: pathlib.Path, adapter: pathlib.Path) -> None:
    part = "lens"
    visitor.open("#text=" + TEXT.replace(" ", "+") + "&layer=1&head=2&token=6")
    visitor.until("!document.getElementById('lens-result').hidden && document.querySelector('.keys')", part)
    shown = visitor.js("['layer', 'head'].map((n) => document.getElementById('lens-' + n).value)")
    check(shown == ["1", "2"], part, f"the address asks for layer 1, head 2; shown are {shown}")
    check("Token 6 " in visitor.text("#lens-readout"), part, f"the readout: {visitor.text('#lens-readout')}")
    weights = visitor.js("[...document.querySelectorAll('.keys .weight')].map((n) => Number(n.textContent))")
    check(abs(sum(weights) - 1) < 1e-3, part, f"the weights of a short row have a sum of {sum(weights)}")
    result = subprocess.run([fovea, "inspect", str(model), "--text", TEXT, "--out", str(folder / "look"), "--json", "--quiet"],
                            capture_output=True, text=True, check=True)
    inspected = json.loads(result.stdout)["models"][0]["layers"]
    numbers = visitor.js("[...document.querySelectorAll('.panel details tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))")
    check(len(numbers) == len(inspected) == served.LAYERS, part, f"{len(numbers)} layers")
    for row, layer in zip(numbers, inspected):
        mean = [sum(layer[name]) / len(layer[name]) for name in ("entropy", "largest_weight", "sink_mass")]
        check(row[2:5] == [f"{value:.3f}" for value in mean], part, f"layer {row[0]}: {row[2:5]} against inspect's {mean}")

    part = "lens: two models"
    visitor.set("lens-beside", "changed")
    visitor.until("document.querySelectorAll('#lens-panels > .panel').length === 2", part)
    visitor.set("lens-color", "difference")
    check("nats a token against" in visitor.text("#lens-panels .text-figures"), part, "no difference of log-probabilities")
    visitor.set("lens-layer", "3")
    check(visitor.count(".kernels svg rect") > 10, part, "no kernel of Multi-Token Attention")
    visitor.set("lens-color", "groups")
    check(visitor.count("#lens-legend .swatch") > 1, part, "no groups of Focus")
    visitor.until("location.hash.includes('beside=changed') && location.hash.includes('color=groups')", part)
    visitor.browser.screenshot(str(folder / "page-lens.png"))
    visitor.complaints(part)
    link = visitor.js("location.hash")
    visitor.open(link)
    visitor.until("document.querySelectorAll('#lens-panels > .panel').length === 2", part)
    check(visitor.js("document.getElementById('lens-color').value") == "groups", part, "a link does not bring the view back")


def test_long_text(visitor: Visitor) -> None:
    part = "a long text"
    visitor.open("#view=lens")
    visitor.until("!document.getElementById('lens-result').hidden", part)
    visitor.set("lens-text", " key" * 8000)
    visitor.js("document.getElementById('lens-form').requestSubmit()")
    visitor.until("Number(document.querySelector('#lens-panels .flow-token')?.ariaSetSize) === 8000", part, 240)
    check(visitor.count("#lens-panels .flow-token") < 2500, part, f"{visitor.count('#lens-panels .flow-token')} tokens are nodes")
    visitor.set("lens-text", " key" * 8300)
    visitor.js("document.getElementById('lens-form').requestSubmit()")
    visitor.until("document.getElementById('lens-state').textContent.includes('8192')", part)
    visitor.complaints(part, allowed="400")


def test_looks(visitor: Visitor, folder: pathlib.Path) -> None:
    backgrounds = set()
    for size in (WIDE, PHONE):
        for dark in (False, True):
            for view in ("chat", "playground", "lens"):
                part = f"{view} {size[0]}{' dark' if dark else ''}"
                visitor.open(f"#view={view}", size, dark)
                visitor.until(f"!document.getElementById('{view}').hidden", part)
                if view == "lens":
                    visitor.until("!document.getElementById('lens-result').hidden", part)
                visitor.fits(part)
                visitor.complaints(part)
                backgrounds.add(visitor.js("getComputedStyle(document.body).backgroundColor"))
    check(len(backgrounds) == 2, "dark", f"backgrounds {backgrounds}")
    visitor.browser.screenshot(str(folder / "page-phone.png"), False)
    visitor.click("theme")
    check(visitor.js("getComputedStyle(document.body).colorScheme") == "light", "theme", "the button does not switch")


def test_server_gone(visitor: Visitor, server: served.Server) -> None:
    part = "server gone"
    visitor.open("#view=chat", WIDE)
    visitor.until("!document.getElementById('chat').hidden", part)
    server.stop()
    ask(visitor, "Are you there?")
    visitor.until("!document.getElementById('notice').hidden && document.querySelector('.failed')", part)
    server.start()
    visitor.until("document.getElementById('notice').hidden", part)
    visitor.js("[...document.querySelectorAll('.message.assistant .foot button')].filter((b) => b.textContent === 'Again').at(-1).click()")
    visitor.until("!document.querySelector('.failed') && document.getElementById('chat-stop').hidden", part)
    check(len(visitor.js("[...document.querySelectorAll('.message.assistant .body')].at(-1).textContent")) > 5, part, "no answer after the server came back")


def main() -> int:
    fovea, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    model = served.write_model(folder / "tiny")
    adapter = served.write_adapter(fovea, model, folder / "adapter")
    try:
        browser = Browser()
    except BrowserError as error:
        print(f"page_test: not run: {error}")
        return 0
    with browser, served.Server(fovea, model, folder / "serve.log", "--dtype", "float32", "--adapter", f"changed={adapter}") as server:
        visitor = Visitor(browser, server.address)
        for run in (lambda: test_chat(visitor, folder), lambda: test_keyboard(visitor), lambda: test_playground(visitor, folder),
                    lambda: test_lens(visitor, folder, fovea, model, adapter), lambda: test_long_text(visitor),
                    lambda: test_looks(visitor, folder), lambda: test_server_gone(visitor, server)):
            try:
                run()
            except (BrowserError, IndexError, StopIteration) as error:
                failures.append(f"{type(error).__name__}: {error}")
    for failure in failures:
        print("FAILED", failure)
    print(f"page_test: {len(failures)} failures; screenshots in {folder}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
