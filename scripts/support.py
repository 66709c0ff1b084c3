#!/usr/bin/env python3
"""Writes the table of docs/support.md: what the program does with each setting of attention.

    scripts/support.py            writes the table (make support)
    scripts/support.py --check    says what differs from the table that stands there; exit code 1

Nothing is declared: every row is a small model that the program trains for two steps, lets write four tokens and exports.
The cells are what the program then says (attention/path of metrics.jsonl, `decode` of generate --json, model_type of the
exported config.json), or "no" where it refuses. Every key of model.attention that `fovea train --help` lists must be
in a row or in OTHER, so that a new mechanism cannot be forgotten.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = pathlib.Path(os.environ.get("FOVEA_PROGRAM", ROOT / "build/bin/fovea"))
PAGE = ROOT / "docs/support.md"
BEGIN, END = "<!-- made by make support: begin -->\n", "<!-- end -->\n"
def fused_decoder(answer: dict | None) -> str:
    if answer is None or answer["decode"] != "fused_decoder":
        return "no"
    return "around" if "by single operations" in answer.get("decode_reason", "") else "yes"


HEAD = "| setting | train | decode | fused CPU | fused decoder | GPU | export | |\n|---|---|---|---|---|---|---|---|\n"

A = "model.attention."
FOCUS = [A + "focus.window=16", A + "focus.groups=4", A + "focus.top_k=1"]
# Setting, overrides of the recipe, remark.
ROWS = [
    ("standard attention (MHA)", [], ""),
    ("GQA, MQA", ["model.kv_heads=1"], ""),
    ("[Focal](mechanisms/focal.md), constant", [A + "temperature.value=0.4"], ""),
    *((f"Focal, learned: `{form}`", [A + "temperature.kind=learned", A + f"temperature.form={form}"], "")
      for form in ("prefix", "token", "global", "sequence")),
    ("[Focus](mechanisms/focus.md), soft gates", [A + "focus.gate=log", *FOCUS], ""),
    ("Focus, soft, potentials of the whole text", [A + "focus.gate=log", A + "focus.potentials=sequence", *FOCUS], ""),
    ("Focus, `hard`", [A + "focus.gate=hard", *FOCUS], "groups are fixed in training"),
    ("Focus, `straight_through`", [A + "focus.gate=straight_through", *FOCUS], ""),
    ("[Multi-Token](mechanisms/multi-token.md) convolutions",
     [A + "multi_token.before={queries: 6, keys: 11}", A + "multi_token.after={queries: 6, keys: 11}"],
     ""),
    ("[head mixing](mechanisms/talking-heads.md)", [A + "head_mix.before=full", A + "head_mix.after=full"], ""),
    ("[KV shifting](mechanisms/kv-shift.md)", [A + "kv_shift.keys=true", A + "kv_shift.values=true"], ""),
    ("[Differential](mechanisms/differential.md)", [A + "differential=true"], "one call for each map"),
    ("head norm and gate", [A + "head_output.norm=rms", A + "head_output.gate=full"], ""),
    ("[routing](mechanisms/routing.md), `recent`", [A + "routing.clusters=4", A + "routing.keep=16"], ""),
    ("routing, `nearest`", [A + "routing.clusters=4", A + "routing.keep=16", A + "routing.choice=nearest"], ""),
    ("[Performer](mechanisms/performer.md)", [A + "performer.features=16"], ""),
    ("given blocks", [A + "blocks.size=16", A + "blocks.pairs=[0, 0, 1, 1, 2, 2, 3, 3]"], ""),
    ("[Longformer](mechanisms/longformer.md)", [A + "longformer.window=15", A + "longformer.globals=2"], ""),
    ("Longformer, dilated", [A + "longformer.window=15", A + "longformer.dilation=[2]"], ""),
    ("Longformer, `projections`",
     [A + "longformer.window=15", A + "longformer.globals=2", A + "longformer.projections=true"], ""),
    ("[StreamingLLM](mechanisms/streaming.md)", [A + "streaming.recent=16", A + "streaming.start=2"], ""),
    ("[SparQ](mechanisms/sparq.md)", [A + "sparq.components=4", A + "sparq.keys=8"], "for decoding"),
    ("[MagicPIG](mechanisms/magicpig.md)", [A + "magic_pig.bits=4", A + "magic_pig.dense_every=0"], "for decoding"),
    ("soft-cap", [A + "soft_cap=50"], "plain in Gemma-2's layout"),
    ("ALiBi", [A + "bias.kind=alibi", "model.positions=none"], ""),
    ("T5 bias", [A + "bias.kind=t5", "model.positions=none"], ""),
    ("window", [A + "mask.window=16"], ""),
    ("window and sinks", [A + "mask.window=16", A + "mask.sinks=2"], ""),
    ("strided", [A + "mask.sparsity=strided", A + "mask.stride=8"], ""),
    ("fixed", [A + "mask.sparsity=fixed", A + "mask.block=8", A + "mask.summary=2"], ""),
    ("sink logit", [A + "sink_logit=true"], ""),
    ("not causal", [A + "mask.causal=false"], "nothing to decode token by token"),
    ("dropout", [A + "dropout=0.1"], "off when decoding"),
    ("windows with full layers between", [A + "mask.window=16", A + "full.every=2"], ""),
    ("[LoRA](mechanisms/lora.md)", ["model.lora.rank=4", "train.trainable=lora"], "also as an adapter of PEFT"),
]
# Keys of model.attention that are no mechanism of their own.
OTHER = {"temperature_per_layer", "decay_added", "own"}
RECIPE = """name: support
run_folder: run
data: {sources: [{path: text.txt}], cache: cache}
model: {layers: 2, width: 64, heads: 2, ffn_width: 64, context: 64}
train: {steps: 2, batch_rows: 2, checkpoint_interval: 0, log_interval: 1, dtype: float32, device: cpu}
"""


class Refused(Exception):
    pass


def fovea(folder: pathlib.Path, *words: str) -> str:
    done = subprocess.run([PROGRAM, *words], cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)
    if done.returncode == 2:
        raise Refused(done.stderr)
    if done.returncode != 0:
        raise RuntimeError(f"fovea {' '.join(words)}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def answer(action) -> str | None:
    """What `action` says; None where the program refuses."""
    try:
        return action()
    except Refused:
        return None


def path_of(folder: pathlib.Path) -> str:
    lines = (folder / "run/metrics.jsonl").read_text().splitlines()
    return json.loads(lines[-1])["attention/path"]


def cells(overrides: list[str]) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="fovea-support-") as name:
        folder = pathlib.Path(name)
        (folder / "recipe.yaml").write_text(RECIPE)
        (folder / "text.txt").write_text("".join(f"line {i} of a text, {i * 7 % 13}\n" for i in range(400)))
        if answer(lambda: fovea(folder, "train", "recipe.yaml", "--quiet", *overrides)) is None:
            return ["no"] * 6
        path = path_of(folder)
        decode = answer(lambda: json.loads(fovea(folder, "generate", "run", "line", "--max-tokens", "4", "--json")))
        ours = "yes" if path.startswith("fused") else "grouped" if path.startswith("grouped") else "no"
        return ["yes", "no" if decode is None else "yes", ours, fused_decoder(decode), "torch",
                exported(folder)]


def exported(folder: pathlib.Path) -> str:
    """The layout of the exported folder: "plain" where other programs know it, if need be by an option."""
    kinds = {}
    for option in ("", "--fold", "--merge"):
        out = f"out{option}"
        if answer(lambda: fovea(folder, "export", "run", out, "--quiet", *filter(None, [option]))) is not None:
            kinds[option] = json.loads((folder / out / "config.json").read_text())["model_type"]
        if kinds.get(option, "fovea") != "fovea":
            return f"plain with `{option}`" if option else "plain"
    return "own" if kinds else "no"


def forgotten() -> list[str]:
    text = fovea(ROOT, "train", "--help")
    keys = {key.split(".")[0] for key in re.findall(r"^ *model\.attention\.([\w.]+)", text, re.M)}
    used = {word.removeprefix(A).split(".")[0].split("=")[0] for _, overrides, _ in ROWS for word in overrides
            if word.startswith(A)}
    return sorted(keys - used - OTHER)


def table() -> str:
    missing = forgotten()
    if missing:
        sys.exit(f"[support] expected a row of scripts/support.py for every mechanism; none sets model.attention.{missing[0]}; add it")
    return HEAD + "".join(f"| {' | '.join([name, *cells(overrides), remark])} |\n" for name, overrides, remark in ROWS)


def main() -> int:
    if not PROGRAM.exists():
        sys.exit(f"[support] no {PROGRAM}: run make program")
    page = PAGE.read_text()
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    kept, made = page[begin:end], table()
    if "--check" in sys.argv[1:]:
        for line in sorted(set(made.splitlines()) ^ set(kept.splitlines())):
            print(f"docs/support.md is not what the program does; run make support: {line}")
        return 1 if made != kept else 0
    PAGE.write_text(page[:begin] + made + page[end:])
    print(f"[support] {len(ROWS)} rows, {'changed' if made != kept else 'unchanged'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
