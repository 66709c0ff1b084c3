#!/usr/bin/env python3
"""The hostile suite: commands of a user who means harm or has bad luck, and what must come of each.

  tests/hostile/run.py [--program build/bin/fovea] [--only WORD] [--list]

The tables are cases/*.py (case.py says what a case is). A small model and its run are made once, in a temporary folder;
cases run two at a time, each in a folder of its own. The last line is `N passed, N failed`.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import concurrent.futures
import importlib.util
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

from case import Case  # noqa: E402: found by the line above

SIDE_BY_SIDE = 2
# What no user may ever see, whatever the command.
CRASHES = ("[internal]", "This is a bug", "terminate called", "Segmentation fault", "Aborted", "AddressSanitizer",
           "runtime error:", "c10::Error", "Exception raised from")

RECIPE = """\
name: small
run_folder: {shared}/run
data:
  sources:
    - path: {shared}/text.txt
  cache: {shared}/cache
model:
  layers: 2
  width: 16
  heads: 2
  ffn_width: 32
  context: 32
train:
  steps: 12
  batch_rows: 2
  checkpoint_interval: 4
  keep_checkpoints: 3
  log_interval: 1
  evaluation_interval: 6
  evaluation_tokens: 64
  device: cpu
  dtype: float32
  threads: 1
"""


def load_cases() -> list[tuple[str, Case]]:
    cases = []
    for path in sorted((HERE / "cases").glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"cases_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        cases += [(path.stem, case) for case in module.CASES]
    names = [case.name for _, case in cases]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        sys.exit(f"two cases have one name: {twice}")
    return cases


class Suite:
    """The program, the shared files, and the folder in which cases run."""

    def __init__(self, program: pathlib.Path, folder: pathlib.Path, limit_memory: bool):
        self.folder, self.limit_memory = folder, limit_memory
        shared = folder / "shared"
        shared.mkdir()
        self.words = {
            "fovea": str(program), "recipe": str(shared / "recipe.yaml"), "text": str(shared / "text.txt"),
            "run": str(shared / "run"), "model": str(shared / "model"), "tools": str(HERE),
        }
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "LC_ALL": "C.UTF-8"}
        self.make_files(shared)

    def make_files(self, shared: pathlib.Path) -> None:
        lines = (f"Number {i} looks at number {i * i % 97} and at {i % 7}.\n" for i in range(1500))
        (shared / "text.txt").write_text("".join(lines))
        (shared / "recipe.yaml").write_text(RECIPE.format(shared=shared))
        subprocess.run([self.words["fovea"], "train", self.words["recipe"], "-q"], check=True, env=self.environment,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=300)
        (shared / "model").mkdir()
        for file in (shared / "run/checkpoints/0000000012").iterdir():
            if file.name not in ("state.json", "optimizer.safetensors"):
                shutil.copy(file, shared / "model")

    def fill_in(self, text: str, work: pathlib.Path) -> str:
        train = "{fovea} train {recipe} run_folder={work}/run"
        for word, value in (("train", train), *self.words.items(), ("work", str(work))):
            text = text.replace("{" + word + "}", value)
        return text

    def run(self, number: int, case: Case) -> str:
        """Empty for a case that holds, else what went wrong."""
        work = self.folder / str(number)
        work.mkdir()

        def limits() -> None:
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):  # nohup and `&` hand ignored ones down
                signal.signal(number, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if self.limit_memory:
                resource.setrlimit(resource.RLIMIT_AS, (case.memory << 20, case.memory << 20))

        with open(work / ".stdout", "wb") as out, open(work / ".stderr", "wb") as err:
            child = subprocess.Popen(["bash", "-c", self.fill_in(case.command, work)], cwd=work, env=self.environment,
                                     stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                                     preexec_fn=limits)
            try:
                code = child.wait(case.seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                try:
                    os.killpg(child.pid, signal.SIGKILL)  # also what it left in the background
                except ProcessLookupError:
                    pass
                child.wait()
        out, err = ((work / name).read_text(errors="replace") for name in (".stdout", ".stderr"))
        problem = self.judge(case, work, code, out, err)
        shutil.rmtree(work, ignore_errors=True)
        return problem

    def judge(self, case: Case, work: pathlib.Path, code: int | None, out: str, err: str) -> str:
        code = 128 - code if code is not None and code < 0 else code
        expected = case.code if isinstance(case.code, tuple) else (case.code,)
        wrong = []
        if code is None:
            wrong.append(f"it ran for more than {case.seconds} s")
        elif code not in expected:
            wrong.append(f"exit code {code}, expected {' or '.join(map(str, expected))}")
        for place, text, words in (("stderr", err, case.says), ("stdout", out, case.prints)):
            wrong += [f"{place} lacks '{w}'" for word in words if (w := self.fill_in(word, work)) not in text]
        wrong += [f"there is '{w}'" for word in (*case.never, *CRASHES) if (w := self.fill_in(word, work)) in out + err]
        if not wrong:
            return ""
        shown = "".join(f"  {place}: {text[-1500:].strip()!r}\n" for place, text in (("stdout", out), ("stderr", err)))
        return f"  $ {self.fill_in(case.command, work)}\n  {'; '.join(wrong)}\n{shown}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--program", type=pathlib.Path, default=HERE.parent.parent / "build/bin/fovea")
    parser.add_argument("--only", default="", help="cases whose table or name holds this word")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("--no-memory-limit", action="store_true", help="for builds with sanitizers")
    options = parser.parse_args()
    cases = [(table, case) for table, case in load_cases() if options.only in f"{table} {case.name}"]
    if options.list:
        print(*(f"{table}: {case.name}" for table, case in cases), sep="\n")
        return 0
    started, failed = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="fovea-hostile-") as folder:
        suite = Suite(options.program.resolve(strict=True), pathlib.Path(folder), not options.no_memory_limit)
        with concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            running = [pool.submit(suite.run, number, case) for number, (_, case) in enumerate(cases)]
            for (table, case), result in zip(cases, running):
                if problem := result.result():
                    failed += 1
                    print(f"FAILED {table}: {case.name}\n{problem}", flush=True)
    print(f"{len(cases)} commands in {time.monotonic() - started:.0f} s")
    print(f"{len(cases) - failed} passed, {failed} failed")
    return 1 if failed or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
