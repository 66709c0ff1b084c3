"""A small model with a chat template, and `fovea serve` on it: what the tests of clients and of the page share.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import importlib.util
import json
import os
import pathlib
import random
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request

CONTEXT = 8192
WIDTH, LAYERS, HEADS, FFN = 32, 4, 4, 64
SPECIAL = ("<|start|>", "<|end|>")
MERGES = ("Ġ t", "h e", "Ġt he", "i n", "Ġ a", "e r", "o n", "Ġ k", "e y", "Ġk ey")
TEMPLATE = ("{% for message in messages %}{{ '<|start|>' + message['role'] + '\n' + message['content'] + '<|end|>\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}")


def byte_names() -> list[str]:
    """The characters that byte-level BPE writes bytes with: printable ones as they are, the others from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names, extra = [], 0
    for byte in range(256):
        if byte in printable:
            names.append(chr(byte))
        else:
            names.append(chr(256 + extra))
            extra += 1
    return names


def write_json(path: pathlib.Path, value) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False))


def write_tokenizer(folder: pathlib.Path) -> list[str]:
    tokens = [*byte_names(), *("".join(merge.split()) for merge in MERGES)]
    special = [{"id": len(tokens) + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True} for i, text in enumerate(SPECIAL)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    write_json(folder / "tokenizer.json",
               {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
                "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
                "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                          "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                          "vocab": {token: i for i, token in enumerate(tokens)}, "merges": list(MERGES)}})
    write_json(folder / "tokenizer_config.json", {"eos_token": SPECIAL[1], "chat_template": TEMPLATE})
    return tokens


def write_weights(path: pathlib.Path, tensors: dict[str, tuple[tuple[int, ...], list[float]]]) -> None:
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        part = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_model(folder: pathlib.Path) -> pathlib.Path:
    """A random model in Hugging Face's layout that writes letters: their rows of the last layer are the largest."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = write_tokenizer(folder)
    vocabulary = len(tokens) + len(SPECIAL)
    draw = random.Random(7)

    def normal(*shape: int, size: float = 0.3):
        count = 1
        for length in shape:
            count *= length
        return shape, [draw.gauss(0, size) for _ in range(count)]

    tensors = {"model.embed_tokens.weight": normal(vocabulary, WIDTH, size=1.0), "model.norm.weight": ((WIDTH,), [1.0] * WIDTH)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name in ("q", "k", "v", "o"):
            tensors[f"{at}self_attn.{name}_proj.weight"] = normal(WIDTH, WIDTH)
        tensors[at + "mlp.gate_proj.weight"], tensors[at + "mlp.up_proj.weight"] = normal(FFN, WIDTH), normal(FFN, WIDTH)
        tensors[at + "mlp.down_proj.weight"] = normal(WIDTH, FFN)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}{name}.weight"] = ((WIDTH,), [1.0] * WIDTH)
    head = []
    for token in [*tokens, *SPECIAL]:
        is_word = token.isascii() and token.isalpha() or token.startswith("Ġ")
        head += [draw.gauss(0, 0.8 if is_word else 0.05) for _ in range(WIDTH)]
    tensors["lm_head.weight"] = ((vocabulary, WIDTH), head)
    write_weights(folder / "model.safetensors", tensors)
    write_json(folder / "config.json",
               {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": FFN,
                "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
                "vocab_size": vocabulary, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                "tie_word_embeddings": False, "hidden_act": "silu", "eos_token_id": vocabulary - 1, "torch_dtype": "float32"})
    return folder


def write_adapter(fovea: str, model: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Focus and Multi-Token Attention on the model, hardly trained."""
    words = "the key and the door of an inn where the keeper keeps the key ".split()
    draw = random.Random(3)
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "text.txt"
    text.write_text("\n".join(" ".join(draw.choice(words) for _ in range(12)) + "." for _ in range(1500)))
    subprocess.run([fovea, "retrofit", str(model), "--with", "focus,multi_token", "--text", str(text), "--out", str(folder / "out"),
                    "--steps", "2", "--length", "256", "--tokens", "256", "--copy", "0", "--no-speed", "--quiet"],
                   check=True, stdout=subprocess.DEVNULL)
    return folder / "out" / "adapter"


def run_with_peers(*packages: str) -> None:
    """Starts this script anew with the Python of `make python-peers` where that one has the packages and this one lacks some."""
    if all(importlib.util.find_spec(package) for package in packages) or os.environ.get("FOVEA_PEERS_TRIED"):
        return
    cache = os.environ.get("FOVEA_CACHE") or os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")) + "/fovea"
    for python in sorted(pathlib.Path(cache).glob("peers-*/bin/python")):
        os.execve(python, [str(python), *sys.argv], {**os.environ, "FOVEA_PEERS_TRIED": "1"})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """`fovea serve` as a process; a context manager. Its log is in `log`."""

    def __init__(self, fovea: str, model: pathlib.Path, log: pathlib.Path, *arguments: str, environment: dict | None = None):
        self.command = [fovea, "serve", str(model), *arguments]
        self.port, self.log, self.environment = free_port(), log, environment
        self.address = f"http://127.0.0.1:{self.port}"
        self.process = None
        self.start()

    def start(self, timeout: float = 120) -> None:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([*self.command, "--port", str(self.port)], stdout=log, stderr=log, env=self.environment)
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"fovea serve ended with {self.process.returncode}:\n{self.log.read_text()}")
            try:
                if self.get("/health")[0] == 200:
                    return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"fovea serve did not answer within {timeout} s:\n{self.log.read_text()}")

    def get(self, path: str) -> tuple[int, str]:
        with urllib.request.urlopen(self.address + path, timeout=60) as answer:
            return answer.status, answer.read().decode()

    def post(self, path: str, body: dict) -> dict:
        request = urllib.request.Request(self.address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        lines = [line for line in self.get("/metrics")[1].splitlines() if line.split("{")[0].split(" ")[0] == name]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
