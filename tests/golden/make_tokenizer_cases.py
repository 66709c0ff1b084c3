#!/usr/bin/env python3
"""Writes tokenizers.json: small byte-level BPE tokenizers and the ids that the `tokenizers` package gives.

Run by hand with the Python of `make python-peers`; the tests only read the file. The patterns are those that GPT-2,
LLaMA-3 and Qwen made usual; the vocabularies are learned from this very file.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HUNDREDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
            r"|\s+(?!\S)|\s+")
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
TEXTS = [
    "The tokenizers of this file, and its texts: don't you'll WE'LL I'm 1234567 x=3.14",
    "  leading,  inner   and trailing spaces  \n\n\ttabs\t\n",
    "def main():\n    for i in range(10):\n        print(i)\n\n\nmain()\n",
    "Grüße aus Köln, naïve café, e\u0301 and \u00e9, \u1e9b\u0323",
    "日本語のテキスト。 Русский текст, ελληνικά, עברית, العربية ١٢٣",
    "emoji 🙂🙃 👩‍👩‍👧 flags 🇩🇪\u200d\ufe0f",
    "\u00a0\u2003\u3000\u180e\u200b odd \u0085spaces\r\n\r",
    "\u0000\u0001\u007f control",
    "<|end|> is not special in a text <|begin|>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "Kelvin \u212a, long s 'ſ, letters of Unicode 16: \u1c89\ua7cb, number \U00010d40",
    "",
]


def make(pre_tokenizer, normalizer=None, spaces=False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(
        [pathlib.Path(__file__).read_text()] * 2,
        trainers.BpeTrainer(vocab_size=420, special_tokens=["<|begin|>", "<|end|>"], show_progress=False,
                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    if spaces:
        tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in range(2, 9)])
        tokenizer.add_tokens([AddedToken("  \n", normalized=False)])
    return tokenizer


def without_bytes(tokenizer: Tokenizer, unknown: str | None, fuse: bool) -> Tokenizer:
    """The same without tokens for control characters, some letters, and the first bytes of many scripts."""
    file = json.loads(tokenizer.to_str())
    lost = {name for byte, name in enumerate(names_of_bytes()) if byte < 5 or byte in (0x6C, 0x71, 0x7F, 0xC3, 0xF0, 0x97)}
    model = file["model"]
    model["merges"] = [pair for pair in model["merges"] if not lost & set("".join(pair))]
    kept = [token for token in model["vocab"] if not lost & set(token)]
    model["vocab"] = {token: index for index, token in enumerate(kept)}
    for token in file["added_tokens"]:
        token["id"] = model["vocab"][token["content"]]
    model.update(unk_token=unknown, fuse_unk=fuse)
    return Tokenizer.from_str(json.dumps(file))


def names_of_bytes() -> list[str]:
    """The character by which byte-level vocabularies write each byte."""
    names, others = [], 0
    for byte in range(256):
        visible = 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or byte >= 0xAE
        names.append(chr(byte) if visible else chr(256 + others))
        others += not visible
    return names


def main() -> None:
    split = pre_tokenizers.Split(Regex(HUNDREDS), "isolated")
    tokenizers = {
        "gpt2": make(pre_tokenizers.ByteLevel(add_prefix_space=False)),
        "numbers of three": make(pre_tokenizers.Sequence([split, BYTES])),
        "normal form, runs of spaces": make(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFC(), True),
        "digits": make(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                pre_tokenizers.ByteLevel(add_prefix_space=False)])),
    }
    gpt2 = tokenizers["gpt2"]
    tokenizers |= {"bytes without a token": without_bytes(gpt2, None, False),
                   "bytes become the unknown token": without_bytes(gpt2, "<|end|>", False),
                   "unknown tokens fuse": without_bytes(gpt2, "<|end|>", True)}
    cases = {}
    for name, tokenizer in tokenizers.items():
        tokenizer.encode_special_tokens = True
        cases[name] = {"tokenizer": json.loads(tokenizer.to_str()), "texts": TEXTS,
                       "ids": [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]}
    path = pathlib.Path(__file__).with_name("tokenizers.json")
    lines = [f"{json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{path}: {len(cases)} tokenizers, {len(TEXTS)} texts")


if __name__ == "__main__":
    main()
