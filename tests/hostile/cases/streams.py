"""Streams that are closed, full, or that nobody reads.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

from case import Case

# Longer than what a pipe holds, so that a write meets the closed end.
ENDLESS = "{fovea} generate {model} a --temperature 0 --max-tokens 100000 --when-full slide -q"

CASES = [
    Case(
        "training goes on when the reader of stderr has gone",
        "{train} train.log_interval=1 2> >(exit 0) && {fovea} checkpoint verify run",
        code=0, prints=("model folder:",),
    ),
    Case(
        "training goes on when stderr is full",
        "{train} 2>/dev/full && {fovea} checkpoint verify run",
        code=0, prints=("model folder:",),
    ),
    Case(
        "training with closed streams saves everything and prints into no file of its own",
        "{train} <&- >&- 2>&-; code=$?; {fovea} checkpoint verify run/checkpoints/0000000012 && "
        "grep -qx '[0-9]*' run/.lock && exit $code",
        code=1,
    ),
    Case(
        "training with a closed stderr is training",
        "{train} 2>&- && grep -qx '[0-9]*' run/.lock",
        code=0, prints=("model folder:",),
    ),
    Case("an error keeps its exit code when stderr is full", "{fovea} eval nowhere --text x 2>/dev/full", code=2),
    Case("help on a full disk is an error", "{fovea} --help > /dev/full", code=1, says=("cannot write",)),
    Case("help of a verb on a full disk is an error", "{fovea} train --help > /dev/full", code=1, says=("cannot write",)),
    Case("a text on a full disk is an error", "{fovea} generate {model} a > /dev/full", code=1, says=("cannot write",)),
    Case("a text into a closed stdout is an error", "{fovea} generate {model} a >&-", code=1, says=("cannot write",)),
    Case(
        "a text whose reader has gone ends with an error",
        ENDLESS + " | head -c 1 > /dev/null; exit ${PIPESTATUS[0]}",
        code=1, says=("Broken pipe",),
    ),
    Case("a prompt from a closed stdin is an error", "{fovea} generate {model} <&-", code=2, says=("stdin",)),
    Case("a prompt from a folder is an error", "{fovea} generate {model} < /", code=2, says=("stdin",)),
    Case("a chat with a closed stdin is an error", "{fovea} chat {model} <&-", code=1, says=("stdin",)),
    Case("a chat without input ends at once", "{fovea} chat {model} < /dev/null", code=0),
]
