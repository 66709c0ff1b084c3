#!/usr/bin/env python3
"""Compares encodings with another package: equal ids on every text. benchmarks/tokenizer_speed.py compares times.

    <python of `make python-peers`> tests/peers/check_tokenizers.py TOKENIZER TEXT... [--build BUILD] [--times]

TOKENIZER is a tokenizer.json (compared with `tokenizers`), a SentencePiece model (`sentencepiece`) or FILE:ENCODING of a
tiktoken rank file (`tiktoken`). Beside the texts: every code point alone and between letters, random bytes (made valid
where the package takes no others), long words, spaces, special tokens spelled out. SentencePiece models are compared a second time as texts
that go on behind others: no space is put before them.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import base64
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import unicodedata

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import numpy  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MEGABYTE = 1 << 20
ENDINGS = r"'(?i:[sdmt]|ll|ve|re)"
CL100K = ENDINGS + r"|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
PATTERNS = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    "cl100k": CL100K,
    "llama3": CL100K,
    "qwen": CL100K.replace("{1,3}+", ""),
    "o200k": (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+(?:{ENDINGS})?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*(?:{ENDINGS})?"
              r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"),
}


class Tokenizers:
    """tokenizer.json"""

    def __init__(self, path: str):
        import tokenizers
        self.tokenizer = tokenizers.Tokenizer.from_file(path)
        self.tokenizer.no_truncation()
        self.tokenizer.encode_special_tokens = True
        self.names = [token.content for token in self.tokenizer.get_added_tokens_decoder().values()][:40]

    def encode(self, text: bytes) -> list[int]:
        return self.tokenizer.encode(text.decode(), add_special_tokens=False).ids

    def valid(self, data: bytes) -> bytes:
        return data.decode(errors="replace").encode()


class SentencePiece:
    """tokenizer.model"""

    def __init__(self, path: str):
        import sentencepiece
        self.path, self.tokenizer = path, sentencepiece.SentencePieceProcessor(path)
        ids = range(self.tokenizer.get_piece_size())
        self.names = [self.tokenizer.id_to_piece(i) for i in ids if self.tokenizer.is_control(i) or i < 300][:300]

    def go_on(self) -> None:
        import sentencepiece
        # A field that comes again is merged with the first: normalizer_spec (3) with add_dummy_prefix (3) = false.
        merged = pathlib.Path(self.path).read_bytes() + b"\x1a\x02\x18\x00"
        self.tokenizer = sentencepiece.SentencePieceProcessor(model_proto=merged)

    def encode(self, text: bytes) -> list[int]:
        return self.tokenizer.encode(text)

    def valid(self, data: bytes) -> bytes:
        return data


class Tiktoken:
    """FILE:ENCODING"""

    def __init__(self, path: str):
        import tiktoken
        path, self.encoding = path.rsplit(":", 1)
        lines = (line.split() for line in pathlib.Path(path).read_bytes().splitlines() if line)
        self.tokenizer = tiktoken.Encoding(self.encoding, pat_str=PATTERNS[self.encoding], special_tokens={},
                                           mergeable_ranks={base64.b64decode(t): int(rank) for t, rank in lines})
        self.names = ["<|endoftext|>", "<|begin_of_text|>", "<|im_start|>"]

    def encode(self, text: bytes) -> list[int]:
        return self.tokenizer.encode_ordinary(text.decode())

    def valid(self, data: bytes) -> bytes:
        text = data.decode(errors="replace")
        return (unicodedata.normalize("NFC", text) if self.encoding == "qwen" else text).encode()


def peer(path: str):
    if path.endswith(".json"):
        return Tokenizers(path)
    return Tiktoken(path) if ":" in path else SentencePiece(path)


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
        "cjk": "".join(chr(rng.randrange(0x4E00, 0x9FA5)) for _ in range(size // 3)),
    }


def spelled(names: list[str]) -> str:
    """Names of tokens at the ends of a text, beside words and spaces, and one in another."""
    edges = [f"{n}|a{n}b| {n} |  {n}\n{n}{n}|{n[:-1]}{n}|{n}{n[1:]}|" for n in names]
    return "".join(edges) + "".join(names) + " ".join(names)


def ours(build: pathlib.Path, tokenizer: str, texts: dict[str, bytes], folder: pathlib.Path, more: list[str]):
    files = []
    for i, text in enumerate(texts.values()):
        files.append(folder / str(i))
        files[-1].write_bytes(text)
    done = subprocess.run([build / "bin/peer_tokens", tokenizer, *more, *files], check=True, capture_output=True, text=True)
    seconds = [float(line.split()[1]) for line in done.stdout.splitlines()]
    return {name: (numpy.fromfile(f"{file}.tokens", dtype=numpy.int32), s)
            for name, file, s in zip(texts, files, seconds)}


def compare(arguments: argparse.Namespace, theirs, texts: dict[str, bytes], more: list[str]) -> bool:
    good = True
    with tempfile.TemporaryDirectory() as name:
        found = ours(arguments.build, arguments.tokenizer, texts, pathlib.Path(name), more)
        for text, (ids, seconds) in found.items():
            start = time.perf_counter()
            expected = numpy.array(theirs.encode(texts[text]), dtype=numpy.int32)
            ratio = f" {(time.perf_counter() - start) / seconds:8.2f} x" if arguments.times else ""
            same = numpy.array_equal(ids, expected)
            good &= same
            print(f"{'ok  ' if same else 'FAIL'} {text + (', going on' if more else ''):32} {len(expected):9} tokens{ratio}")
            if not same:
                first = next((i for i, (a, b) in enumerate(zip(ids, expected)) if a != b), min(len(ids), len(expected)))
                print(f"     from token {first}: {ids[first:first + 8]} against {expected[first:first + 8]}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("tokenizer")
    parser.add_argument("texts", nargs="+", type=pathlib.Path)
    parser.add_argument("--build", default=ROOT / "build", type=pathlib.Path)
    parser.add_argument("--megabytes", default=1, type=int)
    parser.add_argument("--times", action="store_true", help="print the time of the package / our time")
    arguments = parser.parse_args()
    theirs = peer(arguments.tokenizer)
    texts = {path.name: path.read_bytes() for path in arguments.texts}
    prose = b"\n".join(texts.values()).decode(errors="replace")
    texts |= {name: text.encode() for name, text in made_texts(arguments.megabytes, prose).items()}
    texts |= {"random bytes": random.Random(1).randbytes(arguments.megabytes * MEGABYTE),
              "code points": code_points().encode(), "names of tokens": spelled(theirs.names).encode()}
    texts = {name: theirs.valid(text) for name, text in texts.items()}
    good = compare(arguments, theirs, texts, [])
    if isinstance(theirs, SentencePiece):
        theirs.go_on()
        good &= compare(arguments, theirs, texts, ["--more"])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
