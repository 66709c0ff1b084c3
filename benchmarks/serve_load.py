#!/usr/bin/env python3
"""Load on `fovea serve`: tokens a second and waiting times by number of clients, beside llama.cpp's server.

    benchmarks/serve_load.py MODEL [--clients 1,8,32,128] [--requests 2] [--tokens 64] [--rounds 3] [--peer LLAMA_SERVER|auto|none]
                             [--focus ADAPTER] [--focus-context 8192] [--focus-clients 8] [--threads N]
                             [--program build/bin/fovea] [--output FILE]

MODEL is a .gguf file, or a folder with one. Each client sends its requests one after another; prompts have 16 to 512 tokens
of pseudo-random words, each only once, so that no prefix cache answers. Every answer has --tokens tokens. Rounds alternate
the servers; the ratio is that of a round. With --focus, the base and the adapter (hard) answer --focus-clients clients whose
prompts nearly fill --focus-context. The peer is the program --peer (llama.cpp's llama-server, with as many slots as clients, at
most --peer-slots), or with `auto` `python -m llama_cpp.server` where this Python has it; else one line says so. --options goes
to fovea serve.

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


def one_request(url: str, body: dict) -> tuple[list[float], int]:
    """Seconds from the start to each event that has text, and the new tokens."""
    body = body | {"stream": True, "stream_options": {"include_usage": True}}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    start, times, tokens = time.perf_counter(), [], None
    with urllib.request.urlopen(request, timeout=3600) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(event["error"])
                if event.get("choices") and event["choices"][0].get("text"):
                    times.append(time.perf_counter() - start)
                tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    return times, len(times) if tokens is None else tokens


def load(server: Server, clients: int, requests: int, tokens: int, lengths: tuple[int, ...], seed: int, model: str | None) -> dict:
    """All clients at once, each with its requests in turn."""
    body = {"max_tokens": tokens, "temperature": 0, **({"model": model} if model else {})}
    body["ignore_eos"] = True  # llama_cpp.server does not know the field, and refuses none

    def client(number: int) -> list[tuple[list[float], int]]:
        lists = []
        for turn in range(requests):
            at = number * requests + turn
            lists.append(one_request(server.url, body | {"prompt": prompt_of(lengths[at % len(lengths)], seed * 100_000 + at)}))
        return lists

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
                    load(server, 1, 1, 8, (16,), 9_000 + turn, None)  # the first request warms up
                    result = load(server, clients, options.requests, options.tokens, PROMPT_TOKENS, turn, None)
                rounds.setdefault(name, []).append(result)
                show(name, clients, result)
        row = {"clients": clients, "requests_each": options.requests, "answer_tokens": options.tokens} | summary(rounds)
        if with_peer:
            ratios = [a["tokens_per_second"] / b["tokens_per_second"] for a, b in zip(rounds["fovea"], rounds["llama_cpp"])]
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
    return {"context": options.focus_context, "clients": options.focus_clients} | summary(rounds) | {"ratio": quartiles(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--clients", type=lambda text: [int(part) for part in text.split(",")], default=[1, 8, 32, 128])
    parser.add_argument("--requests", type=int, default=2, help="of each client")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", default="auto", help="llama-server, auto or none")
    parser.add_argument("--peer-slots", type=int, default=32, help="of llama-server, at most")
    parser.add_argument("--options", default="", help="of fovea serve, in one text")
    parser.add_argument("--focus", help="folder of an adapter with Focus")
    parser.add_argument("--focus-context", type=int, default=8192)
    parser.add_argument("--focus-clients", type=int, default=8)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--program", default=str(ROOT / "build/bin/fovea"))
    parser.add_argument("--output", type=pathlib.Path, help="results; what is there of other numbers of clients stays")
    options = parser.parse_args()
    rows = measure(options, has_peer(options))
    focus = measure_focus(options) if options.focus else None
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


def write_report(options, rows: list[dict], focus: dict | None) -> None:
    """The results; a file that is there keeps what this run did not measure, so that a long table is made in pieces."""
    report = json.loads(options.output.read_text()) if options.output.exists() else {"commands": {}, "results": [], "rows": []}
    report |= {"benchmark": "serve_load", "date": datetime.date.today().isoformat(),
               "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "kind": cpu_kind()}}
    local = {options.model: "MODEL", options.peer: pathlib.Path(options.peer).name}
    report["commands"][shlex.join(["benchmarks/serve_load.py", *(local.get(word, word) for word in sys.argv[1:])])] = commit()
    measured = {row["clients"] for row in rows}
    report["results"] = sorted([row for row in report["results"] if row["clients"] not in measured] + rows, key=lambda row: row["clients"])
    report["rows"] = [focus] if focus else report["rows"]
    options.output.write_text(json.dumps(report, indent=1) + "\n")


def cpu_name() -> str:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


if __name__ == "__main__":
    main()
