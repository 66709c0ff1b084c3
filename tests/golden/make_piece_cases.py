#!/usr/bin/env python3
"""Writes piece_tokenizers.json and sentencepiece.json: small tokenizers of the SentencePiece kinds, as tokenizer.json and as
.model, and what the packages `tokenizers` and `sentencepiece` make of texts.

Run by hand with the Python of `make python-peers` and the package sentencepiece; the tests only read the files. The vocabularies are learned from this folder's scripts.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import base64
import io
import json
import pathlib
import tempfile

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import make_tokenizer_cases

HERE = pathlib.Path(__file__).resolve().parent
MARK = "\u2581"
SPECIALS = ["<unk>", "<s>", "</s>"]
TEXTS = make_tokenizer_cases.TEXTS + [
    "word", " word", "  two  words ", "▁mark ▁▁ marks▁", "a <x> b<x>c  <y>  d<y>e <w> f<w>g<w>",
    "``quoted'' text, ﬁne ① ½ Å ｆｕｌｌ", "İstanbul ÉCOLE ΣΟΦΟΣ ǅ", "<0x41><0x0A> <unk> </s>", "日本\u0001語\U0001f9ff q", "W\u0301 W e\u0301A\u0301",
]
RULES = "41\t61\n42 43\t78 79\n2460\t31\nFF46\t66\nFB01\t66 69\nA0\t20\n9\t20\nA\t20\n65 301\tE9\n57 301\t59\n57\t56\n"


def text() -> list[str]:
    return [path.read_text() for path in sorted(HERE.glob("make_t*_cases.py"))] + ["日本語のテキスト Русский текст"] * 3


def sentencepiece_model(**options) -> bytes:
    """A trained .model; `options` go to the trainer."""
    model = io.BytesIO()
    lines = [line for part in text() for line in part.splitlines() if line]
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, minloglevel=2, **options)
    return model.getvalue()


def field(message: bytes, wanted: int) -> bytes:
    """The bytes of a field of a protobuf message."""
    place = 0

    def number() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = message[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while place < len(message):
        key = number()
        size = {0: 0, 1: 8, 5: 4}.get(key & 7)
        if size is None:
            size = number()
        elif size == 0:
            number()
        if key >> 3 == wanted:
            return message[place:place + size]
        place += size
    raise KeyError(wanted)


def write_rules(folder: str) -> str:
    path = pathlib.Path(folder) / "rules.tsv"
    path.write_text(RULES)
    return str(path)


def write_models() -> None:
    plain = {"hard_vocab_limit": False, "vocab_size": 420, "character_coverage": 0.98}
    exact = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    user = {"user_defined_symbols": ["<x>", "the", "z"]}
    with tempfile.TemporaryDirectory() as folder:
        rules = {"normalization_rule_tsv": write_rules(folder)}
        models = {
            "bpe with bytes": dict(plain, model_type="bpe", byte_fallback=True, **exact),
            "bpe with pieces of the user": dict(plain, model_type="bpe", **rules, **user) | {"vocab_size": 220},
            "unigram": dict(plain, **rules) | {"vocab_size": 180},
            "unigram with bytes and pieces of the user": dict(plain, byte_fallback=True, **exact, **user),
            "unigram with spaces behind": dict(plain, normalization_rule_name="identity", treat_whitespace_as_suffix=True) | {"vocab_size": 180},
            "no space before": dict(plain, model_type="bpe", byte_fallback=True, **exact) | {"add_dummy_prefix": False},
        }
        models = {name: sentencepiece_model(**options) for name, options in models.items()}
    texts = [text.encode() for text in TEXTS] + [b"\xff\xfe a \xe2\x82", b"<x>the thez\xf0z"]
    cases = {}
    for name, model in models.items():
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        ids = [processor.encode(text) for text in texts]
        cases[name] = {"model": coded(model), "texts": [coded(text) for text in texts], "ids": ids,
                       "decoded": [processor.decode(i) for i in ids]}
    write("sentencepiece.json", cases)


def coded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def write(name: str, cases: dict) -> None:
    lines = [f"{json.dumps(key)}: {json.dumps(case)}" for key, case in cases.items()]
    (HERE / name).write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{name}: {len(cases)} tokenizers")


def character_map() -> str:
    with tempfile.TemporaryDirectory() as folder:
        model = sentencepiece_model(vocab_size=150, hard_vocab_limit=False, normalization_rule_tsv=write_rules(folder))
    return base64.b64encode(field(field(model, 3), 2)).decode()  # normalizer_spec.precompiled_charsmap


def learned(model, trainer) -> dict:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(text(), trainer)
    return json.loads(tokenizer.to_str())


def llama_decoder(start: int = 1):
    steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + ([decoders.Strip(" ", start, 0)] if start else []))


def bpe(byte_names: list[str], fuse: bool = True) -> Tokenizer:
    file = learned(models.BPE(unk_token="<unk>"),
                   trainers.BpeTrainer(vocab_size=330, special_tokens=SPECIALS, show_progress=False, limit_alphabet=90))
    model = file["model"]
    kept = [token for token in sorted(model["vocab"], key=model["vocab"].get) if token not in SPECIALS]
    model["vocab"] = {token: i for i, token in enumerate(SPECIALS + byte_names + kept)}
    model.update(byte_fallback=bool(byte_names), fuse_unk=fuse)
    file["pre_tokenizer"] = None
    return Tokenizer.from_str(json.dumps(file))


def unigram(byte_names: list[str] = ()) -> Tokenizer:
    file = learned(models.Unigram(), trainers.UnigramTrainer(vocab_size=250, special_tokens=SPECIALS, unk_token="<unk>",
                                                            show_progress=False))
    model = file["model"]
    model["vocab"] = [entry for entry in model["vocab"] if entry[0] not in "qzſ"] + [[name, 0.0] for name in byte_names]
    model["byte_fallback"] = bool(byte_names)
    return Tokenizer.from_str(json.dumps(file))


def begin(tokenizer: Tokenizer) -> None:
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])


def make_tokenizers() -> dict[str, Tokenizer]:
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    charsmap = normalizers.Precompiled(base64.b64decode(character_map()))
    made = {}

    made["marks by the normalizer"] = llama = bpe(names)
    llama.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    llama.decoder = llama_decoder()
    begin(llama)

    made["a mark before the first part"] = mistral = bpe(names)
    mistral.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    mistral.decoder = llama_decoder()
    mistral.add_tokens([AddedToken("<x>", lstrip=True), AddedToken("<y>", rstrip=True, normalized=False),
                        AddedToken("<w>", single_word=True, normalized=False)])

    made["no mark before the text"] = gemma = bpe(names)
    gemma.normalizer = normalizers.Replace(" ", MARK)
    gemma.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    gemma.decoder = llama_decoder(0)

    made["some bytes have tokens"] = partly = bpe(names[:0xE8], fuse=False)
    partly.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    partly.decoder = llama_decoder()
    partly.add_tokens([AddedToken("<x>")])

    made["no bytes have tokens"] = fused = bpe([])
    fused.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    fused.decoder = decoders.Metaspace(prepend_scheme="always")

    made["unigram with a character map"] = t5 = unigram()
    t5.normalizer = normalizers.Sequence([charsmap, normalizers.Strip(left=False, right=True),
                                          normalizers.Replace(Regex(" {2,}"), MARK)])
    t5.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    t5.decoder = decoders.Metaspace(prepend_scheme="always")

    made["unigram in lower case"] = albert = unigram()
    albert.normalizer = normalizers.Sequence([normalizers.Replace("``", '"'), normalizers.Replace("''", '"'),
                                              normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(),
                                              charsmap])
    albert.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(),
                                                    pre_tokenizers.Metaspace(prepend_scheme="always")])
    albert.decoder = decoders.Metaspace(prepend_scheme="always")

    made["unigram with bytes"] = fallback = unigram(names)
    fallback.normalizer = normalizers.NFKC()
    fallback.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    fallback.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    return made


def main() -> None:
    cases = {}
    for name, tokenizer in make_tokenizers().items():
        tokenizer.encode_special_tokens = True
        ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
        cases[name] = {"tokenizer": json.loads(tokenizer.to_str()), "texts": TEXTS, "ids": ids,
                       "decoded": [tokenizer.decode(i) for i in ids]}
    write("piece_tokenizers.json", cases)
    write_models()


if __name__ == "__main__":
    main()
