#!/usr/bin/env python3
"""Ranks on the GPU of this machine: one rank by NCCL, two ranks on the one card, refusals, a rank that is killed.

    scripts/gpu-ranks.py FOLDER [--output FILE]

FOLDER holds the programs fovea and runtime_test, and libfovea_nccl.so (or has it in ../lib). Two ranks share a card
because NCCL_HOSTID names two machines: they exchange by NCCL's sockets, which shows that the numbers are right and
nothing about speed. Under two minutes. Exits 1 where something is wrong.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

STEPS = 20


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


def write_recipe(folder: pathlib.Path) -> pathlib.Path:
    text = folder / "text.txt"
    text.write_text("".join(f"line {n} of a text that nobody wrote, {n * n} times\n" for n in range(20000)))
    path = folder / "recipe.yaml"
    path.write_text(json.dumps({
        "name": "ranks", "data": {"sources": [{"path": str(text)}], "cache": str(folder / "cache")},
        "model": {"layers": 4, "width": 256, "heads": 4, "context": 256},
        "train": {"steps": STEPS, "batch_rows": 8, "accumulation": 2, "sequence_length": 256, "evaluation_tokens": 2048,
                  "checkpoint_interval": 0, "log_interval": 1, "resume": "never", "device": "cuda", "dtype": "float32"}}))
    return path


class Runs:
    def __init__(self, programs: pathlib.Path, folder: pathlib.Path):
        self.programs, self.folder, self.recipe = programs, folder, write_recipe(folder)

    def start(self, name: str, more: list[str], variables: dict[str, str]) -> subprocess.Popen:
        command = [str(self.programs / "fovea"), "train", str(self.recipe), f"run_folder={self.folder / name}", *more]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env=os.environ | {"OMP_NUM_THREADS": "2"} | variables)

    def ranks(self, name: str, size: int, more: list[str], apart: bool = True) -> list[subprocess.Popen]:
        """Ranks that share the card; NCCL takes them for two machines where they are apart."""
        place = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
                 "LOCAL_RANK": "0", "NCCL_SOCKET_IFNAME": "lo", "FOVEA_RANK_TIMEOUT": "60"}
        return [self.start(name, more, place | {"RANK": str(rank)} | ({"NCCL_HOSTID": f"host{rank}"} if apart else {}))
                for rank in range(size)]

    def losses(self, name: str) -> list[float]:
        lines = (self.folder / name / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["loss/out"] for line in lines]


def finish(processes: list[subprocess.Popen], seconds: float = 80) -> tuple[list[int], str]:
    said, end = [], time.monotonic() + seconds
    for process in processes:
        try:
            said.append(process.communicate(timeout=max(1.0, end - time.monotonic()))[0])
        except subprocess.TimeoutExpired:
            process.kill()
            said.append(process.communicate()[0] + f"[gpu-ranks] cut after {seconds:.0f} s")
    return [process.returncode for process in processes], "\n".join(said)


def last_line(said: str) -> str:
    return (said.strip().splitlines() or ["it said nothing"])[-1]


def difference(one: list[float], other: list[float]) -> float:
    if len(one) != len(other):
        return float("inf")
    return max(abs(a - b) / a for a, b in zip(one, other))


def unit_tests(runs: Runs) -> tuple[bool, str]:
    done = subprocess.run([str(runs.programs / "runtime_test"), "--gtest_filter=Nccl*"], capture_output=True, text=True,
                          timeout=100, check=False)
    return done.returncode == 0 and "not run" not in done.stdout, done.stdout[-1500:] + done.stderr[-500:]


def same_losses(runs: Runs, name: str, processes: list[subprocess.Popen], bound: float) -> tuple[bool, str]:
    codes, said = finish(processes)
    if any(codes):
        return False, f"exit codes {codes}: {said[-1500:]}"
    if not (runs.folder / "alone" / "metrics.jsonl").exists():
        return False, "the run of one process, which it is compared with, failed"
    off = difference(runs.losses("alone"), runs.losses(name))
    return off < bound, f"losses differ by {off:.1e} of themselves at most, in {STEPS} steps"


def refusal(runs: Runs) -> tuple[bool, str]:
    codes, said = finish(runs.ranks("refused", 2, [], apart=False))
    return all(codes) and "have one together" in said, f"exit codes {codes}: {last_line(said)}"


def killed(runs: Runs) -> tuple[bool, str]:
    processes = runs.ranks("killed", 2, ["train.steps=1000000"])
    metrics, end = runs.folder / "killed" / "metrics.jsonl", time.monotonic() + 60
    while time.monotonic() < end and not (metrics.exists() and len(metrics.read_text().splitlines()) > 5):
        time.sleep(0.2)
    processes[1].kill()
    start = time.monotonic()
    codes, said = finish(processes, 60)
    seconds = time.monotonic() - start
    return codes[0] == 75 and seconds < 30 and "rank 1 of 2" in said, \
        f"exit code {codes[0]} after {seconds:.1f} s: {last_line(said)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path)
    options = parser.parse_args()
    results = {}

    def tell(name: str, outcome: tuple[bool, str]) -> None:
        results[name] = {"right": outcome[0], "what": outcome[1]}
        print(f"[gpu-ranks] {time.monotonic() - start:.0f} s: {name}: {'right' if outcome[0] else 'WRONG'}: {outcome[1]}",
              flush=True)

    start = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary, concurrent.futures.ThreadPoolExecutor() as pool:
        runs = Runs(options.folder.resolve(), pathlib.Path(temporary))
        tests = pool.submit(unit_tests, runs)
        codes, said = finish([runs.start("alone", [], {})])  # it writes the cache of tokens
        tell("one process", (codes == [0], said[-400:]))
        later = {
            "one rank of a launcher": pool.submit(
                same_losses, runs, "launched",
                [runs.start("launched", [], {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
                                             "MASTER_PORT": str(free_port())})], 1e-5),
            "two ranks on one card": pool.submit(same_losses, runs, "two", runs.ranks("two", 2, []), 1e-5),
            "two ranks, layers cut": pool.submit(same_losses, runs, "cut", runs.ranks("cut", 2, ["train.shard=all"]), 1e-5),
            "two ranks of one GPU": pool.submit(refusal, runs),
            "a rank that is killed": pool.submit(killed, runs)}
        tell("tests", tests.result())
        for name, outcome in later.items():
            tell(name, outcome.result())
    if options.output:
        options.output.write_text(json.dumps(results, indent=1) + "\n")
    sys.exit(0 if all(result["right"] for result in results.values()) else 1)


if __name__ == "__main__":
    main()
