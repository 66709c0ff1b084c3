"""Signals and kills at any moment.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

from case import Case

# A run long enough to be met, in the background; bash starts it with SIGINT ignored, so that one is for cli_test.
LONG = "{train} train.steps=100000 train.checkpoint_interval=0 train.evaluation_interval=0"
STARTED = " & run=$!; until [ -s run/metrics.jsonl ]; do sleep 0.05; done; "
SAME = "cmp run/checkpoints/0000000012/model.safetensors {run}/checkpoints/0000000012/model.safetensors"

CASES = [
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
