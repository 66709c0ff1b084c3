#!/usr/bin/env python3
"""Compares prompts of real chat templates with jinja2, set up as `transformers` sets it up.

    python3 tests/peers/check_chat_templates.py PLACE... [--build BUILD] [--conversations N]

A PLACE is a file with a template (*.jinja), a tokenizer_config.json, a GGUF file (read with the package `gguf`), or a folder
that holds one of them. Needs the package jinja2. Prints, for each template, how many prompts are equal, how many conversations both
refuse, and every difference. With --tools, conversations have tool definitions, calls and results too.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/golden"))
from make_chat_cases import environment  # noqa: E402

CONTENTS = ["", "Hi", "What is 2 + 2?", "  spaces at both ends \n", "\n\ntwo lines\n\nand an end\n", "\t", "naïve 日本語 🙂",
            "a 'quote', a \"quote\" and a \\ backslash", "<|im_start|>system\nnot a mark<|im_end|>", "{{ 7 * 7 }} {% if %}",
            "<think>\nlong thoughts\n</think>\n\nthe answer", "</think> only the end", "<b>&amp;</b>", "x" * 300, "null", "\u00a0nbsp\u2003"]
ROLES = ["system", "user", "assistant", "tool", "developer", "ipython", "critic"]
TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "The weather of a \"city\" <now>.",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "name, as in 'Zürich'"},
        "days": {"type": "integer", "enum": [1, 3, 7], "default": 3},
        "units": {"type": ["string", "null"]},
        "where": {"type": "array", "items": {"type": "number"}}}}}},
         {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}}]
VARIABLES = [{}, {"enable_thinking": False}, {"enable_thinking": True}, {"date_string": "1 May 2025"},
             {"thinking": True, "keep_past_thinking": True}, {"reasoning_effort": "low"}, {"documents": []}]


def templates_of(place: pathlib.Path):
    """Name, template and special tokens of each template in the place."""
    if place.is_dir():
        inside = [path for name in ("chat_template.jinja", "tokenizer_config.json", "*.gguf") for path in sorted(place.glob(name))]
        if not inside:
            raise SystemExit(f"{place}: no chat_template.jinja, tokenizer_config.json or *.gguf")
        place = inside[0]
    if place.suffix == ".gguf":
        import gguf
        field = gguf.GGUFReader(place).fields["tokenizer.chat_template"]
        yield place.name, bytes(field.parts[field.data[0]]).decode()
    elif place.suffix == ".json":
        found = json.loads(place.read_text())["chat_template"]
        for entry in [{"name": "default", "template": found}] if isinstance(found, str) else found:
            yield f"{place.parent.name}:{entry['name']}", entry["template"]
    else:
        yield place.name, place.read_text()


def conversation(rng: random.Random, tools: bool) -> list[dict]:
    """Mostly turns in order, sometimes roles in any order."""
    messages = [{"role": "system", "content": rng.choice(CONTENTS)}] if rng.random() < 0.5 else []
    turns = rng.randrange(0, 6)
    if rng.random() < 0.2:
        return [{"role": rng.choice(ROLES), "content": rng.choice(CONTENTS)} for _ in range(turns)]
    for turn in range(turns):
        role = "user" if turn % 2 == 0 else "assistant"
        message = {"role": role, "content": rng.choice(CONTENTS)}
        if tools and role == "assistant" and rng.random() < 0.6:
            call = {"name": "weather", "arguments": {"city": "Zürich \"C\"", "days": 3, "deep": {"a": [1, 2.5, None, True]}}}
            message["tool_calls"] = [{"type": "function", "id": "call12345", "function": call}] * rng.randrange(1, 3)
            if rng.random() < 0.3:
                message["content"] = rng.choice([None, ""])
            if rng.random() < 0.3:
                message["reasoning_content"] = "some thoughts"
            messages += [message, {"role": "tool", "name": "weather", "tool_call_id": "call12345", "content": rng.choice(CONTENTS)}]
        else:
            messages.append(message)
    return messages


def cases(rng: random.Random, count: int, tools: bool) -> list[dict]:
    made = []
    for _ in range(count):
        case = {"messages": conversation(rng, tools), "tools": None, "documents": None,
                "add_generation_prompt": rng.random() < 0.7, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        if tools and rng.random() < 0.7:
            case["tools"] = TOOLS[:rng.randrange(1, 3)]
        made.append(case | rng.choice(VARIABLES))
    return made


def theirs(template: str, variables: list[dict]) -> list[dict]:
    compiled = environment().from_string(template)
    results = []
    for case in variables:
        try:
            results.append({"prompt": compiled.render(**case)})
        except Exception as error:  # whatever a template raises
            results.append({"error": f"{type(error).__name__}: {error}"})
    return results


def compare(name: str, template: str, variables: list[dict], build: pathlib.Path) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        text, file = pathlib.Path(folder, "template"), pathlib.Path(folder, "cases.json")
        text.write_bytes(template.encode())
        file.write_text(json.dumps(variables))
        done = subprocess.run([build / "bin/peer_prompts", text, file], capture_output=True, text=True)
    if done.returncode != 0:
        print(f"NOT  {name:50} {done.stderr.strip()}")
        return False
    ours = json.loads(done.stdout)
    expected = theirs(template, variables)
    different = [i for i, (a, b) in enumerate(zip(ours, expected)) if a.get("prompt") != b.get("prompt")]
    refused = sum("error" in result for result in expected)
    print(f"{'FAIL' if different else 'ok  '} {name:50} {len(ours) - len(different) - refused:5} prompts equal, "
          f"{refused} refused, {len(different)} different")
    for i in different[:2]:
        print(f"     case   {json.dumps(variables[i], ensure_ascii=False)[:600]}\n     ours   {json.dumps(ours[i], ensure_ascii=False)[:1500]}"
              f"\n     jinja2 {json.dumps(expected[i], ensure_ascii=False)[:1500]}")
    return not different


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("places", nargs="+", type=pathlib.Path)
    parser.add_argument("--build", default=ROOT / "build", type=pathlib.Path)
    parser.add_argument("--conversations", default=200, type=int)
    parser.add_argument("--tools", action="store_true")
    arguments = parser.parse_args()
    found = [template for place in arguments.places for template in templates_of(place)]
    rng = random.Random(1)
    good = [compare(name, text, cases(rng, arguments.conversations, arguments.tools), arguments.build) for name, text in found]
    print(f"{sum(good)} of {len(good)} templates equal")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
