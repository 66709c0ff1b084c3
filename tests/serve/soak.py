#!/usr/bin/env python3
"""Mixed load on one server for SOAK_SECONDS (3600), and how its memory went; run by `scripts/soak.sh serve`.

Clients stream, answer whole, leave in mid-stream, send damaged requests, open connections and drop them. The first tenth
of the time warms up; memory at the end must be within 10 % and 32 MiB of that after it.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import collections
import os
import pathlib
import random
import sys
import tempfile
import threading
import time

from client import Server, post_bytes, read_until
from run import Suite

CLIENTS = 6
COMPLETIONS = "/v1/completions"


def one_action(server: Server, chance: random.Random) -> str:
    body = {"prompt": "Number " * chance.randint(1, 25), "max_tokens": chance.randint(1, 120), "temperature": 1}
    kind = chance.choice(("whole", "stream", "leave", "damaged", "drop", "attention", "logprobs"))
    if kind == "whole":
        status, _ = server.post(COMPLETIONS, {**body, "n": chance.randint(1, 3)})
        assert status in (200, 503), status
    elif kind == "logprobs":
        status, _ = server.post(COMPLETIONS, {**body, "logprobs": 5, "echo": True})
        assert status in (200, 503), status
    elif kind == "stream":
        with server.stream(COMPLETIONS, body) as stream:
            assert b"[DONE]" in read_until(stream, b"[DONE]")
    elif kind == "leave":
        with server.stream(COMPLETIONS, body) as stream:
            read_until(stream, b"data: ")
    elif kind == "damaged":
        data = bytearray(post_bytes(COMPLETIONS, body))
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        server.raw(bytes(data), close=True)
    elif kind == "drop":
        for _ in range(20):
            server.connect().close()
    else:
        status, _ = server.post("/v1/attention", {"text": body["prompt"], "k": 4})
        assert status in (200, 503), status
    return kind


def main() -> int:
    seconds, seed = float(os.environ.get("SOAK_SECONDS", 3600)), int(os.environ.get("SOAK_SEED", time.time()))
    done, failures, memory = collections.Counter(), [], []
    with tempfile.TemporaryDirectory(prefix="fovea-soak-") as folder:
        suite = Suite(pathlib.Path(sys.argv[1]).resolve(strict=True), pathlib.Path(folder))
        with suite.serve() as server:
            end = time.monotonic() + seconds

            def client(number: int) -> None:
                chance = random.Random(seed * CLIENTS + number)
                while time.monotonic() < end and not failures:
                    try:
                        done[one_action(server, chance)] += 1
                    except Exception as error:  # told below
                        failures.append(repr(error))

            threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                memory.append(server.memory())
                time.sleep(seconds / 100)
            warm, last = memory[len(memory) // 10], max(memory[-5:])
            failed = server.metric("fovea:http_responses_total", 'status="500"')
            code = server.stop()
    print(f"seed {seed}: {sum(done.values())} actions in {seconds:.0f} s: {dict(done)}")
    print(f"memory: {warm >> 20} MiB after a tenth of the time, {last >> 20} MiB at the end, {max(memory) >> 20} MiB at most")
    grew = last - warm > max(warm // 10, 32 << 20)
    print(*failures, sep="\n", end="\n" if failures else "")
    return 1 if failures or failed or code != 0 or grew else 0


if __name__ == "__main__":
    sys.exit(main())
