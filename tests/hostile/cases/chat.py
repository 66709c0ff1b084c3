"""Turns, commands and batches that cannot be answered.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

from case import Case

CHAT = " | {fovea} chat {model} --json --max-tokens 3"
BATCH = " | {fovea} generate {model} --prompts - --max-tokens 3 -q"


def second_line(name: str, line: str, *words: str) -> Case:
    """A batch whose second line is wrong: nothing is answered, and the line is named."""
    return Case(name, "printf '%s\\n' '{\"prompt\": \"a\"}' '" + line + "'" + BATCH, says=("stdin:2", *words),
                never=("finish_reason",))


CASES = [
    Case(
        "a command without a value leaves the conversation as it is",
        "printf 'a\\n/set x\\nb\\n'" + CHAT,
        code=0, says=("expected key=value",), prints=('"turn":"a"', '"turn":"b"'),
    ),
    Case(
        "no command ends a chat but /exit",
        "printf '%s\\n' '/set temperature=hot' '/set temperature=nan' '/set stop.9=1' '/set ..=1' '/set a.b.c=[[[[' "
        "'/set max_tokens=-1' '/set top_p=1e999' '/set =' '/set' '/set stop=\"' / // /undo /undo /new /show ab" + CHAT,
        code=0, prints=('"turn":"ab"',), says=("of 32 positions",),
    ),
    Case(
        "a turn that is too long leaves the conversation as it is",
        "printf 'a\\n%0100d\\nb\\n' 0" + CHAT + " --when-full stop",
        code=0, says=("at most 32 tokens",), prints=('"turn":"b"',),
    ),
    Case(
        "bytes that are no text are a turn",
        "printf '\\377\\376\\000ab\\nb\\n'" + CHAT,
        code=0, prints=('"turn":"b"',),
    ),
    second_line("a prompt that is too long is named before any is answered", '{"prompt": "' + 60 * "x" + '"}', "at most 32"),
    second_line("a prompt that is a number is refused", '{"prompt": 5}', "'prompt'", "5"),
    second_line("a prompt that is null is refused", '{"prompt": null}', "'prompt'"),
    second_line("a stop string that is a number is refused", '{"prompt": "a", "stop": [5]}', "'stop'", "a list of texts"),
    second_line("stop strings that are one text are refused", '{"prompt": "a", "stop": "x"}', "'stop'"),
    second_line("an empty stop string is refused", '{"prompt": "a", "stop": [""]}', "stop"),
    second_line("a number that is a text is refused", '{"prompt": "a", "max_tokens": "5"}', "'max_tokens'", "a number"),
    second_line("a number of tokens below zero is refused", '{"prompt": "a", "max_tokens": -1}', "'max_tokens'"),
    second_line("a number that no float holds is refused", '{"prompt": "a", "temperature": 1e999}'),
    second_line("a number that is NaN is refused", '{"prompt": "a", "temperature": NaN}'),
    second_line("a key that stands twice is refused", '{"prompt": "a", "prompt": "b"}', "prompt"),
    second_line("a key that is unknown is refused", '{"prompt": "a", "top_q": 1}', "top_q"),
    second_line("a line that is no object is refused", '["prompt"]', "JSON object"),
    second_line("a torn line is refused", '{"prompt": "a'),
    Case("a batch of blank lines is refused", "printf '\\n \\n\\n'" + BATCH, says=("got none",)),
]
