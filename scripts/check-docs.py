#!/usr/bin/env python3
"""Checks *.md of the root and of docs/: marked snippets run, commands and files that the text names exist.

A fenced block is checked by what stands behind its language:
    ```sh run        run with bash -e in a scratch folder that has this repository's files (links); `runs/` stays there.
                     The blocks of one document run in one folder, one after the other.
    ```cpp compile   compiled as the program's own sources are; without a main() its lines stand in a function
    ```yaml recipe   read by `fovea train --print-config` (`fovea compare`, where it has a `compare` map)
In every block and `code` word: `make TARGET` and `fovea VERB --option` must exist, paths into the repository too, and
relative links must lead to a file (and its heading). Pictures of docs/images/ and tables that a script makes must be what
it makes.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import functools
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build/bin/fovea"
FOLDERS = "fovea cli cmake scripts tests recipes docs benchmarks examples python".split()
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```\s*$", re.M | re.S)
LINK = re.compile(r"(?<!`)\[[^\]\n]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(rf"^(?:{'|'.join(FOLDERS)})/[\w./-]*$")
TIMEOUT = 300


def documents() -> list[pathlib.Path]:
    return sorted(path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")] if path.is_file())


@functools.cache
def help_of(*words: str) -> str:
    done = subprocess.run([PROGRAM, *words, "--help"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.stdout + done.stderr if done.returncode == 0 else ""


@functools.cache
def make_targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))


def command_problems(line: str) -> list[str]:
    """What is wrong with one line of shell, as far as it calls make or fovea."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return []
    while words and (re.match(r"^\w+=", words[0]) or words[0] in ("$", "time", "sudo")):
        words = words[1:]
    if len(words) < 2:
        return []
    if words[0] == "make" and re.fullmatch(r"[a-z][\w-]*", words[1]) and words[1] not in make_targets():
        return [f"no target '{words[1]}' in the Makefile: {line}"]
    if words[0] not in ("fovea", "build/bin/fovea", "./build/bin/fovea"):
        return []
    verb = words[1]
    if verb.startswith("-") or not re.fullmatch(r"[a-z]+", verb):
        return []
    text = help_of(verb)
    if not text:
        return [f"fovea has no verb '{verb}': {line}"]
    if "Subcommands:" in text and len(words) > 2 and re.fullmatch(r"[a-z][a-z-]*", words[2]):
        text = help_of(verb, words[2])
        if not text:
            return [f"fovea {verb} has no verb '{words[2]}': {line}"]
    options = [word.split("=")[0] for word in words[2:] if re.match(r"^--[a-z]", word)]
    return [f"fovea {verb} has no option '{option}': {line}" for option in options
            if not re.search(rf"{re.escape(option)}\b", text)]


def path_problem(word: str) -> list[str]:
    if not PATH.match(word) or word.endswith("..."):
        return []
    return [] if (ROOT / word).exists() else [f"no such file or folder: {word}"]


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def link_problem(document: pathlib.Path, target: str) -> list[str]:
    if re.match(r"^[a-z]+:", target):
        return []
    path, _, anchor = target.partition("#")
    file = (document.parent / path).resolve() if path else document
    if not file.exists():
        return [f"link leads nowhere: {target}"]
    if anchor and file.suffix == ".md":
        headings = {slug(text) for text in re.findall(r"^#+ (.*)$", file.read_text(), re.M)}
        if anchor not in headings:
            return [f"link leads to no heading: {target}"]
    return []


def picture_problems() -> list[str]:
    problems = []
    with tempfile.TemporaryDirectory(prefix="fovea-pictures-") as name:
        for script in ("draw-grouped.py", "draw-mechanisms.py"):
            subprocess.run([sys.executable, ROOT / "scripts" / script, "--folder", name], check=True)
        for drawn in sorted(pathlib.Path(name).iterdir()):
            kept = ROOT / "docs/images" / drawn.name
            if not kept.exists() or kept.read_bytes() != drawn.read_bytes():
                problems.append(f"docs/images/{drawn.name} is not what its script in scripts/draw-*.py draws; run that")
    return problems


def generated_problems() -> list[str]:
    """Pages that scripts write: each script says with --check what is not current."""
    problems = []
    for script in ("bench-pages.py", "study-pages.py", "support.py", "python-reference.py"):
        done = subprocess.run([sys.executable, ROOT / "scripts" / script, "--check"], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            problems += (done.stdout + done.stderr).splitlines() or [f"scripts/{script} --check failed"]
    return problems


def claims_problems() -> list[str]:
    """docs/findings/claims.md must be what the program makes of recipes/claims and the result files."""
    made = subprocess.run([PROGRAM, "reproduce", "--markdown", "--results", ROOT], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL)
    if made.returncode != 0:
        return (made.stdout + made.stderr).splitlines()
    page = ROOT / "docs/findings/claims.md"
    return [] if page.exists() and page.read_text() == made.stdout else [f"{page.relative_to(ROOT)} is not current; run make claims"]


def scratch_folder(folder: pathlib.Path) -> None:
    for entry in ROOT.iterdir():
        if entry.name not in ("runs", ".git"):
            (folder / entry.name).symlink_to(entry)


def run(command: list, folder: pathlib.Path) -> str:
    """What a command printed when it failed; "" when it did not."""
    environment = dict(os.environ, PATH=f"{PROGRAM.parent}:{os.environ['PATH']}")
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT,
                              stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return f"took longer than {TIMEOUT} s"
    return "" if done.returncode == 0 else f"exit code {done.returncode}\n{done.stdout}{done.stderr}"


@functools.cache
def compile_command() -> tuple[str, ...]:
    """How build/ compiles cli/main.cpp, up to the names of the files."""
    entries = json.loads((ROOT / "build/compile_commands.json").read_text())
    command = next(entry["command"] for entry in entries if entry["file"].endswith("/cli/main.cpp"))
    words = shlex.split(command)
    return tuple(words[:words.index("-o")])


def snippet_problem(kind: str, text: str, folder: pathlib.Path) -> str:
    if kind == "sh run":
        return run(["bash", "-euo", "pipefail", "-c", text], folder)
    if kind == "yaml recipe":
        recipe = folder / "snippet.yaml"
        recipe.write_text(text)
        verb = "compare" if re.search(r"^compare:", text, re.M) else "train"
        return run([PROGRAM, verb, recipe.name, "--print-config"], folder)
    if kind == "cpp compile":
        if not re.search(r"^int main\(", text, re.M):
            includes = "".join(re.findall(r"^#include.*\n", text, re.M))
            body = re.sub(r"^#include.*\n", "", text, flags=re.M)
            text = f"{includes}[[maybe_unused]] static void snippet() {{\nusing namespace fovea;\n{body}}}\n"
        source = folder / "snippet.cpp"
        source.write_text(text)
        return run([*compile_command(), "-Wno-unused", "-fsyntax-only", str(source)], folder)
    return f"unknown kind of snippet: '{kind}'"


def check(document: pathlib.Path, folder: pathlib.Path) -> tuple[list[str], int]:
    text = document.read_text(encoding="utf-8")
    problems, snippets = [], 0
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        info, body = match.group(1).strip(), match.group(2)
        language, _, mode = info.partition(" ")
        if language in ("sh", "bash", "console"):
            for command in re.sub(r"\\\n", " ", body).split("\n"):
                problems += [f"{line}: {problem}" for problem in command_problems(command)]
        if mode:
            snippets += 1
            problem = snippet_problem(info, body, folder)
            if problem:
                problems.append(f"{line}: the snippet '{info}' failed: {problem}")
    prose = BLOCK.sub(lambda match: "\n" * match.group(0).count("\n"), text)
    for number, line_text in enumerate(prose.split("\n"), 1):
        found = [problem for target in LINK.findall(line_text) for problem in link_problem(document, target)]
        for code in CODE.findall(line_text):
            found += path_problem(code) + command_problems(code)
        problems += [f"{number}: {problem}" for problem in found]
    return [f"{document.relative_to(ROOT)}:{problem}" for problem in problems], snippets


def main() -> int:
    if not PROGRAM.exists():
        print(f"[docs] no {PROGRAM.relative_to(ROOT)}: run 'make build'")
        return 1
    problems, snippets = picture_problems() + generated_problems() + claims_problems(), 0
    for document in documents():
        with tempfile.TemporaryDirectory(prefix="fovea-docs-") as name:
            scratch_folder(pathlib.Path(name))
            found, count = check(document, pathlib.Path(name))
        problems += found
        snippets += count
    for problem in problems:
        print(f"[docs] {problem}")
    print(f"[docs] {len(documents())} documents, {snippets} snippets run, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
