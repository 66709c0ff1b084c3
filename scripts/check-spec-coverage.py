#!/usr/bin/env python3
"""Checks tests/spec_coverage.json: id of the mathematical specification -> tests ("Suite.Name") that hold it.

Prints covered/total. Fails for a test that no test program lists, and for ids out of order or written twice.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import json
import pathlib
import re
import subprocess
import sys

COVERAGE = pathlib.Path("tests/spec_coverage.json")
PROGRAMS = pathlib.Path("build/bin")


def existing_tests() -> set[str]:
    """Names of all tests, parametrised ones also without the instance ("Sizes/Suite.Name/3" is Suite.Name)."""
    names = set()
    for program in sorted(PROGRAMS.glob("*_test")):
        listed = subprocess.run([program, "--gtest_list_tests"], check=True, capture_output=True, text=True).stdout
        suite = ""
        for line in listed.splitlines():
            name = line.split("#")[0].rstrip()
            if not line.startswith(" "):
                suite = name
            elif name:
                names.add(suite + name.strip())
                names.add(re.sub(r"^[^.]*/", "", re.sub(r"/\d+\.$", ".", suite)) + name.strip().split("/")[0])
    return names


def read_coverage() -> dict[str, list[str]]:
    def unique(pairs):
        keys = [key for key, _ in pairs]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise ValueError(f"written twice: {', '.join(sorted(twice))}")
        return dict(pairs)

    return json.loads(COVERAGE.read_text(encoding="utf-8"), object_pairs_hook=unique)


def main() -> int:
    tests = existing_tests()
    if not tests:
        print(f"[spec] no test programs in {PROGRAMS}: run 'make build'")
        return 1
    try:
        coverage = read_coverage()
    except ValueError as error:
        print(f"[spec] {COVERAGE}: {error}")
        return 1
    missing = [(id_, test) for id_, names in coverage.items() for test in names if test not in tests]
    for id_, test in missing:
        print(f"[spec] {COVERAGE}: {id_} names '{test}', which no program in {PROGRAMS} lists")
    covered = sum(1 for names in coverage.values() if names)
    named = len({test for names in coverage.values() for test in names})
    print(f"[spec] {covered}/{len(coverage)} ids covered by {named} of {len(tests)} tests")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
