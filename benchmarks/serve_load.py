#!/usr/bin/env python3
"""Load on `fovea serve`: tokens a second and waiting times by number of clients, beside llama.cpp's server.

    benchmarks/serve_load.py MODEL [--clients 1,8,32,128] [--requests 2] [--tokens 64] [--rounds 3] [--peer LLAMA_SERVER|auto|none]
                             [--focus ADAPTER] [--text FILE] [--focus-context 8192] [--focus-clients 8] [--threads N]
                             [--program build/bin/fovea] [--output FILE]

MODEL is a .gguf file, or a folder with one. Each client sends its requests one after another; prompts have 16 to 512 tokens
of pseudo-random words, each only once, so that no prefix cache answers. Every answer has --tokens tokens. Rounds alternate
the servers; the ratio is that of a round. With --focus, the base and the adapter (hard) answer --focus-clients clients whose
prompts nearly fill --focus-context: parts of --text, else words; then the same prompts again, which the prefix cache holds, so
that the second row is that of texts which go on. The peer is the program --peer (llama.cpp's llama-server, with as many slots as clients, at
most --peer-slots), or with `auto` `python -m llama_cpp.server` where this Python has it; else one line says so. --options goes
to fovea serve.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import bisect
import concurrent.futures
import datetime
import importlib.util
import json
import os
import pathlib
import random
import re
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

from train_step import ROOT, commit, cpu_kind, quartiles

WORDS = "the key door of an old inn keeper gave it to her and then she went down river with many brass things".split()
PROMPT_TOKENS = (16, 48, 128, 512)  # one after another, so that short requests wait beside long ones


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A server as a process that answers /v1/completions; a context manager."""

    def __init__(self, name: str, command: list[str], health: str):
        self.name, self.port = name, free_port()
        self.command = [part.replace("PORT", str(self.port)) for part in command]
        self.url, self.health, self.model = f"http://127.0.0.1:{self.port}", health, None
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 300
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise SystemExit(f"{name} ended with {self.process.returncode}: {shlex.join(self.command)}")
            try:
                with urllib.request.urlopen(self.url + health, timeout=5):
                    return
            except OSError:
                time.sleep(0.1)
        self.close()
        raise SystemExit(f"{name} did not answer within 300 s")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def prompt_of(tokens: int, seed: int) -> str:
    """Words that most vocabularies have as one token each; a number at the start makes the prompt the only one of its kind."""
    draw = random.Random(seed)
    return f"{seed}: " + " ".join(draw.choices(WORDS, k=max(1, tokens - 4)))


def one_request(server: Server, body: dict) -> tuple[list[float], int]:
    """Seconds from the start to each event that has text, and the new tokens. What comes is read when the answer has ended:
    the client works on the same cores as the server."""
    data = json.dumps(body | {"stream": True, "stream_options": {"include_usage": True}}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    received, ends, moments = bytearray(), [], []
    start = time.perf_counter()
    with socket.create_connection(("127.0.0.1", server.port), 3600) as connection:
        connection.sendall(head.encode() + data)
        while not received.endswith(b"\r\n0\r\n\r\n"):  # of chunks, the last
            part = connection.recv(65536)
            if not part:
                break
            moments.append(time.perf_counter() - start)
            received += part
            ends.append(len(received))
    if not received.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(received[:1000].decode(errors="replace"))
    if not received.endswith(b"\r\n0\r\n\r\n"):
        raise RuntimeError("the server closed the connection in the middle of an answer")
    times, tokens = [], None
    for found in re.finditer(rb"data: (\{.*\})\r?\n", received):
        event = json.loads(found[1])
        if "error" in event:
            raise RuntimeError(event["error"])
        if event.get("choices") and event["choices"][0].get("text"):
            times.append(moments[bisect.bisect_left(ends, found.end())])
        tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    return times, len(times) if tokens is None else tokens


def load(server: Server, clients: int, requests: int, tokens: int, lengths: tuple[int, ...], seed: int) -> dict:
    """All clients at once, each with its requests in turn."""
    many = clients * requests
    return answered(server, clients, [prompt_of(lengths[at % len(lengths)], seed * 100_000 + at) for at in range(many)], tokens)


def answered(server: Server, clients: int, prompts: list, tokens: int, model: str | None = None) -> dict:
    """The prompts (texts, or lists of ids) by as many clients at once, each with its share in turn."""
    body = {"max_tokens": tokens, "temperature": 0, **({"model": model} if model else {})}
    body["ignore_eos"] = True  # llama_cpp.server does not know the field, and refuses none
    share = len(prompts) // clients

    def client(number: int) -> list[tuple[list[float], int]]:
        return [one_request(server, body | {"prompt": prompt}) for prompt in prompts[number * share:(number + 1) * share]]

    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        pairs = [pair for lists in pool.map(client, range(clients)) for pair in lists]
    seconds = time.perf_counter() - start
    answers, written = [times for times, _ in pairs], sum(tokens for _, tokens in pairs)
    firsts = [times[0] for times in answers if times]
    gaps = [b - a for times in answers for a, b in zip(times, times[1:])]
    return {"tokens_per_second": written / seconds, "seconds": seconds, "tokens": written,
            "first_p50": at_share(firsts, 0.5), "first_p99": at_share(firsts, 0.99), "between_p50": at_share(gaps, 0.5),
            "between_p99": at_share(gaps, 0.99)}


def at_share(values: list[float], share: float) -> float | None:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


def model_file(model: str) -> pathlib.Path:
    path = pathlib.Path(model)
    return next(iter(sorted(path.glob("*.gguf"))), path) if path.is_dir() else path


def has_peer(options) -> bool:
    if options.peer != "auto":
        return options.peer != "none"
    if importlib.util.find_spec("llama_cpp") is None or importlib.util.find_spec("fastapi") is None:
        print("peer: not run: this Python has no llama-cpp-python[server]")
        return False
    return True


def fovea_command(options, *more: str) -> list[str]:
    return [options.program, "serve", options.model, "--port", "PORT", *(["--threads", str(options.threads)] if options.threads else []),
            *shlex.split(options.options), "--quiet", *more]


def peer_command(options, clients: int) -> list[str]:
    """llama-server, each slot with room for the longest prompt and its answer; or llama_cpp.server, which has one."""
    threads = str(options.threads or os.cpu_count())
    model = ["--model", str(model_file(options.model)), "--port", "PORT"]
    if options.peer == "auto":
        return [sys.executable, "-m", "llama_cpp.server", *model, "--n_ctx", "2048", "--n_threads", threads]
    slots = min(clients, options.peer_slots)
    return [options.peer, *model, "--parallel", str(slots), "--ctx-size", str(slots * 1024), "--threads", threads, "--no-webui"]


def show(name: str, clients: int, result: dict) -> None:
    print(f"{name:10s} {clients:4d} clients: {result['tokens_per_second']:8.1f} tokens/s, first token {result['first_p50']:7.2f} s "
          f"(p99 {result['first_p99']:7.2f}), between {1e3 * (result['between_p50'] or 0):7.1f} ms (p99 {1e3 * (result['between_p99'] or 0):7.1f})", flush=True)


def measure(options, with_peer: bool) -> list[dict]:
    rows = []
    for clients in options.clients:
        rounds: dict[str, list[dict]] = {}
        for turn in range(options.rounds):
            health = "/v1/models" if options.peer == "auto" else "/health"
            sides = [("fovea", fovea_command(options), "/health")] + ([("llama_cpp", peer_command(options, clients), health)] if with_peer else [])
            for name, command, ready in sides if turn % 2 == 0 else reversed(sides):
                with Server(name, command, ready) as server:
                    load(server, 1, 1, 8, (16,), 9_000 + turn)  # the first request warms up
                    result = load(server, clients, options.requests, options.tokens, PROMPT_TOKENS, turn)
                rounds.setdefault(name, []).append(result)
                show(name, clients, result)
        row = {"clients": clients, "requests_each": options.requests, "answer_tokens": options.tokens} | summary(rounds)
        if with_peer:
            ratios = [a["tokens_per_second"] / b["tokens_per_second"] for a, b in zip(rounds["fovea"], rounds["llama_cpp"])]
            row["ratio"] = quartiles(ratios)
            print(f"           {clients:4d} clients: {statistics.median(ratios):.2f} times llama.cpp's tokens/s", flush=True)
        rows.append(row)
    return rows


def long_prompts(options, server: Server, turn: int) -> list:
    """One prompt a client that nearly fills the context: parts of --text in ids, or words."""
    length = options.focus_context - options.tokens - 16
    if options.text is None:
        return [prompt_of(length, (500 + turn) * 100_000 + at) for at in range(options.focus_clients)]
    many = options.focus_clients * length
    text = options.text.read_text()[:8 * many]
    body = json.dumps({"prompt": text, "add_special_tokens": False}).encode()
    with urllib.request.urlopen(urllib.request.Request(server.url + "/tokenize", body, {"Content-Type": "application/json"})) as answer:
        ids = json.load(answer)["tokens"]
    if len(ids) < many:
        raise SystemExit(f"{options.text} has {len(ids)} tokens; {options.focus_clients} clients need {many}")
    return [[turn + 1, *ids[at * length + 1:(at + 1) * length]] for at in range(options.focus_clients)]


def measure_focus(options) -> list[dict]:
    """Hard Focus against full attention, one server, the models in turn: prompts that are new, and the same again."""
    rounds: dict[str, dict[str, list[dict]]] = {"new": {"full": [], "focus": []}, "again": {"full": [], "focus": []}}
    with Server("fovea", fovea_command(options, "--name", "full", "--adapter", f"focus={options.focus}", "--focus", "hard"), "/health") as server:
        for turn in range(options.rounds):
            prompts = long_prompts(options, server, turn)
            for name in ("full", "focus") if turn % 2 == 0 else ("focus", "full"):
                for prompt, results in rounds.items():
                    result = answered(server, options.focus_clients, prompts, options.tokens, name)
                    results[name].append(result)
                    show(f"{name} {prompt}", options.focus_clients, result)
    rows = []
    for prompt, sides in rounds.items():
        ratios = [a["tokens_per_second"] / b["tokens_per_second"] for a, b in zip(sides["focus"], sides["full"])]
        print(f"hard Focus, prompts {prompt}: {statistics.median(ratios):.2f} times the tokens/s of full attention at {options.focus_context} tokens")
        rows.append({"prompts": prompt, "context": options.focus_context, "clients": options.focus_clients, "text": options.text is not None}
                    | summary(sides) | {"ratio": quartiles(ratios)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--clients", type=lambda text: [int(part) for part in text.split(",") if text != "none"], default=[1, 8, 32, 128], help="none: the rows of --focus alone")
    parser.add_argument("--requests", type=int, default=2, help="of each client")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", default="auto", help="llama-server, auto or none")
    parser.add_argument("--peer-slots", type=int, default=32, help="of llama-server, at most")
    parser.add_argument("--options", default="", help="of fovea serve, in one text")
    parser.add_argument("--focus", help="folder of an adapter with Focus")
    parser.add_argument("--text", type=pathlib.Path, help="where the prompts of --focus are taken from")
    parser.add_argument("--focus-context", type=int, default=8192)
    parser.add_argument("--focus-clients", type=int, default=8)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--program", default=str(ROOT / "build/bin/fovea"))
    parser.add_argument("--output", type=pathlib.Path, help="results; what is there of other numbers of clients stays")
    options = parser.parse_args()
    rows = measure(options, has_peer(options))
    focus = measure_focus(options) if options.focus else []
    if options.output:
        write_report(options, rows, focus)


def summary(rounds: dict[str, list[dict]]) -> dict:
    """Quartiles over the rounds, by side: tokens a second, and milliseconds to the first token and between tokens."""
    out = {}
    for side, results in rounds.items():
        out[f"{side}_tokens_per_second"] = quartiles([result["tokens_per_second"] for result in results])
        for name in ("first_p50", "first_p99", "between_p50", "between_p99"):
            out[f"{side}_{name}_ms"] = quartiles([1e3 * (result[name] or 0) for result in results])
    return out


def write_report(options, rows: list[dict], focus: list[dict]) -> None:
    """The results; a file that is there keeps what this run did not measure, so that a long table is made in pieces."""
    report = json.loads(options.output.read_text()) if options.output.exists() else {"commands": {}, "results": [], "rows": []}
    report |= {"benchmark": "serve_load", "date": datetime.date.today().isoformat(),
               "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "kind": cpu_kind()}}
    local = {options.model: "MODEL", options.peer: pathlib.Path(options.peer).name, options.focus: "ADAPTER", str(options.text): "TEXT"}
    report["commands"][shlex.join(["benchmarks/serve_load.py", *(local.get(word, word) for word in sys.argv[1:])])] = commit()
    measured = {row["clients"] for row in rows}
    report["results"] = sorted([row for row in report["results"] if row["clients"] not in measured] + rows, key=lambda row: row["clients"])
    report["rows"] = focus or report["rows"]
    options.output.write_text(json.dumps(report, indent=1) + "\n")


def cpu_name() -> str:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


if __name__ == "__main__":
    main()
