"""Headless Chromium over its DevTools protocol, with the standard library only.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import base64
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


class BrowserError(Exception):
    """The browser is missing, did not start, or did not answer."""


class WebSocket:
    """The client side of RFC 6455, as far as DevTools needs it: text messages, no extensions."""

    def __init__(self, url: str, timeout: float):
        parts = urllib.parse.urlparse(url)
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout=timeout)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\n"
                             f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
                             "Sec-WebSocket-Version: 13\r\n\r\n").encode())
        head = b""
        while b"\r\n\r\n" not in head:
            part = self.socket.recv(1)  # byte by byte: what follows the head is the first frame
            if not part:
                raise BrowserError("the browser closed the connection")
            head += part
        if b" 101 " not in head.split(b"\r\n", 1)[0]:
            raise BrowserError(f"the browser refused the WebSocket: {head!r}")

    def send(self, text: str) -> None:
        data, mask = text.encode(), os.urandom(4)
        if len(data) < 126:
            head = struct.pack("!BB", 0x81, 0x80 | len(data))
        elif len(data) < 65536:
            head = struct.pack("!BBH", 0x81, 0x80 | 126, len(data))
        else:
            head = struct.pack("!BBQ", 0x81, 0x80 | 127, len(data))
        self.socket.sendall(head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(data)))

    def receive(self) -> str:
        message = b""
        while True:
            first, second = self._read(2)
            size = second & 127
            if size == 126:
                size = struct.unpack("!H", self._read(2))[0]
            elif size == 127:
                size = struct.unpack("!Q", self._read(8))[0]
            data, opcode = self._read(size), first & 15
            if opcode == 8:
                raise BrowserError("the browser closed the connection")
            if opcode in (0, 1):
                message += data
                if first & 128:
                    return message.decode()

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise BrowserError("the browser closed the connection")
            data += part
        return data

    def close(self) -> None:
        self.socket.close()


class Browser:
    """One headless Chromium with one page; a context manager."""

    def __init__(self, timeout: float = 60):
        program = next((path for path in map(shutil.which, NAMES) if path), None)
        if program is None:
            raise BrowserError("no Chromium found; install it: apt-get install chromium")
        self.timeout = timeout
        self.profile = tempfile.mkdtemp(prefix="fovea-browser-")
        # The sandbox of Chromium needs a user who is not root.
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        self.process = subprocess.Popen(
            [program, "--headless=new", *sandbox, "--remote-debugging-port=0", f"--user-data-dir={self.profile}",
             "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--hide-scrollbars", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        self.events, self.number, self.page = [], 0, None
        try:
            self.page = WebSocket(self._page_address(), timeout)
        except BaseException:
            self.close()
            raise

    def _page_address(self) -> str:
        port_file = os.path.join(self.profile, "DevToolsActivePort")
        end = time.monotonic() + self.timeout
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise BrowserError(f"Chromium ended with status {self.process.returncode} before it answered")
            try:
                with open(port_file, encoding="ascii") as file:
                    port = int(file.readline())
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=5) as answer:
                    pages = [t for t in json.load(answer) if t["type"] == "page"]
                if pages:
                    return pages[0]["webSocketDebuggerUrl"]
            except (OSError, ValueError):
                pass
            time.sleep(0.05)
        raise BrowserError(f"Chromium did not answer within {self.timeout} s")

    def call(self, method: str, **params):
        """One command; events that arrive meanwhile are kept in `events`."""
        self.number += 1
        number = self.number
        self.page.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self.page.receive())
            if message.get("id") == number:
                if "error" in message:
                    raise BrowserError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def wait_for(self, method: str) -> None:
        while not any(event["method"] == method for event in self.events):
            self.events.append(json.loads(self.page.receive()))

    def evaluate(self, script: str):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise BrowserError(f"script failed: {result['exceptionDetails']}")
        return result["result"].get("value")

    def open(self, address: str, width: int, height: int, dark: bool = False) -> None:
        """Loads a page in a window of this size; `events` then hold what happened while it loaded."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.events.clear()
        self.call("Page.navigate", url=address)
        self.wait_for("Page.loadEventFired")

    def screenshot(self, path: str, whole_page: bool = True) -> None:
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole_page)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def close(self) -> None:
        if self.page is not None:
            self.page.close()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)  # our own process group: the browser and its helpers
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
