#!/usr/bin/env python3
"""Compares encodings with the `tokenizers` package: equal ids on every text. benchmarks/tokenizer_speed.py compares times.

    <python of `make python-peers`> tests/peers/check_tokenizers.py TOKENIZER.json TEXT... [--build BUILD]

Beside the texts: every code point alone and between letters, random bytes (made valid), long words, spaces.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import os
import pathlib
import random
import subprocess
import sys
import tempfile

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import numpy  # noqa: E402
import tokenizers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MEGABYTE = 1 << 20


def code_points() -> str:
    points = [chr(c) for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
    return "".join(points) + "".join(f"a{c}b '{c} {c}1" for c in points)


def made_texts(megabytes: int, prose: str) -> dict[str, str]:
    rng = random.Random(1)
    size = megabytes * MEGABYTE
    code = "".join(path.read_text() for path in sorted((ROOT / "fovea").glob("**/*.cpp")))
    return {
        "prose": (prose * (size // len(prose) + 1))[:size],
        "code": (code * (size // len(code) + 1))[:size],
        "one long word": "".join(rng.choice("abcdefghij") for _ in range(size)),
        "one character": "a" * size,
        "spaces": " " * size,
        "random bytes": rng.randbytes(size).decode("utf-8", errors="replace"),
        "cjk": "".join(chr(rng.randrange(0x4E00, 0x9FA5)) for _ in range(size // 3)),
    }


def ours(build: pathlib.Path, tokenizer: str, texts: dict[str, str], folder: pathlib.Path):
    files = []
    for i, text in enumerate(texts.values()):
        files.append(folder / str(i))
        files[-1].write_bytes(text.encode())
    done = subprocess.run([build / "bin/peer_tokens", tokenizer, *files], check=True, capture_output=True, text=True)
    seconds = [float(line.split()[1]) for line in done.stdout.splitlines()]
    return {name: (numpy.fromfile(f"{file}.tokens", dtype=numpy.int32), s)
            for name, file, s in zip(texts, files, seconds)}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("tokenizer")
    parser.add_argument("texts", nargs="+", type=pathlib.Path)
    parser.add_argument("--build", default=ROOT / "build", type=pathlib.Path)
    parser.add_argument("--megabytes", default=1, type=int)
    arguments = parser.parse_args()
    theirs = tokenizers.Tokenizer.from_file(arguments.tokenizer)
    theirs.no_truncation()
    theirs.encode_special_tokens = True
    texts = {path.name: path.read_bytes().decode(errors="replace") for path in arguments.texts}
    prose = "".join(texts.values())
    texts |= {"code points": code_points()} | made_texts(arguments.megabytes, prose)
    good = True
    with tempfile.TemporaryDirectory() as name:
        found = ours(arguments.build, arguments.tokenizer, texts, pathlib.Path(name))
        for text, (ids, _) in found.items():
            expected = numpy.array(theirs.encode(texts[text], add_special_tokens=False).ids, dtype=numpy.int32)
            same = numpy.array_equal(ids, expected)
            good &= same
            print(f"{'ok  ' if same else 'FAIL'} {text:32} {len(expected):9} tokens")
            if not same:
                first = next((i for i, (a, b) in enumerate(zip(ids, expected)) if a != b), min(len(ids), len(expected)))
                print(f"     from token {first}: {ids[first:first + 8]} against {expected[first:first + 8]}: "
                      f"{theirs.decode(expected[max(0, first - 3):first + 5].tolist())!r}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
