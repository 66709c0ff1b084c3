"""Damaged checkpoints, full disks, and what stands where a file is written.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

from case import Case

NEWEST = "run/checkpoints/0000000012"
COPY = "cp -r {run} run && "
FLIP = "python3 {tools}/flip.py "
# state.json as format 1 had it: without a checksum of itself, so that other checks are reached.
OLD = "python3 {tools}/edit_json.py " + NEWEST + '/state.json \'del j["checksum"]; j["format"] = 1; '
CASE_FILE = "{tools}/../golden/attention/plain_mha.safetensors"
FALLS_BACK = ("warning: ", "falling back to the checkpoint of step 8")

CASES = [
    Case(
        "a flipped bit of the weights is found and its file named",
        COPY + FLIP + NEWEST + "/model.safetensors && {fovea} checkpoint verify run",
        says=("model.safetensors", "is not what was written"),
    ),
    Case(
        "a step in state.json that was changed is found",
        COPY + f"sed -i 's/\"step\": 12/\"step\": 13/' {NEWEST}/state.json && {{fovea}} checkpoint verify {NEWEST}",
        says=("'state.json' is not what was written",),
    ),
    Case(
        "flipped bits all over state.json are found",
        COPY + f"size=$(stat -c %s {NEWEST}/state.json); for n in 0 1 2 3 4 5 6 7; do "
        f"cp {{run}}/checkpoints/0000000012/state.json {NEWEST}; {FLIP} {NEWEST}/state.json $((size * n / 8 + n)) $n; "
        f"{{fovea}} checkpoint verify {NEWEST} && exit 9; done; exit 2",
        never=("every file is what was written",),
        seconds=60,
    ),
    Case(
        "training falls back from a changed state.json and says so even when quiet",
        COPY + FLIP + NEWEST + "/state.json && {train} -q && cmp " + NEWEST + "/model.safetensors "
        "{run}/checkpoints/0000000012/model.safetensors",
        code=0, says=FALLS_BACK + ("state.json",),
    ),
    Case(
        "a list of no files does not pass",
        COPY + OLD + "j[\"files\"] = {}' && {fovea} checkpoint verify " + NEWEST,
        says=("lists no files",),
    ),
    Case(
        "a list of files that is null does not pass",
        COPY + OLD + "j[\"files\"] = None' && {fovea} generate " + NEWEST + " a",
        says=("lists no files",),
    ),
    Case(
        "a corpus that is null falls back",
        COPY + OLD + "j[\"state\"][\"corpus\"] = None' && {train} -q",
        code=0, says=FALLS_BACK,
    ),
    Case(
        "a state that is a list falls back",
        COPY + OLD + "j[\"state\"] = []' && {train} -q && {fovea} checkpoint list run",
        code=0, says=FALLS_BACK,
    ),
    Case(
        "a loader without rows falls back",
        COPY + OLD + "j[\"state\"][\"loader\"][\"rows\"] = []' && {train} -q",
        code=(0, 2),
    ),
    Case(
        "a checkpoint of the older format is read with a warning",
        COPY + OLD + "' && {fovea} generate " + NEWEST + " a --max-tokens 2 -q",
        code=0, says=("warning: ", "older version"),
    ),
    Case(
        "a checkpoint under the name of another step is found",
        COPY + "mv " + NEWEST + " run/checkpoints/0000000020 && {fovea} checkpoint verify run",
        says=("must be of step 20", "got 12"),
    ),
    Case(
        "no verb reads a damaged checkpoint",
        COPY + FLIP + NEWEST + "/model.safetensors && for command in "
        "'generate RUN a' 'eval RUN --text {text}' 'inspect RUN --text a --out page' 'export RUN new' 'adapter export RUN new' "
        "'chat RUN' 'checkpoint average RUN --out new'; do "
        "{fovea} ${command/RUN/" + NEWEST + "}; [ $? = 2 ] || { echo $command; exit 9; }; done; [ ! -e new ] && exit 2",
        says=("model.safetensors", "is not what was written"),
        seconds=60,
    ),
    Case(
        "a damaged checkpoint is no start for another run",
        COPY + FLIP + NEWEST + "/model.safetensors && {fovea} train {recipe} run_folder=second train.init_from=" + NEWEST,
        says=("model.safetensors", "is not what was written"),
    ),
    Case(
        "a run whose newest checkpoint is damaged is read from the one before, with a warning",
        COPY + FLIP + NEWEST + "/model.safetensors && {fovea} generate run a --max-tokens 2 -q",
        code=0, says=FALLS_BACK,
    ),
    Case(
        "a run of damaged checkpoints is refused",
        COPY + "for file in run/checkpoints/*/tokenizer.json; do truncate -s -1 $file; done; {train}",
        says=("no checkpoint of this run is whole", "tokenizer.json"),
    ),
    Case(
        "a checkpoint without state.json is no model",
        COPY + "rm " + NEWEST + "/state.json && {fovea} generate " + NEWEST + " a",
        says=("'state.json' is missing",),
    ),
    Case(
        "an empty state.json falls back",
        COPY + ": > " + NEWEST + "/state.json && {fovea} checkpoint list run && {train} -q",
        code=0, says=FALLS_BACK,
    ),
    Case(
        "a state.json of brackets falls back",
        COPY + "head -c 3000000 /dev/zero | tr '\\0' '[' > " + NEWEST + "/state.json && {train} -q",
        code=0, says=FALLS_BACK,
    ),
    Case(
        "a file that state.json does not list is not read",
        COPY + "cp {tools}/../../CMakePresets.json " + NEWEST + "/model.safetensors.index.json && {fovea} generate " + NEWEST +
        " a",
        says=("index.json", "not listed"),
    ),
    Case(
        "a link to a device is not replaced by a file",
        "ln -s /dev/null out; {fovea} attention " + CASE_FILE + " --out out; code=$?; [ -L out ] && exit $code",
        code=1, says=("expected a regular file", "a device"),
    ),
    Case(
        "a pipe is not replaced by a file",
        "mkfifo out; {fovea} attention " + CASE_FILE + " --out out; code=$?; [ -p out ] && exit $code",
        code=1, says=("expected a regular file",),
    ),
    Case(
        "a link to a file is followed",
        "echo old > file; ln -s file out; {fovea} attention " + CASE_FILE + " --out out && [ -L out ] && "
        "[ $(stat -c %s file) -gt 100 ]",
        code=0,
    ),
    Case(
        "a file where a folder is asked for is refused before the work",
        "echo old > out; {fovea} data train-tokenizer {text} --out out",
        code=1, says=("'out'",), never=("merging",),
    ),
    Case(
        "a file-size limit is an error like a full disk, and the next run finishes",
        "(ulimit -f 40; {train}; [ $? = 1 ]) && {train} -q && {fovea} checkpoint verify run",
        code=0, says=("cannot write", "ulimit -f"),
    ),
]
