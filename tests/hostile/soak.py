#!/usr/bin/env python3
"""An hour of bad luck: random kills, random flipped bits, random recipes; ends with a digest of what was tried.

Run by scripts/soak.sh. SOAK_SECONDS is how long (3600), SOAK_SEED repeats a session. A failure is printed with the
command that shows it, the exit code is 1 then, and the folder stays.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import collections
import hashlib
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from run import CRASHES, HERE, Suite

LAST = "checkpoints/0000000012"
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
NUMBERS = ("0", "1", "-1", "2", "3", "7", "64", "1e-30", "0.5", "1e30", "nan", "inf", "-inf", "2147483648",
           "9223372036854775807", "-9223372036854775808", "1e400", "''", "null", "[]", "{}", "true", "0x10", "1_000", "٣")
# Folders of the machine itself are not for random values.
FIXED = ("run_folder", "data.cache", "data.sources", "data.sources.0.path", "train.init_from", "tokenizer")
MOST_MEMORY = 8 << 30
TEXTS = ("''", "a", "../../x", "/", "/dev/null", "[1", "null", "5", "a b", "'\\0'", "ß" * 300)


class Soak:
    def __init__(self, program: pathlib.Path, folder: pathlib.Path, seed: int):
        self.random, self.folder = random.Random(seed), folder
        self.suite = Suite(program, folder, limit_memory=False)
        self.program, self.recipe = self.suite.words["fovea"], self.suite.words["recipe"]
        self.whole = pathlib.Path(self.suite.words["run"])
        self.tried, self.failed = collections.Counter(), collections.Counter()
        self.digest = hashlib.sha256()
        self.keys = self.keys_of_recipes()

    def keys_of_recipes(self) -> list[tuple[str, str]]:
        """(key, type) of the table that `fovea train --help` prints."""
        lines = self.call(["train", "--help"])[1].splitlines()
        found = [re.fullmatch(r"  ([a-z_0-9.N]+)  (\S.*?) = .*", line) for line in lines]
        keys = [(match[1].replace(".N.", ".0."), match[2]) for match in found if match]
        return [(key, kind) for key, kind in keys if key not in FIXED]

    def call(self, words: list[str], seconds: float = 120) -> tuple[int | None, str, str]:
        """Exit code (None: it took too long), stdout, stderr."""
        try:
            done = subprocess.run([self.program, *words], env=self.suite.environment, cwd=self.folder, capture_output=True,
                                  stdin=subprocess.DEVNULL, timeout=seconds, text=True, errors="replace",
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY)))
            return done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired:
            return None, "", ""

    def expect(self, kind: str, words: list[str], codes: tuple[int, ...], *phrases: str) -> bool:
        code, out, err = self.call(words)
        crash = [word for word in CRASHES if word in out + err]
        lacking = [phrase for phrase in phrases if phrase not in err]
        self.digest.update(" ".join([kind, *words]).replace(str(self.folder), "").encode())
        if code in codes and not crash and not lacking:
            return True
        self.report(kind, f"{' '.join(words)}\n  exit code {code}, expected {codes}; {crash} {lacking}\n  {err[-800:]!r}")
        return False

    def report(self, kind: str, text: str) -> None:
        self.failed[kind] += 1
        print(f"FAILED {kind}: {text}", flush=True)

    def fresh(self, name: str, copy: bool) -> pathlib.Path:
        run = self.folder / name
        shutil.rmtree(run, ignore_errors=True)
        if copy:
            shutil.copytree(self.whole, run)
        return run

    def same_weights(self, kind: str, run: pathlib.Path) -> None:
        for name in ("model.safetensors", "optimizer.safetensors"):
            if (run / LAST / name).read_bytes() != (self.whole / LAST / name).read_bytes():
                self.report(kind, f"{name} of {run} has other bits than the run that was left alone")

    def kills(self) -> None:
        run = self.fresh("killed", copy=False)
        command = [self.program, "train", self.recipe, f"run_folder={run}", "-q"]
        for _ in range(self.random.randint(1, 4)):
            child = subprocess.Popen(command, env=self.suite.environment, stdin=subprocess.DEVNULL,
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                     preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
            time.sleep(self.random.uniform(0, 1.5))
            child.send_signal(self.random.choice(SIGNALS))
            child.wait()
        if self.expect("kills", command[1:], (0,)):
            self.same_weights("kills", run)

    def flips(self) -> None:
        run = self.fresh("flipped", copy=True)
        files = sorted(file for file in run.rglob("*") if file.is_file() and file.stat().st_size)
        file = self.random.choice(files)
        data = bytearray(file.read_bytes())
        data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        file.write_bytes(data)
        train = ["train", self.recipe, f"run_folder={run}", "-q"]
        if "checkpoints" not in file.parts:
            self.expect("flips beside checkpoints", train, (0, 2))
            return
        checkpoint = str(file.parent)
        self.expect("flips", ["checkpoint", "verify", str(run)], (2,), file.name)
        self.expect("flips", ["generate", checkpoint, "a", "--max-tokens", "2"], (2,), file.name)
        newest = file.parent.name == pathlib.Path(LAST).name
        if self.expect("flips", train, (0,), *(["falling back"] if newest else [])):
            self.same_weights("flips", run)

    def value_of(self, kind: str) -> str:
        if "|" in kind and self.random.random() < 0.8:
            return self.random.choice(kind.split("|"))
        if kind.startswith(("integer", "number")) and self.random.random() < 0.5:
            return self.random.choice([str(self.random.randint(0, 100)), f"{self.random.uniform(0, 2):.3g}"])
        return self.random.choice(NUMBERS if self.random.random() < 0.7 else TEXTS)

    def recipes(self) -> None:
        run = self.fresh("any", copy=False)
        chosen = self.random.sample(self.keys, self.random.randint(1, 4))
        changes = [f"{key}={self.value_of(kind)}" for key, kind in chosen]
        fixed = [f"run_folder={run}", "train.seconds=2"]
        self.expect("recipes", ["train", self.recipe, *changes, *fixed, "-q"], (0, 1, 2))

    def run(self, seconds: float) -> int:
        started = time.monotonic()
        kinds = (self.kills, self.flips, self.flips, self.recipes, self.recipes, self.recipes)
        while time.monotonic() - started < seconds:
            kind = self.random.choice(kinds)
            kind()
            self.tried[kind.__name__] += 1
        for kind, count in sorted(self.tried.items()):
            print(f"{kind}: {count} tried")
        print(f"keys of recipes: {len(self.keys)}; digest {self.digest.hexdigest()[:16]}; "
              f"{time.monotonic() - started:.0f} s")
        failed = sum(self.failed.values())
        print(f"{sum(self.tried.values()) - min(failed, sum(self.tried.values()))} passed, {failed} failed")
        return 1 if failed else 0


def main() -> int:
    seed = int(os.environ.get("SOAK_SEED") or random.randrange(1 << 32))
    program = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else HERE.parent.parent / "build/bin/fovea").resolve(strict=True)
    print(f"SOAK_SEED={seed}", flush=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="fovea-soak-"))
    code = Soak(program, folder, seed).run(float(os.environ.get("SOAK_SECONDS") or 3600))
    if code:
        print(f"the folder stays: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
