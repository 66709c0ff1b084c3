"""Names and texts that file systems, shells and terminals take for something else.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

from case import Case

TASK = "printf '{\"q\": 1, \"c\": [\"a\", \"b\"], \"g\": 0}\\n' > d.jsonl; printf 'name: %s\\ndata: d.jsonl\\ncontext: \"{{q}}\"\\nchoices: c\\ngold: g\\n' "
ASK = " > t.yaml; mkdir -p deep/out; {fovea} eval {model} --tasks t.yaml --out deep/out -q"

# A path in every place where the program takes one.
LOOK = (
    "generate PATH a",
    "generate {model} --file PATH",
    "generate {model} --prompts PATH",
    "generate {model} a --adapter PATH",
    "chat PATH",
    "eval PATH --text {text}",
    "eval {model} --text PATH",
    "eval {model} --tasks PATH.yaml",
    "eval {model} --tasks hellaswag --data PATH",
    "eval {model} --tasks niah_single_1 --background PATH",
    "eval {model} --tasks niah_single_1 --limit 1 --out PATH",
    "eval {model} --prompts PATH",
    "eval {model} --text {text} --systems PATH",
    "eval {model} --text {text} --systems {work}/s.yaml",
    "train PATH",
    "train {recipe} run_folder=PATH",
    "train {recipe} data.sources.0.path=PATH run_folder={work}/r",
    "train {recipe} data.cache=PATH run_folder={work}/r",
    "train {recipe} tokenizer=PATH run_folder={work}/r",
    "train {recipe} train.init_from=PATH run_folder={work}/r",
    "compare PATH",
    "plan PATH",
    "retrofit PATH --with focal --text {text} --out o --steps 1",
    "retrofit {model} --with focal --text PATH --out o --steps 1",
    "retrofit {model} --with focal --text {text} --out PATH --steps 1",
    "retrofit {model} --with focal --text {text} --held-out PATH --out o --steps 1",
    "inspect PATH --text a",
    "inspect {model} --text a --out PATH",
    "inspect {model} --text-file PATH",
    "attention PATH",
    "attention {tools}/../golden/attention/plain_mha.safetensors --out PATH",
    "export PATH out",
    "export {model} PATH",
    "export {model} PATH.gguf --gguf f32",
    "data prepare PATH",
    "data prepare {text} --cache PATH",
    "data prepare {text} --tokenizer PATH",
    "data train-tokenizer {text} --out PATH",
    "checkpoint list PATH",
    "checkpoint verify PATH",
    "checkpoint average PATH --out o",
    "checkpoint average {run} --out PATH",
    "checkpoint prune PATH --keep 1",
    "adapter export PATH o",
    "adapter import {model} PATH o",
    "adapter unmerge {model} PATH o",
)


def everywhere(name: str, make: str, path: str, seconds: float = 240) -> Case:
    """Every command of LOOK with this path: none succeeds, crashes or calls it a bug."""
    commands = "\n".join(look.replace("PATH", path) for look in LOOK)
    systems = f"printf 'systems:\\n- name: a\\n  adapters: [%s]\\n' '{path}' > s.yaml; "
    return Case(
        name,
        make + systems + "while read -r line; do eval \"{fovea} $line\" > .out 2> .err < /dev/null; code=$?; "
        "if [ $code -ne 1 -a $code -ne 2 ] || grep -qE 'internal|Traceback' .err; then echo \"$code: $line\"; cat .err; fi; "
        f"done <<'END'\n{commands}\nEND\nexit 2",
        never=tuple(sorted({f": {look.split()[0]} " for look in LOOK})),
        seconds=seconds,
    )


CASES = [
    Case(
        "the name of a task does not leave the folder of the log",
        "mkdir -p deep; echo precious > victim.jsonl; " + TASK + "../../../victim" + ASK + "; code=$?; grep -qx precious victim.jsonl && exit $code",
        says=("name of its log", "'../../../victim'"),
    ),
    Case(
        "a NUL and a newline in the name of a task are refused and shown as escapes",
        TASK + "'\"a\\0b\"'" + ASK + "; " + TASK + "'\"a\\nb\"'" + ASK,
        says=("a\\x00b", "a\\x0ab", "control characters"),
    ),
    Case(
        "a name of 300 characters is refused by its length",
        TASK + "$(printf 'x%.0s' $(seq 300))" + ASK,
        says=("300 bytes",),
    ),
    Case(
        "a foreign file without a line end in the place of the log is kept",
        TASK + "mine" + ASK.replace("mkdir -p deep/out", "mkdir -p deep/out/results; printf 'my notes' > deep/out/results/mine.jsonl") +
        "; code=$?; [ \"$(cat deep/out/results/mine.jsonl)\" = 'my notes' ] && exit $code",
        says=("another file",),
    ),
    Case(
        "the name of a recipe does not leave runs/",
        "cd $(mktemp -d -p .) && sed '/run_folder/d; s,^name:.*,name: ../../victim,' {recipe} > r.yaml && {fovea} train r.yaml -q",
        says=("runs/NAME", "'../../victim'"),
    ),
    Case(
        "a prompt in the place of the model says so",
        "{fovea} generate \"$(printf 'Once upon a time %.0s' $(seq 40))\"",
        says=("was a text given",),
    ),
    Case(
        "a working folder that is gone is named",
        "mkdir gone && cd gone && rmdir ../gone && {fovea} generate {model} a --max-tokens 1",
        says=("[working folder]",), never=("FATAL ERROR",),
    ),
    everywhere("links in a circle are refused wherever a path stands", "ln -s loop loop; ln -s loop loop.yaml; ", "{work}/loop/x"),
    everywhere("names over 255 bytes are refused wherever a path stands", "", "{work}/" + "n" * 300),
    Case(
        "make passes a text on as it stands",
        "mkdir -p scripts build/bin && cp {tools}/../../Makefile . && cp {tools}/../../scripts/demo.sh {tools}/../../scripts/retrofit.sh scripts && "
        "for s in setup build fetch-model test-some; do printf '#!/bin/sh\\necho \"$@\" > %s.said\\n' $s > scripts/$s.sh; done; "
        "printf '#!/bin/sh\\nprintf \"<%%s>\\\\n\" \"$@\"\\n' > build/bin/fovea; chmod +x build/bin/fovea scripts/*; "
        "text=\"it's \\`touch ran\\` \\$(touch ran) a\\$b.txt\"; make JOBS=1 demo TEXT=\"$text\" && make JOBS=1 retrofit TEXT=\"$text\" && "
        "make JOBS=1 test T=\"$text\" && cat test-some.said && [ ! -e ran ]",
        code=0,
        prints=("<data.sources.0.path='it''s `touch ran` $(touch ran) a$b.txt'>", "<it's `touch ran` $(touch ran) a$b.txt>",
                "1 it's `touch ran` $(touch ran) a$b.txt"),
    ),
    Case(
        "one model given twice is no comparison",
        "{fovea} inspect {model} {model}/ --text abc --out o; code=$?; [ ! -e o/inspect.html ] && exit $code",
        says=("are one",),
    ),
    Case(
        "titles of models are as short as they can be",
        "mkdir a b; cp -r {model} a/m; cp -r {model} b/m; {fovea} inspect $PWD/a/m $PWD/b/m --text abc --out o --json && "
        "grep -q '<h1>a/m and b/m</h1>' o/inspect.html",
        code=0, prints=('"a/m"', '"b/m"'),
    ),
    Case("an empty text is nothing to inspect", "{fovea} inspect {model} --text ''", says=("expected a text",)),
    Case("an empty file is nothing to inspect", ": > e; {fovea} inspect {model} --text-file e", says=("expected a text",)),
    Case(
        "a retrofit does not write into its base",
        "cp -r {model} m; ls -R m > before; {fovea} retrofit m --with focal --text {text} --out m/sub --steps 1; "
        "{fovea} retrofit m --with focal --text {text} --out m --steps 1; code=$?; ls -R m > after; cmp before after && exit $code",
        says=("outside the base",),
    ),
    Case(
        "a retrofit refuses the overrides that its options set",
        "{fovea} retrofit {model} --with focal --text {text} --out o --steps 1 run_folder=elsewhere",
        says=("'run_folder' is no override", "--out"),
    ),
    Case(
        "Focus is put on a base as short as its local window",
        "{fovea} retrofit {model} --with focus --text {text} --out o --steps 2 --no-speed -q --tokens 64",
        code=0,
    ),
    Case(
        "Focus whose window leaves no pair to the groups is refused before any work",
        "{fovea} retrofit {model} --with focus --text {text} --out o --steps 2 model.attention.focus.window=32",
        says=("focus.window",),
    ),
    Case(
        "training what does not act on the loss is refused with the reason",
        "{train} model.attention.focus.gate=log model.attention.focus.groups=4 model.attention.focus.window=32 train.trainable=focus train.init_from={model}",
        says=("acts on the loss",), never=("element 0 of tensors",),
    ),
    Case(
        "8-bit floats in a case file are refused by name",
        "python3 -c \"import json, struct; h = json.dumps({'__metadata__': {'attention_spec': '{}'}, **{n: dict(dtype='F8_E4M3', "
        "shape=[1, 1, 2, 8], data_offsets=[16 * i, 16 * i + 16]) for i, n in enumerate('qkv')}}).encode(); "
        "open('c.safetensors', 'wb').write(struct.pack('<Q', len(h)) + h + bytes(48))\"; {fovea} attention c.safetensors",
        says=("expected 'k' in F32",) and ("in F32, F16, BF16",),
    ),
]
