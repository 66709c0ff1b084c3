#!/usr/bin/env python3
"""The server as a process: answers, faults of clients, signals.

  tests/serve/run.py [--program build/bin/fovea] [--only WORD] [--list]

A small model is trained once, in a temporary folder. Each test_* function of cases.py gets the Suite; the last line is
`N passed, N failed`.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

import cases  # noqa: E402: found by the line above
from client import Server  # noqa: E402

RECIPE = """\
name: small
run_folder: {folder}/run
data:
  sources:
    - path: {folder}/text.txt
  cache: {folder}/cache
model:
  layers: 2
  width: 16
  heads: 2
  ffn_width: 32
  context: 256
train:
  steps: 12
  batch_rows: 2
  checkpoint_interval: 12
  log_interval: 12
  evaluation_interval: 12
  evaluation_tokens: 64
  device: cpu
  dtype: float32
  threads: 1
"""


class Suite:
    def __init__(self, program: pathlib.Path, folder: pathlib.Path):
        self.program, self.folder = str(program), folder
        lines = (f"Number {i} looks at number {i * i % 97} and at {i % 7}.\n" for i in range(1500))
        (folder / "text.txt").write_text("".join(lines))
        (folder / "recipe.yaml").write_text(RECIPE.format(folder=folder))
        self.fovea("train", str(folder / "recipe.yaml"), "-q")

    def fovea(self, *arguments: str) -> str:
        return subprocess.run([self.program, *arguments], check=True, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout

    @property
    def model(self) -> pathlib.Path:
        return self.folder / "run"

    def serve(self, *options: str, **more) -> Server:
        return Server(self.program, self.model, *options, **more)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--program", type=pathlib.Path, default=HERE.parent.parent / "build/bin/fovea")
    parser.add_argument("--only", default="", help="tests whose name holds this word")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    options = parser.parse_args()
    tests = {name: test for name, test in vars(cases).items() if name.startswith("test_") and options.only in name}
    if options.list:
        print(*tests, sep="\n")
        return 0
    failed = 0
    with tempfile.TemporaryDirectory(prefix="fovea-serve-") as folder:
        suite = Suite(options.program.resolve(strict=True), pathlib.Path(folder))
        for name, test in tests.items():
            started = time.monotonic()
            try:
                test(suite)
            except Exception:
                failed += 1
                print(f"FAILED {name} ({time.monotonic() - started:.1f} s)\n{traceback.format_exc()}", flush=True)
    print(f"{len(tests) - failed} passed, {failed} failed")
    return 1 if failed or not tests else 0


if __name__ == "__main__":
    sys.exit(main())
