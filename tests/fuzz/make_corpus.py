#!/usr/bin/env python3
"""Writes the small corpus of the fuzz targets: valid files and each kind of damage. Run by hand.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import base64
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent


def safetensors(header: str, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header.encode() + data


def tensor(dtype: str, shape: list[int], begin: int, end: int) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def gguf_text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf(entries: list[bytes], tensors: list[tuple[str, list[int], int, int]], data: bytes, version: int = 3) -> bytes:
    """A GGUF file; a tensor is its name, its sizes (innermost first), the number of its format and its offset."""
    file = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries)) + b"".join(entries)
    for name, sizes, kind, offset in tensors:
        file += gguf_text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)
    return file + bytes(-len(file) % 32) + data


def gguf_files() -> dict[str, bytes]:
    texts = gguf_text("tokens") + struct.pack("<IIQ", 9, 8, 2) + gguf_text("a") + gguf_text("bc")
    every = [gguf_text(f"k{kind}") + struct.pack("<I", kind) + bytes(size)
             for kind, size in ((0, 1), (1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (6, 4), (7, 1), (8, 8), (10, 8), (11, 8), (12, 8))]
    formats = [(0, 1, 4), (1, 1, 2), (30, 1, 2), (2, 32, 18), (3, 32, 20), (6, 32, 22), (7, 32, 24), (8, 32, 34),
               (12, 256, 144), (13, 256, 176), (14, 256, 210)]
    tensors, offset = [], 0
    for kind, values, size in formats:
        tensors.append((f"t{kind}", [values], kind, offset))
        offset += (size + 31) // 32 * 32
    return {
        "every_format": gguf([texts], tensors, bytes(i % 251 for i in range(offset))),
        "every_type": gguf(every, [], b"", version=2),
        "alignment": gguf([gguf_text("general.alignment") + struct.pack("<II", 4, 64)], [("a", [3, 2], 0, 64)], bytes(256)),
        "overlap": gguf([], [("a", [9], 0, 0), ("b", [1], 0, 32)], bytes(64)),
        "huge_count": b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60),
        "huge_sizes": gguf([], [("a", [1 << 40, 1 << 40], 0, 0)], bytes(64)),
    }


def gguf_key(key: str, value: object) -> bytes:
    """An entry of the metadata: a text, a whole number, a number, or a list of one of these."""
    def typed(value: object) -> tuple[int, bytes]:
        if isinstance(value, str):
            return 8, gguf_text(value)
        return (6, struct.pack("<f", value)) if isinstance(value, float) else (5, struct.pack("<i", value))

    if not isinstance(value, list):
        kind, data = typed(value)
        return gguf_text(key) + struct.pack("<I", kind) + data
    kinds = [typed(item) for item in value]
    return gguf_text(key) + struct.pack("<IIQ", 9, kinds[0][0], len(value)) + b"".join(data for _, data in kinds)


def gguf_models() -> dict[str, bytes]:
    """Models without weights but the embedding, with vocabularies of both kinds."""
    models = {}
    for family, vocabulary in (("llama", "llama"), ("llama", "gpt2"), ("qwen2", "gpt2"), ("qwen3", "gpt2")):
        pieces = vocabulary == "llama"
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "s", "o", "so"] if pieces \
            else ["<|end|>", "\u0120", "s", "o", "so", "\u0120so"]
        keys = {"general.architecture": family, f"{family}.block_count": 1, f"{family}.context_length": 64,
                f"{family}.embedding_length": 8, f"{family}.feed_forward_length": 16, f"{family}.attention.head_count": 2,
                f"{family}.attention.head_count_kv": 1, f"{family}.attention.layer_norm_rms_epsilon": 1e-5,
                f"{family}.rope.freq_base": 1e4, "tokenizer.ggml.model": vocabulary, "tokenizer.ggml.tokens": tokens,
                "tokenizer.ggml.eos_token_id": 2, "tokenizer.chat_template": "{{ messages[0].content }}"}
        if pieces:
            keys |= {"tokenizer.ggml.scores": [float(-i) for i in range(len(tokens))],
                     "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * 4]}
        else:
            keys |= {"tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.merges": ["s o", "\u0120 so"],
                     "tokenizer.ggml.token_type": [3, *[1] * 5]}
        embedding = [("token_embd.weight", [8, len(tokens)], 0, 0)]
        models[f"{family}_{vocabulary}"] = gguf([gguf_key(*entry) for entry in keys.items()], embedding, bytes(32 * len(tokens)))
    return models


def model_configs() -> dict[str, bytes]:
    """A config.json of each family, with every kind of rotation."""
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "intermediate_size": 48, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "hidden_act": "silu",
             "rope_theta": 1e4, "tie_word_embeddings": True}
    gemma = {"head_dim": 8, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 16, "sliding_window": 16,
             "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    cohere = {"layer_norm_eps": 1e-5, "logit_scale": 0.25, "use_qk_norm": False}
    families = {"llama": {"attention_bias": False, "mlp_bias": False}, "mistral": {"sliding_window": 16}, "qwen2": {}, "qwen3": {"head_dim": 8},
                "olmo2": {}, "gemma2": gemma, "cohere": cohere, "cohere2": cohere | {"sliding_window": 16, "sliding_window_pattern": 2},
                "diffllama": {"lambda_std_dev": 0.1}}
    configs = {name: {"model_type": name} | sizes | more for name, more in families.items()}
    configs["gpt2"] = {"model_type": "gpt2", "vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48, "n_positions": 128,
                       "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
    turns = {"linear": {"factor": 2.0}, "dynamic": {"factor": 2.0},
             "yarn": {"factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32, "beta_slow": 1, "attention_factor": 1.1},
             "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
             "longrope": {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 32}}
    for name, turn in turns.items():
        configs[f"rope_{name}"] = configs["llama"] | {"rope_scaling": {"rope_type": name} | turn}
    return {name: json.dumps(config).encode() for name, config in configs.items()}


def request_bodies() -> dict[str, bytes]:
    """Bodies of each route; the first byte chooses the route."""
    chat = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "stream": True,
            "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 2, "response_format": {"type": "text"}}
    bodies = {
        "completion": (0, {"prompt": ["a", "b"], "n": 2, "stop": ["x"], "seed": 1, "logprobs": 3, "echo": True,
                           "temperature": 0.5, "top_p": 0.9, "top_k": -1, "user": None, "best_of": None}),
        "ids": (0, {"prompt": [[1, 2], [3]], "max_tokens": 0, "echo": True}),
        "chat": (1, chat),
        "attention": (2, {"text": "a", "rows": [-1], "layers": [0], "heads": [1], "k": 8}),
        "tokenize": (3, {"prompt": "a", "add_special_tokens": False, "return_token_strs": True}),
        "detokenize": (4, {"tokens": [1, 2]}),
    }
    return {name: bytes([route]) + json.dumps(body).encode() for name, (route, body) in bodies.items()}


def request_heads() -> dict[str, bytes]:
    """Heads of requests, whole and damaged."""
    post = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n"
    heads = {
        "page": "GET / HTTP/1.1\r\nHost: localhost:8000\r\n\r\n",
        "post": post + "Authorization: Bearer secret\r\n\r\n{}",
        "origin": post + "Origin: https://a.example\r\n\r\n{}",
        "own_origin": "OPTIONS /v1/models?x=1#y HTTP/1.0\r\nHost: [::1]:8000\r\nOrigin: http://[::1]:8000\r\n\r\n",
        "chunked": "POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        "folded": "GET /page/../x%0d%0a HTTP/1.1\r\nOrigin: a\r\n b\r\n\r\n",
        "two_lengths": "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "huge_length": "POST / HTTP/1.1\r\nContent-Length: 18446744073709551616\r\n\r\n",
        "bare_lf": "GET /health HTTP/1.1\nHost: a\n\n",
    }
    return {name: head.encode() for name, head in heads.items()}


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
    files.update({f"gguf/{name}": content for name, content in gguf_files().items()})
    files.update({f"gguf_model/{name}": content for name, content in gguf_models().items()})
    files.update({f"serve_body/{name}": content for name, content in request_bodies().items()})
    files.update({f"serve_head/{name}": content for name, content in request_heads().items()})
    files.update({f"model_config/{name}": content for name, content in model_configs().items()})
    golden = json.loads((HERE.parent / "golden/tokenizers.json").read_text())
    for name, case in golden.items():
        tokenizer = case["tokenizer"]
        merges = tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:20]
        kept = {m if isinstance(m, str) else " ".join(m) for m in merges}
        kept = {m.replace(" ", "") for m in kept}
        tokenizer["model"]["vocab"] = {t: i for t, i in tokenizer["model"]["vocab"].items() if len(t) == 1 or t in kept}
        files[f"tokenizer_json/{name.replace(' ', '_').replace(',', '')}"] = json.dumps(tokenizer).encode()
    chats = json.loads((HERE.parent / "golden/chat_templates.json").read_text())
    files |= {f"chat_template/{chat['family'].replace(' ', '_')}": chat["template"].encode() for chat in chats["templates"]}
    expressions = [expression["template"] for expression in chats["expressions"]]
    files |= {f"chat_template/expressions_{i}": "\n".join(expressions[i::10]).encode() for i in range(10)}
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
