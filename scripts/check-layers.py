#!/usr/bin/env python3
"""Checks the sources' structure: include order of the layers and inside them, torch-free layers, no printing in the
library, no instruction set outside its folder, file sizes.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import fnmatch
import pathlib
import re
import subprocess
import sys

# A layer may include itself and what stands before it.
LAYERS = ["base", "config", "runtime", "kernels", "attention", "nn", "text", "data", "report", "checkpoint", "infer", "eval",
          "train", "retrofit", "compare", "engine", "serve"]
# These build on a machine without torch (and compile in a second instead of ten).
TORCH_FREE = {"base", "config", "kernels", "text", "data", "report"}
# Inside a layer: groups of files in their order, by patterns of paths in the layer's folder. A file is in the first group
# that names it, else in the first whose pattern has it; it may include its own group and those before it.
GROUPS = {
    "attention": [
        ("contract", ["*", "specs/*"]),
        ("positions", ["positions/*"]),
        ("plans", ["plan.h", "plan.cpp"]),
        ("mechanisms", ["mechanisms/*"]),
        ("reference", ["reference.cpp"]),
        ("cache", ["cache/*"]),
        ("paths", ["paths/*"]),
        ("decode", ["decode/*"]),
        ("attention()", ["attention.cpp", "reference_blocks.cpp"]),
    ],
    "kernels": [
        ("common", ["common/*"]),
        ("the machine", ["cpu/*", "cpu/simd/*"]),
        ("families", ["cpu/*/*"]),
        ("backends", ["backend.h", "backend.cpp", "device_services.h", "device_library.h", "device_library.cpp",
                      "cpu/backend.h", "cpu/backend.cpp"]),
        ("the GPU", ["cuda/*", "cuda/*/*"]),
    ],
}
# (file, included file): arrows against that order, to be removed, never added to.
UPWARD: set[tuple[str, str]] = set()
# What may include everything: it is above all layers.
ABOVE = {"cli", "tests", "benchmarks", "examples"}

TORCH = re.compile(r"^(torch|ATen|c10|caffe2)/|^torch\.h$")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
# The files of one backend of kernels/: other folders know kernels/backend.h and kernels/common/.
BACKEND_FILES = re.compile(r"^fovea/kernels/(cpu|cuda)/")
MAY_INCLUDE_BACKENDS = ("fovea/kernels/", "tests/")
# The library throws and reports through callbacks; it never prints, exits or aborts.
PRINTING = re.compile(r"(std::(cout|cerr|clog)\b|\b(printf|fprintf|puts|putchar|perror|fputs)\s*\("
                      r"|\bfmt::print\s*\(|(?<![\w.>:])(std::|::)?(exit|_exit|quick_exit|abort|terminate)\s*\()")
USING = re.compile(r"^using namespace ")
# Instruction sets are named in one folder; elsewhere kernels use its vocabulary (lanes.h). The lines of other files that
# name one: a number may shrink, and no file may join.
INSTRUCTIONS = re.compile(r"\b(__(AVX|SSE|ARM|AMX|FMA|F16C|aarch64|x86_64)|FOVEA_(PAIRS|TILES|ROW_TILES|NEON)\b|_mm[0-9]*_|__m[0-9]+)")
INSTRUCTIONS_IN = "fovea/kernels/cpu/simd/"
INSTRUCTIONS_ELSEWHERE = {"fovea/kernels/common/isa.cpp": 7, "fovea/nn/matmul.cpp": 1}
MAX_LINES = 800


def sources() -> list[pathlib.Path]:
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], check=True,
                            capture_output=True, text=True).stdout
    return [pathlib.Path(p) for p in listed.split("\0") if p and pathlib.Path(p).is_file()]


def without_comments(text: str) -> list[str]:
    """Lines with comments and the insides of string literals blanked, so that words in them do not count."""
    pattern = re.compile(r'R"(?P<d>[^(\s]*)\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.S)

    def blank(match: re.Match) -> str:
        found = match.group(0)
        # The path of an include is needed, and has no blanks in it.
        if found.startswith('"') and found.endswith((".h\"", ".cuh\"", ".hpp\"")):
            return found
        return re.sub(r"[^\n]", " ", found)

    return pattern.sub(blank, text).split("\n")


def group_of(path: str) -> tuple[str, int] | None:
    """The layer of a file and the place of its group in it; None where the layer has no groups."""
    layer, _, inside = path.removeprefix("fovea/").partition("/")
    groups = GROUPS.get(layer, [])
    for wanted in ("name", "pattern"):
        for place, (_, patterns) in enumerate(groups):
            for pattern in patterns:
                same_depth = pattern.count("/") == inside.count("/")
                if inside == pattern if wanted == "name" else same_depth and fnmatch.fnmatch(inside, pattern):
                    return layer, place
    return None


def upward(path: str, included: str) -> str:
    """What an include against the order of its layer's groups breaks, or ""."""
    mine, other = group_of(path), group_of(included)
    if mine is None or other is None or mine[0] != other[0] or other[1] <= mine[1]:
        return ""
    names = [name for name, _ in GROUPS[mine[0]]]
    return f"'{names[other[1]]}' comes after '{names[mine[1]]}'"


def included_files(path: pathlib.Path) -> list[str]:
    found = (INCLUDE.match(line) for line in without_comments(path.read_text(encoding="utf-8")))
    return [include.group(1) for include in found if include]


def check_groups(paths: list[pathlib.Path]) -> list[str]:
    arrows = {(path.as_posix(), included): why for path in paths if path.parts[0] == "fovea"
              for included in included_files(path) if (why := upward(path.as_posix(), included))}
    return ([f"{path}: may not include {included}: {arrows[path, included]}"
             for path, included in sorted(arrows.keys() - UPWARD)]
            + [f"scripts/check-layers.py: UPWARD has ({path}, {included}), which is no longer there; remove it"
               for path, included in sorted(UPWARD - arrows.keys())])


def check_file(path: pathlib.Path) -> list[str]:
    problems = []
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n")
    if lines > MAX_LINES:
        problems.append(f"{path}: {lines} lines, more than {MAX_LINES}: it has two subjects, split it")
    if "SPDX-License-Identifier: Apache-2.0" not in text:
        problems.append(f"{path}: no SPDX lines at the top")
    library = path.parts[0] == "fovea"
    layer = path.parts[1] if library and len(path.parts) > 2 else None
    if layer is not None and layer not in LAYERS:
        problems.append(f"{path}: unknown layer '{layer}'; add it to scripts/check-layers.py in its place")
        return problems
    code = without_comments(text)
    named = [number for number, line in enumerate(code, 1) if INSTRUCTIONS.search(line)]
    if library and not str(path).startswith(INSTRUCTIONS_IN):
        allowed = INSTRUCTIONS_ELSEWHERE.get(str(path), 0)
        if len(named) > allowed:
            problems.append(f"{path}:{named[-1]}: names an instruction set: that belongs into {INSTRUCTIONS_IN}lanes_<isa>.h")
        elif len(named) < allowed:
            problems.append(f"{path}: INSTRUCTIONS_ELSEWHERE of scripts/check-layers.py may shrink to {len(named)}")
    for number, line in enumerate(code, 1):
        where = f"{path}:{number}"
        include = INCLUDE.match(line)
        if include:
            problems += check_include(where, layer, include.group(1))
        elif library and PRINTING.search(line):
            problems.append(f"{where}: the library never prints, exits or aborts: '{line.strip()}'")
        elif path.suffix in (".h", ".cuh") and USING.match(line):
            problems.append(f"{where}: no 'using namespace' at file scope in a header")
    return problems


def check_include(where: str, layer: str | None, included: str) -> list[str]:
    if BACKEND_FILES.match(included) and not where.startswith(MAY_INCLUDE_BACKENDS):
        return [f"{where}: {included} belongs to a backend: include fovea/kernels/backend.h"]
    if layer is None:
        return []
    if layer in TORCH_FREE and TORCH.search(included):
        return [f"{where}: {layer}/ is free of torch, but includes {included}"]
    parts = included.split("/")
    if parts[0] in ABOVE:
        return [f"{where}: the library does not include {parts[0]}/"]
    if parts[0] != "fovea" or len(parts) < 3 or parts[1] not in LAYERS:
        return []
    if LAYERS.index(parts[1]) > LAYERS.index(layer):
        return [f"{where}: {layer}/ may not include {included}: {parts[1]}/ comes after it"]
    if layer in TORCH_FREE and parts[1] not in TORCH_FREE:
        return [f"{where}: {layer}/ is free of torch, but includes {included} of a layer that is not"]
    return []


def main() -> int:
    checked = [p for p in sources() if p.suffix in (".h", ".cpp", ".cu", ".cuh") and p.parts[0] in {"fovea"} | ABOVE]
    problems = [problem for path in checked for problem in check_file(path)] + check_groups(checked)
    for problem in problems:
        print(f"[layers] {problem}")
    print(f"[layers] {len(checked)} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
