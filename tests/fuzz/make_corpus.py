#!/usr/bin/env python3
"""Writes the small corpus of the fuzz targets: valid files and each kind of damage. Run by hand.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import base64
import json
import pathlib

HERE = pathlib.Path(__file__).resolve().parent


def safetensors(header: str, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header.encode() + data


def tensor(dtype: str, shape: list[int], begin: int, end: int) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def main() -> None:
    two = {"a": tensor("F32", [2], 0, 8), "b": tensor("BF16", [1, 3], 8, 14), "__metadata__": {"k": "v"}}
    files = {
        "safetensors/two": safetensors(json.dumps(two), bytes(range(14))),
        "safetensors/every_dtype": safetensors(json.dumps(
            {d: tensor(d, [0], 0, 0) for d in ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL")}), b""),
        "safetensors/overlap": safetensors(json.dumps({"a": tensor("U8", [4], 0, 4), "b": tensor("U8", [4], 2, 6)}), bytes(6)),
        "safetensors/overflow": safetensors(json.dumps({"a": tensor("F32", [1 << 62, 1 << 62], 0, 0)}), b""),
        "safetensors/huge_header": (1 << 62).to_bytes(8, "little") + b"{}",
    }
    golden = json.loads((HERE.parent / "golden/tokenizers.json").read_text())
    for name, case in golden.items():
        tokenizer = case["tokenizer"]
        merges = tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:20]
        kept = {m if isinstance(m, str) else " ".join(m) for m in merges}
        kept = {m.replace(" ", "") for m in kept}
        tokenizer["model"]["vocab"] = {t: i for t, i in tokenizer["model"]["vocab"].items() if len(t) == 1 or t in kept}
        files[f"tokenizer_json/{name.replace(' ', '_').replace(',', '')}"] = json.dumps(tokenizer).encode()
    pieces = json.loads((HERE.parent / "golden/sentencepiece.json").read_text())
    for name in ("bpe with pieces of the user", "unigram"):
        files[f"token_files/{name.replace(' ', '_')}"] = base64.b64decode(pieces[name]["model"])
    ranks = [bytes([byte]) for byte in range(256)] + [b"th", b"the", b"\xc3\xa9"]
    files["token_files/ranks"] = b"".join(b"%s %d\n" % (base64.b64encode(token), i) for i, token in enumerate(ranks))
    for name, content in files.items():
        path = HERE / "corpus" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    main()
