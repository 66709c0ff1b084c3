#!/usr/bin/env python3
"""Writes benchmarks/results/CPU.md: every number of the result files of one kind of CPU, as tables.

    scripts/bench-pages.py            writes the pages (make bench-pages)
    scripts/bench-pages.py --check    says which page is not what the result files make; exit code 1

A list of results becomes one table for each set of keys. What is the same in every row stands above the table. Quartiles
are written "median (first to third)".

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import collections
import json
import pathlib
import sys

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "benchmarks/results"
LISTS = ("results", "cases", "rows")
ABOUT = ("benchmark", "ratio", "command", "commands", "commit", "code", "date", "machine")
QUARTILES = {"q1", "median", "q3"}
LONGEST = 60  # characters of a cell; longer texts are not for a table


def number(value: float) -> str:
    if isinstance(value, bool) or isinstance(value, int):
        return str(value)
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:.{digits}f}"


def cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, (int, float)):
        return number(value)
    if isinstance(value, dict):
        spread = f" ({number(value['q1'])} to {number(value['q3'])})" if value["q1"] != value["q3"] else ""
        return number(value["median"]) + spread
    if isinstance(value, list):
        return ", ".join(cell(item) for item in value)
    return str(value).replace("|", "\\|")


def flat(row: dict, prefix: str = "") -> dict[str, object]:
    """Nested keys become "prompt hard_ms"; texts too long for a table are left out, the name of a row never."""
    out = {}
    for key, value in row.items():
        if isinstance(value, dict) and set(value) != QUARTILES:
            out |= flat(value, f"{prefix}{key} ")
        elif isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
            continue
        elif key == "name" or len(cell(value)) <= LONGEST:
            out[prefix + key] = value
    return out


def heading(key: str) -> str:
    words = key.replace("_", " ")
    for unit in ("ms", "bytes", "gflops"):
        if words.endswith(" " + unit):
            return f"{words.removesuffix(' ' + unit)}, {'GFLOP/s' if unit == 'gflops' else unit}"
    return words


def table(rows: list[dict]) -> str:
    keys = list(rows[0])
    same = [key for key in keys if len(rows) > 1 and all(row[key] == rows[0][key] for row in rows)]
    keys = [key for key in keys if key not in same]
    out = f"In every row: {', '.join(f'{heading(key)} {cell(rows[0][key])}' for key in same)}.\n\n" if same else ""
    out += f"| {' | '.join(heading(key) for key in keys)} |\n|{'---|' * len(keys)}\n"
    return out + "".join(f"| {' | '.join(cell(row[key]) for key in keys)} |\n" for row in rows)


def tables(result: dict) -> str:
    lists = [result[key] for key in LISTS if result.get(key)]
    rows = [flat(row) for row in lists[0]] if lists else [flat({k: v for k, v in result.items() if k not in ABOUT})]
    groups = collections.defaultdict(list)
    for row in rows:
        groups[tuple(row)].append(row)
    return "\n".join(table(group) for group in groups.values())


def section(path: pathlib.Path, result: dict, note: str) -> str:
    machine = result["machine"]
    facts = [f"{machine[key]}{unit}" for key, unit in (("cpu", ""), ("cores", " cores")) if key in machine]
    facts += [f"{name} {result[key]}" for key, name in (("date", "on"), ("commit", "commit"), ("code", "code")) if key in result]
    title = result["benchmark"].replace("_", " ") + (f" ({note})" if note else "")
    out = f"## {title[0].upper()}{title[1:]}\n\n[{path.name}]({path.name}); {', '.join(facts) or 'machine not recorded'}"
    out += f". Ratio: {result['ratio']}.\n\n" if "ratio" in result else ".\n\n"
    commands = result.get("commands") or ({result["command"]: ""} if "command" in result else {})
    if commands:
        lines = "".join(f"{command}{f'    # {code}' if code else ''}\n" for command, code in commands.items())
        out += f"```text\n{lines}```\n\n"
    return out + tables(result)


def pages() -> dict[str, str]:
    files = {path: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    rests = {path: path.stem.removeprefix(result["benchmark"].replace("_", "-") + "-") for path, result in files.items()}
    kinds = {result["machine"].get("kind", rest) for result, rest in zip(files.values(), rests.values())}
    sections = collections.defaultdict(list)
    for path, result in files.items():
        # The shortest kind that the file's name holds; what stands around it tells two files of one benchmark apart.
        kind = min((kind for kind in kinds if kind in rests[path]), key=len)
        note = rests[path].replace(kind, "").strip("-").replace("-", " ")
        sections[kind].append(section(path, result, note))
    head = "# Measured on {}\n\nMade by `make bench-pages` from the result files; do not edit.\n\n"
    return {f"{kind}.md": head.format(kind) + "\n".join(parts) for kind, parts in sections.items()}


def main() -> int:
    made = pages()
    kept = {path.name: path.read_text() for path in RESULTS.glob("*.md") if path.name != "README.md"}
    stale = sorted(name for name in made.keys() | kept.keys() if made.get(name) != kept.get(name))
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"benchmarks/results/{name} is not what the result files make; run make bench-pages")
        return 1 if stale else 0
    for name in stale:
        (RESULTS / name).unlink() if name not in made else (RESULTS / name).write_text(made[name])
    print(f"[bench-pages] {len(made)} pages, {len(stale)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
