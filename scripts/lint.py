#!/usr/bin/env python3
"""clang-tidy (.clang-tidy) over the sources, as the build compiles them.

A source that passed is remembered in the cache folder by the content of everything that it includes of ours, so it is not
looked at again until that changes. Sources without torch headers (2 s each) are all checked; of those with torch headers
(20 s each) a run checks a few that it does not know yet, the latest changed first, and says how many are left. `--all`
checks them all; names of files check just these.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
GENERATED = BUILD / "kernels"  # units of cmake/FoveaKernels.cmake
TORCH_SOURCES_A_RUN = 6
# clang 14 knows no coroutines of C++20.
NOT_LINTED = {"fovea/serve/server.cpp"}
LINTED = ("fovea", "cli", "benchmarks", "examples")  # tests are read by people and run under sanitizers
INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.M)
TORCH = re.compile(rb"^\s*#\s*include\s*[<\"](torch|ATen|c10)/", re.M)
# Options that only the other compiler understands, or that name its precompiled header.
DROPPED = {"-Winvalid-pch", "-fopenmp", "-Werror"}


def find_tidy() -> str | None:
    return next((path for name in ("clang-tidy-14", "clang-tidy-19", "clang-tidy") if (path := shutil.which(name))), None)


def closure(source: pathlib.Path) -> list[pathlib.Path]:
    """The source and all our headers that it includes, directly or not."""
    seen, todo = [], [source]
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.append(path)
        for name in INCLUDE.findall(path.read_bytes()):
            for folder in (ROOT, path.parent):
                if (header := (folder / name.decode())).is_file():
                    todo.append(header.resolve())
    return sorted(seen)


def precompiled(command: str) -> bytes:
    """The headers that the command has precompiled, as text; empty for none."""
    words = shlex.split(command)
    return pathlib.Path(words[words.index("-include") + 1]).read_bytes() if "-include" in words else b""


def flags(command: str) -> list[str]:
    words = shlex.split(command)
    words = words[next(i for i, word in enumerate(words) if word.endswith(("c++", "g++"))) + 1:]
    kept, skip = [], False
    for i, word in enumerate(words):
        if skip:
            skip = False
        elif word in ("-o", "-c", "-MF", "-MT"):
            skip = True
        elif word == "-include":
            # The same headers as text: clang cannot read the precompiled form.
            content = precompiled(command)
            copy = BUILD / "lint" / f"pch-{hashlib.sha256(content).hexdigest()[:8]}.hxx"
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(content)
            kept += ["-include", str(copy)]
            skip = True
        elif word not in DROPPED and not word.startswith("-W") and word != "-MD":
            kept.append(word)
    return kept + ["-w"]


def sources(file: pathlib.Path) -> list[pathlib.Path]:
    """What a compiled file stands for: itself, or the sources that it includes (cmake/FoveaBatches.cmake)."""
    if file.parent != BUILD / "batches":
        return [file]
    return [ROOT / name.decode() for name in INCLUDE.findall(file.read_bytes())]


def tasks() -> list[dict]:
    compiled = json.loads((BUILD / "compile_commands.json").read_text())
    tidy_rules = (ROOT / ".clang-tidy").read_bytes()
    found = []
    for source, command in ((source, entry["command"]) for entry in compiled for source in sources(pathlib.Path(entry["file"]))):
        linted = source.parent == GENERATED or (ROOT in source.parents and source.relative_to(ROOT).parts[0] in LINTED)
        if not linted or str(source.relative_to(ROOT)) in NOT_LINTED:
            continue
        files = closure(source)
        contents = [path.read_bytes() for path in files]
        digest = hashlib.sha256(tidy_rules)
        for path, content in zip(files, contents):
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + content)
        found.append({
            "source": source.relative_to(ROOT),
            "flags": flags(command),
            "key": digest.hexdigest(),
            "torch": any(TORCH.search(content) for content in [*contents, precompiled(command)]),
        })
    return found


def check(tidy: str, task: dict, known: pathlib.Path) -> str:
    """What clang-tidy found in one source; "" for nothing, which is remembered."""
    done = subprocess.run([tidy, "--quiet", str(task["source"]), "--", *task["flags"]], cwd=ROOT, capture_output=True,
                          text=True, stdin=subprocess.DEVNULL)
    if done.returncode == 0:
        (known / task["key"]).touch()
        return ""
    return f"{task['source']}:\n{done.stdout}{done.stderr}"


def age(source: pathlib.Path) -> float:
    """Negative time of the last change: that of the commit (a fresh clone has no other), or of the file if edited."""
    edited = subprocess.run(["git", "status", "--porcelain", "--", source], cwd=ROOT, capture_output=True, text=True).stdout
    if edited:
        return -time.time()
    stamp = subprocess.run(["git", "log", "-1", "--format=%ct", "--", source], cwd=ROOT, capture_output=True, text=True).stdout
    return -float(stamp or 0)


def main(arguments: list[str]) -> int:
    tidy = find_tidy()
    if tidy is None:
        print("[lint] clang-tidy is not installed: run 'make setup', or install the package clang-tidy-14", file=sys.stderr)
        return 1
    cache = os.environ.get("FOVEA_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "fovea")
    known = pathlib.Path(cache) / "lint" / pathlib.Path(tidy).name
    known.mkdir(parents=True, exist_ok=True)

    everything = tasks()
    wanted = [pathlib.Path(name) for name in arguments if not name.startswith("--")]
    if wanted:
        everything = [task for task in everything if task["source"] in wanted]
    new = [task for task in everything if not (known / task["key"]).exists()]
    left = 0
    if not wanted and "--all" not in arguments:
        slow = sorted((task for task in new if task["torch"]), key=lambda task: age(task["source"]))
        left = max(0, len(slow) - TORCH_SOURCES_A_RUN)
        new = slow[:TORCH_SOURCES_A_RUN] + [task for task in new if not task["torch"]]

    started = time.time()
    jobs = int(subprocess.run([ROOT / "scripts/jobs.sh"], capture_output=True, text=True, check=True).stdout)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        problems = 0
        for text in pool.map(lambda task: check(tidy, task, known), new):
            problems += bool(text)
            print(text, end="", flush=True)
    later = f"; {left} with torch headers left to later runs (scripts/lint.py --all)" if left else ""
    print(f"[lint] {len(everything)} sources, {len(new)} looked at in {time.time() - started:.0f} s, "
          f"{problems} with findings{later}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
