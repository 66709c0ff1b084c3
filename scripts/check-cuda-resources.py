#!/usr/bin/env python3
"""What ptxas says of the CUDA kernels, against the checked table fovea/kernels/cuda/resources.txt.

    scripts/check-cuda-resources.py [--write] [BUILD]

A kernel that needs more registers, spills more, or lets the compiler serialise its matrix products is slower, and nothing
else shows it without a GPU. Compares the units that BUILD (build/) holds, where its nvcc is the table's; --write puts them
into the table. Exits 1 where they differ.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "fovea/kernels/cuda/resources.txt"
ENTRY = re.compile(r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
                   r".*?Used (\d+) registers", re.S)
KERNEL = re.compile(r"(?:cuda|mixing)\d+([a-z_]+?)(?:I|E)")
# Messages by which ptxas says that it waits for every product of a kernel before the next.
SERIALISED = re.compile(r"C75(12|14)\b")
HEAD = """# Registers, bytes of stack, and bytes of spill stores and loads of every CUDA kernel, as ptxas reports them.
# scripts/check-cuda-resources.py compares a build with this table; --write replaces its rows.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
"""


def nvcc_version(build: pathlib.Path) -> str:
    cache = (build / "CMakeCache.txt").read_text(encoding="utf-8")
    found = re.search(r"^FOVEA_NVCC:FILEPATH=(.+)$", cache, re.M)
    if not found or found.group(1).endswith("NOTFOUND"):
        return ""
    text = subprocess.run([found.group(1), "--version"], check=True, capture_output=True, text=True).stdout
    return re.search(r"V([\d.]+)", text).group(1)


def rows_of(log: pathlib.Path) -> dict[str, str]:
    unit, text = log.name.removesuffix(".o.log"), log.read_text(encoding="utf-8")
    rows = {}
    for name, stack, stores, loads, registers in ENTRY.findall(text):
        kernel = KERNEL.search(name)
        key = f"{unit} {kernel.group(1) if kernel else name}"
        while key in rows:
            key += "'"
        rows[key] = f"{registers} {stack} {stores} {loads}"
    if SERIALISED.search(text):
        rows[f"{unit} serialised"] = "products"
    return rows


def main() -> int:
    arguments = [a for a in sys.argv[1:] if a != "--write"]
    build = pathlib.Path(arguments[0]) if arguments else ROOT / "build"
    logs = sorted((build / "cuda").glob("*.o.log"))
    version = nvcc_version(build) if logs else ""
    if not version:
        print("[resources] no CUDA kernels in this build: nothing to compare")
        return 0
    built = {key: value for log in logs for key, value in rows_of(log).items()}
    table, table_version = {}, ""
    if TABLE.exists():
        for line in TABLE.read_text(encoding="utf-8").splitlines():
            if line.startswith("nvcc "):
                table_version = line.removeprefix("nvcc ")
            elif line and not line.startswith("#"):
                key, value = line.split(": ")
                table[key] = value
    if "--write" in sys.argv:
        rows = {**table, **built} if version == table_version else built
        TABLE.write_text(HEAD + f"nvcc {version}\n" + "".join(f"{k}: {v}\n" for k, v in sorted(rows.items())), encoding="utf-8")
        print(f"[resources] {len(rows)} kernels of nvcc {version}")
        return 0
    if version != table_version:
        print(f"[resources] this nvcc is {version}, the table's {table_version}: nothing to compare")
        return 0
    known = sorted(built.keys() & table.keys())
    different = [f"{key}: {built[key]}, the table has {table[key]}" for key in known if built[key] != table[key]]
    different += [f"{key}: the table has no such line" for key in sorted(built.keys() - table.keys()) if "serialised" in key]
    for line in different:
        print(f"[resources] {line}")
    print(f"[resources] {len(known)} kernels, {len(different)} differ from fovea/kernels/cuda/resources.txt (--write replaces it); "
          f"{len(built) - len(known)} are not in it")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
