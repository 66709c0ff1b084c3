#!/usr/bin/env python3
"""Load on `fovea serve`: tokens a second and waiting times by number of clients, beside llama.cpp's server.

    benchmarks/serve_load.py MODEL [--clients 1,8,32,128] [--requests 2] [--tokens 64] [--rounds 3] [--peer auto|none]
                             [--focus ADAPTER] [--focus-context 8192] [--focus-clients 8] [--threads N]
                             [--program build/bin/fovea] [--output FILE]

MODEL is a .gguf file, or a folder with one. Each client sends its requests one after another; prompts have 16 to 512 tokens
of pseudo-random words, each only once, so that no prefix cache answers. Every answer has --tokens tokens. Rounds alternate
the servers; the ratio is that of a round. With --focus, the base and the adapter (hard) answer --focus-clients clients whose
prompts nearly fill --focus-context. The peer is `python -m llama_cpp.server` where this Python has it; else one line says so.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import concurrent.futures
import datetime
import importlib.util
import json
import os
import pathlib
import random
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


def one_request(url: str, body: dict) -> list[float]:
    """Seconds from the start to each event that has text."""
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body | {"stream": True}).encode(), {"Content-Type": "application/json"})
    start, times = time.perf_counter(), []
    with urllib.request.urlopen(request, timeout=3600) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(event["error"])
                if event.get("choices") and event["choices"][0].get("text"):
                    times.append(time.perf_counter() - start)
    return times


def load(server: Server, clients: int, requests: int, tokens: int, lengths: tuple[int, ...], seed: int, model: str | None) -> dict:
    """All clients at once, each with its requests in turn."""
    body = {"max_tokens": tokens, "temperature": 0, **({"model": model} if model else {})}
    if server.name != "llama.cpp":  # it does not know the field, and refuses none
        body["ignore_eos"] = True

    def client(number: int) -> list[list[float]]:
        lists = []
        for turn in range(requests):
            at = number * requests + turn
            lists.append(one_request(server.url, body | {"prompt": prompt_of(lengths[at % len(lengths)], seed * 100_000 + at)}))
        return lists

    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        answers = [times for lists in pool.map(client, range(clients)) for times in lists]
    seconds = time.perf_counter() - start
    firsts = [times[0] for times in answers if times]
    gaps = [b - a for times in answers for a, b in zip(times, times[1:])]
    written = sum(map(len, answers))
    return {"tokens_per_second": written / seconds, "seconds": seconds, "tokens": written,
            "first_p50": at_share(firsts, 0.5), "first_p99": at_share(firsts, 0.99), "between_p50": at_share(gaps, 0.5),
            "between_p99": at_share(gaps, 0.99)}


def at_share(values: list[float], share: float) -> float | None:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


def model_file(model: str) -> pathlib.Path:
    path = pathlib.Path(model)
    return next(iter(sorted(path.glob("*.gguf"))), path) if path.is_dir() else path


def has_peer(options) -> bool:
    if options.peer == "none":
        return False
    if importlib.util.find_spec("llama_cpp") is None or importlib.util.find_spec("fastapi") is None:
        print("peer: not run: this Python has no llama-cpp-python[server]")
        return False
    return True


def fovea_command(options, *more: str) -> list[str]:
    return [options.program, "serve", options.model, "--port", "PORT", *(["--threads", str(options.threads)] if options.threads else []), *more]


def peer_command(options) -> list[str]:
    return [sys.executable, "-m", "llama_cpp.server", "--model", str(model_file(options.model)), "--port", "PORT", "--n_ctx", "2048",
            *(["--n_threads", str(options.threads)] if options.threads else [])]


def show(name: str, clients: int, result: dict) -> None:
    print(f"{name:10s} {clients:4d} clients: {result['tokens_per_second']:8.1f} tokens/s, first token {result['first_p50']:7.2f} s "
          f"(p99 {result['first_p99']:7.2f}), between {1e3 * (result['between_p50'] or 0):7.1f} ms (p99 {1e3 * (result['between_p99'] or 0):7.1f})", flush=True)


def measure(options, with_peer: bool) -> list[dict]:
    rows = []
    for clients in options.clients:
        rounds: dict[str, list[dict]] = {}
        for turn in range(options.rounds):
            sides = [("fovea", fovea_command(options), "/health")] + ([("llama.cpp", peer_command(options), "/v1/models")] if with_peer else [])
            for name, command, health in sides if turn % 2 == 0 else reversed(sides):
                with Server(name, command, health) as server:
                    load(server, 1, 1, 8, (16,), 9_000 + turn, None)  # the first request warms up
                    result = load(server, clients, options.requests, options.tokens, PROMPT_TOKENS, turn, None)
                rounds.setdefault(name, []).append(result)
                show(name, clients, result)
        row = {"clients": clients, "rounds": rounds}
        if with_peer:
            ratios = [a["tokens_per_second"] / b["tokens_per_second"] for a, b in zip(rounds["fovea"], rounds["llama.cpp"])]
            row["ratio"] = quartiles(ratios)
            print(f"           {clients:4d} clients: {statistics.median(ratios):.2f} times llama.cpp's tokens/s", flush=True)
        rows.append(row)
    return rows


def measure_focus(options) -> dict:
    """Hard Focus against full attention, one server, the models in turn."""
    length = options.focus_context - options.tokens - 16
    rounds: dict[str, list[dict]] = {"full": [], "focus": []}
    with Server("fovea", fovea_command(options, "--name", "full", "--adapter", f"focus={options.focus}", "--focus", "hard"), "/health") as server:
        for turn in range(options.rounds):
            for name in ("full", "focus") if turn % 2 == 0 else ("focus", "full"):
                result = load(server, options.focus_clients, 1, options.tokens, (length,), 500 + turn, name)
                rounds[name].append(result)
                show(name, options.focus_clients, result)
    ratios = [a["tokens_per_second"] / b["tokens_per_second"] for a, b in zip(rounds["focus"], rounds["full"])]
    print(f"hard Focus: {statistics.median(ratios):.2f} times the tokens/s of full attention at {options.focus_context} tokens")
    return {"context": options.focus_context, "clients": options.focus_clients, "rounds": rounds,
            "ratio": quartiles(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--clients", type=lambda text: [int(part) for part in text.split(",")], default=[1, 8, 32, 128])
    parser.add_argument("--requests", type=int, default=2, help="of each client")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", choices=("auto", "none"), default="auto")
    parser.add_argument("--focus", help="folder of an adapter with Focus")
    parser.add_argument("--focus-context", type=int, default=8192)
    parser.add_argument("--focus-clients", type=int, default=8)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--program", default=str(ROOT / "build/bin/fovea"))
    parser.add_argument("--output", type=pathlib.Path)
    options = parser.parse_args()
    report = {"date": datetime.date.today().isoformat(), "commit": commit(), "machine": cpu_kind(), "cores": os.cpu_count(),
              "command": shlex.join(sys.argv), "prompt_tokens": PROMPT_TOKENS, "load": measure(options, has_peer(options))}
    if options.focus:
        report["focus"] = measure_focus(options)
    if options.output:
        options.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
