"""The server as a process, and a client that may do what no library does.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time

SECONDS = 60  # more is a failure, also under sanitizers


class Server:
    """`fovea serve` of a folder, on a free port."""

    def __init__(self, program: str, model: pathlib.Path, *options: str, environment: dict | None = None):
        port = () if "--port" in options else ("--port", "0")
        self.process = subprocess.Popen(
            [program, "serve", str(model), "--json", *port, "--quiet", *options], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", **(environment or {})})
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server did not start: {self.process.stderr.read()[-2000:]}")
        self.port = int(json.loads(line)["address"].rsplit(":", 1)[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = SECONDS) -> int:
        return self.process.wait(seconds)

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()

    def connect(self, **options) -> socket.socket:
        connection = socket.socket()
        if "receive_bytes" in options:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options["receive_bytes"])
        connection.settimeout(SECONDS)
        connection.connect(("127.0.0.1", self.port))
        return connection

    def ask(self, method: str, path: str, body: object = None, headers: dict | None = None):
        """Status, headers and body of one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def post(self, path: str, body: object, **headers):
        status, _, answer = self.ask("POST", path, body, headers)
        return status, json.loads(answer)

    def raw(self, data: bytes, close: bool = False) -> bytes:
        """All that the server says to these bytes; `close`: that is all we ever send."""
        with self.connect() as connection:
            try:
                connection.sendall(data)
                if close:
                    connection.shutdown(socket.SHUT_WR)
                return read_all(connection)
            except (ConnectionResetError, BrokenPipeError):
                return b""

    def stream(self, path: str, body: dict, **options) -> socket.socket:
        """A connection on which a stream has begun."""
        connection = self.connect(**options)
        connection.sendall(post_bytes(path, {**body, "stream": True}))
        return connection

    def metric(self, name: str, labels: str = "") -> float:
        text = self.ask("GET", "/metrics")[2].decode()
        found = re.search(rf"^{re.escape(name)}{{[^}}]*{re.escape(labels)}[^}}]*}} (\S+)$", text, re.M)
        return float(found[1]) if found else 0.0

    def until(self, what, seconds: float = SECONDS) -> None:
        """Waits until what() is true."""
        end = time.monotonic() + seconds
        while not what():
            if time.monotonic() > end:
                raise AssertionError("it did not come true in time")
            time.sleep(0.02)

    def memory(self) -> int:
        """Resident bytes."""
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"^VmRSS:\s+(\d+) kB", text, re.M)[1]) << 10


def post_bytes(path: str, body: dict, extra: str = "") -> bytes:
    data = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{extra}Content-Length: {len(data)}\r\n\r\n".encode() + data


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    """At least as far as the mark, or to the end."""
    data = b""
    while mark not in data:
        part = connection.recv(4096)
        if not part:
            break
        data += part
    return data


def status_of(answer: bytes) -> int:
    """0 where the server closed the connection without an answer."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.") else 0
