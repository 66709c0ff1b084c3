"""Signals and kills at any moment.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

from case import Case

# A run long enough to be met, in the background; bash starts it with SIGINT ignored, so that one is for cli_test.
LONG = "{train} train.steps=100000 train.checkpoint_interval=0 train.evaluation_interval=0"
STARTED = " & run=$!; until [ -s run/metrics.jsonl ]; do sleep 0.05; done; "
SAME = "cmp run/checkpoints/0000000012/model.safetensors {run}/checkpoints/0000000012/model.safetensors"

# Work of half a minute in one piece: the small model over 130,000 tokens at once.
WIDE = (
    "cp -r {model} wide && python3 {tools}/edit_json.py wide/config.json 'j[\"max_position_embeddings\"] = j[\"fovea\"][\"model\"][\"context\"] = 200000' && "
    "for n in 1 2 3 4; do cat {text}; done | head -c 190000 > long.txt && tr '\\n' ' ' < long.txt | head -c 131000 > line.txt && "
)
SPAN = "model.context=131072 train.sequence_length=131072 train.batch_rows=1 data.sources.0.path={work}/long.txt train.evaluation_tokens=1"
QUESTION = (
    "python3 -c \"import json; print(json.dumps(dict(q=open('line.txt').read(), c=['a', 'b'], g=0)))\" > d.jsonl && "
    "printf 'name: t\\ndata: d.jsonl\\ncontext: \"{{q}}\"\\nchoices: c\\ngold: g\\n' > t.yaml && "
)
SYSTEMS = "printf 'systems:\\n- name: a\\n' > s.yaml && "
VARIANTS = "(cat {recipe}; printf 'compare:\\n  variants:\\n  - name: a\\n') > c.yaml && "


def answers(verb: str, prepare: str, command: str, says: str = "", signals: tuple[str, ...] = ("TERM", "INT")) -> Case:
    """The verb ends within the limit, or says so where it saves first, on each signal."""
    word = f"={says}" if says else ""
    tries = " && ".join(f"python3 {{tools}}/stop.py {name}{word} {{fovea}} {command}" for name in signals)
    return Case(f"{verb} answers SIGTERM and Ctrl-C at once", WIDE + prepare + tries, code=0, seconds=120,
                never=("no answer", "ended by itself"))


STOPS = "stopping"
LONG_WORK = {
    "train": answers("train", "", "train {recipe} run_folder={work}/run " + SPAN, STOPS),
    "compare": answers("compare", VARIANTS, "compare c.yaml run_folder={work}/run " + SPAN, STOPS),
    "retrofit": answers("retrofit", "", "retrofit wide --with focal --text long.txt --out o --steps 9 --length 131072", STOPS),
    "eval": answers("eval", "", "eval wide --text long.txt --window 131072"),
    "eval --systems": answers("eval --systems", SYSTEMS, "eval wide --text long.txt --systems s.yaml --lengths 131072 --out o"),
    "eval --tasks": answers("eval --tasks", QUESTION, "eval wide --tasks t.yaml --context 190000 --out o"),
    "eval --prompts": answers("eval --prompts", "", "eval wide --prompts line.txt --max-tokens 1"),
    "eval --stream": answers("eval --stream", "", "eval wide --text long.txt --stream 100000"),
    "generate": answers("generate", "", "generate wide --file line.txt --max-tokens 100000"),
    "inspect": answers("inspect", "", "inspect wide --text-file line.txt --tokens 4096 --reach"),
    "data prepare": answers("data prepare", "head -c 60000000 /dev/urandom | base64 -w 0 > huge.txt && "
                            "{fovea} data train-tokenizer {text} --vocab 400 --out tokens -q && ",
                            "data prepare huge.txt --tokenizer tokens --cache {work}/cache"),
    "data train-tokenizer": answers("data train-tokenizer", "head -c 60000000 /dev/urandom | base64 > huge.txt && ",
                                    "data train-tokenizer huge.txt --vocab 60000 --out o"),
    "retrofit of differential": answers("retrofit of differential", "", "retrofit wide --with differential --text long.txt --out o --steps 9 --length 65536", STOPS),
}

# These end within a second or two on any model here, or leave the signals as they are and die of them.
QUICK = ("chat", "export", "checkpoint", "adapter", "attention", "plan", "info", "completion", "reproduce", "serve")
VERBS = "train, compare, eval, generate, chat, export, data, checkpoint, adapter, attention, plan, inspect, info, completion, retrofit, reproduce, serve"
assert set(VERBS.split(", ")) == {name.split()[0] for name in LONG_WORK} | set(QUICK)

CASES = [
    *LONG_WORK.values(),
    Case("the walk over verbs above knows every verb", "{fovea} nothing", says=(f"known: {VERBS};",)),
    Case(
        "SIGHUP saves and ends as SIGTERM does",
        LONG + STARTED + "kill -HUP $run; wait $run && {fovea} checkpoint verify run",
        code=0, says=("the same command continues",),
    ),
    Case(
        "several SIGHUPs, as a closing terminal sends, cut no save short",
        LONG + STARTED + "for n in 1 2 3 4 5; do kill -HUP $run; sleep 0.01; done; wait $run && {fovea} checkpoint verify run",
        code=0, says=("the same command continues",),
    ),
    Case(
        "SIGTERM saves and ends with 0",
        LONG + STARTED + "kill -TERM $run; wait $run && {fovea} checkpoint verify run",
        code=0, says=("the same command continues",),
    ),
    Case(
        "nohup keeps a run from SIGHUP",
        "(trap '' HUP; exec {train} train.steps=400)" + STARTED + "kill -HUP $run; wait $run",
        code=0, prints=("400 steps",),
    ),
    Case(
        "signals before, while and after the handlers are set lose nothing",
        "unset OMP_WAIT_POLICY; for delay in 0 0.02 0.1 0.2 0.3 0.4 0.5 0.6 0.8; do {train} -q & sleep $delay; "
        "kill -TERM $! 2> /dev/null; wait $!; done; {train} -q && {fovea} checkpoint verify run && " + SAME,
        code=0, seconds=60,
    ),
    Case(
        "kills at any moment end in the same bits",
        "for delay in 0.3 0.5 0.6 0.7 0.8 0.9; do {train} -q & sleep $delay; kill -KILL $! 2> /dev/null; wait $!; done; "
        "{train} -q && {fovea} checkpoint verify run && " + SAME,
        code=0, seconds=60,
    ),
    Case(
        "a run that was stopped and continued ends as it would have",
        "{train} train.steps=400" + STARTED + "kill -STOP $run; sleep 0.2; kill -CONT $run; wait $run",
        code=0, prints=("400 steps",),
    ),
    Case(
        "a second process is kept from the run folder",
        LONG + STARTED + "{train} train.steps=100000; code=$?; kill -KILL $run; wait $run 2> /dev/null; exit $code",
        says=("is in use by process",),
    ),
    Case(
        "SIGTERM ends generate after whole characters",
        "{fovea} generate {model} a --temperature 0 --max-tokens 100000000 --when-full slide > out & run=$!; "
        "until [ -s out ]; do sleep 0.05; done; kill -TERM $run; wait $run; code=$?; iconv -f utf8 out > /dev/null && exit $code",
        code=130,
    ),
]
