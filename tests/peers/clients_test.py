#!/usr/bin/env python3
"""Real clients against `fovea serve`: the `openai` package, prometheus_client's parser, curl as in docs/serving.md.

    tests/peers/clients_test.py FOVEA FOLDER

A small random model is made in FOLDER. Clients that this Python lacks are named in one line each and not run;
`make python-peers` has them.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import json
import math
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time

import served

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
KEY = "a-key-of-the-test"
failures = []


def check(condition, part: str, what: str) -> None:
    if not condition:
        failures.append(f"{part}: {what}")


def expect(part: str, kind: type, run, status: int | None = None):
    """The error that a call must raise."""
    try:
        run()
    except kind as error:
        check(status is None or error.status_code == status, part, f"status {getattr(error, 'status_code', None)}, not {status}")
        return error
    except Exception as error:  # noqa: BLE001
        check(False, part, f"raised {type(error).__name__}: {error}")
        return None
    check(False, part, f"raised no {kind.__name__}")
    return None


def test_completions(client) -> None:
    part = "openai completions"
    answer = client.completions.create(model="tiny", prompt="the key", max_tokens=6, temperature=0, logprobs=3, echo=True)
    lists = answer.choices[0].logprobs
    check(answer.choices[0].text.startswith("the key"), part, f"echo: {answer.choices[0].text!r}")
    check(answer.usage.completion_tokens == 6 and answer.choices[0].finish_reason == "length", part, f"{answer.usage}")
    check(len(lists.tokens) == len(lists.token_logprobs) == len(lists.top_logprobs) == len(lists.text_offset), part, "lists of unequal length")
    check(lists.token_logprobs[0] is None and all(value <= 0 for value in lists.token_logprobs[1:]), part, f"{lists.token_logprobs}")
    check(all(math.isclose(max(top.values()), value, abs_tol=1e-4) for top, value in
              list(zip(lists.top_logprobs, lists.token_logprobs))[-6:]), part, "greedy tokens are not the likeliest")
    several = client.completions.create(model="tiny", prompt=["the", "a key"], n=2, max_tokens=4, seed=3)
    check([choice.index for choice in several.choices] == [0, 1, 2, 3], part, "choices of two prompts, two each")
    again = client.completions.create(model="tiny", prompt=["the", "a key"], n=2, max_tokens=4, seed=3)
    check([c.text for c in several.choices] == [c.text for c in again.choices], part, "a seed gives other texts")
    stopped = client.completions.create(model="tiny", prompt="the key", max_tokens=40, temperature=0, stop=answer.choices[0].text[9:11])
    check(stopped.choices[0].finish_reason == "stop", part, f"stop text: {stopped.choices[0]}")


def test_chat(client) -> None:
    part = "openai chat"
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Where is the key?"}]
    whole = client.chat.completions.create(model="tiny", messages=messages, max_completion_tokens=12, temperature=0, logprobs=True, top_logprobs=2)
    content = whole.choices[0].logprobs.content
    check(len(content) == whole.usage.completion_tokens == 12, part, f"{len(content)} log-probabilities")
    check(b"".join(bytes(one.bytes) for one in content).decode(errors="replace") == whole.choices[0].message.content, part, "bytes of tokens are not the text")
    check(all(len(one.top_logprobs) == 2 for one in content), part, "two alternatives were asked for")
    streamed, usage, roles = "", None, []
    for event in client.chat.completions.create(model="tiny", messages=messages, max_completion_tokens=12, temperature=0, stream=True,
                                                stream_options={"include_usage": True}):
        usage = event.usage or usage
        for choice in event.choices:
            roles.append(choice.delta.role)
            streamed += choice.delta.content or ""
    check(streamed == whole.choices[0].message.content, part, f"streamed {streamed!r}, whole {whole.choices[0].message.content!r}")
    check(usage is not None and usage.completion_tokens == 12 and roles[0] == "assistant", part, f"usage {usage}, roles {roles[:1]}")


def test_errors(openai, client, server) -> None:
    part = "openai errors"
    error = expect(part, openai.BadRequestError, lambda: client.completions.create(model="tiny", prompt="a", temperature=3.0), 400)
    check(error and error.param == "temperature", part, f"param {getattr(error, 'param', None)}")
    expect(part, openai.NotFoundError, lambda: client.completions.create(model="no-such", prompt="a"), 404)
    error = expect(part, openai.BadRequestError, lambda: client.completions.create(model="tiny", prompt="key " * 9000), 400)
    check(error and error.code == "context_length_exceeded" and "8192" in error.message, part, f"too long: {error}")
    error = expect(part, openai.BadRequestError, lambda: client.completions.create(model="tiny", prompt="a", extra_body={"unheard_of": 1}), 400)
    check(error and "unheard_of" in error.message, part, f"unknown field: {error}")
    expect(part, openai.BadRequestError, lambda: client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "a"}], tools=[{"type": "function", "function": {"name": "f"}}]), 400)
    stranger = openai.OpenAI(base_url=server.address + "/v1", api_key="wrong", max_retries=0)
    expect(part, openai.AuthenticationError, stranger.models.list, 401)
    part = "openai timeouts"
    hasty = openai.OpenAI(base_url=server.address + "/v1", api_key=KEY, max_retries=1, timeout=0.05)
    expect(part, openai.APITimeoutError, lambda: hasty.completions.create(model="tiny", prompt="a", max_tokens=8000))
    nobody = openai.OpenAI(base_url=f"http://127.0.0.1:{served.free_port()}/v1", api_key=KEY, max_retries=2)
    expect(part, openai.APIConnectionError, lambda: nobody.models.list())


def test_cancellation(client, server) -> None:
    part = "openai cancellation"
    stream = client.completions.create(model="tiny", prompt="the key", max_tokens=8000, stream=True)
    for number, _ in enumerate(stream):
        if number == 3:
            break
    stream.close()
    end = time.monotonic() + 20
    while time.monotonic() < end and server.metric("vllm:num_requests_running") > 0:
        time.sleep(0.02)
    check(server.metric("vllm:num_requests_running") == 0, part, "a closed stream still runs")


def test_openai(server) -> None:
    try:
        import openai
    except ImportError:
        print("clients_test: openai: not run: this Python has no package openai (make python-peers)")
        return
    client = openai.OpenAI(base_url=server.address + "/v1", api_key=KEY, max_retries=0)
    check([model.id for model in client.models.list()] == ["tiny"], "openai models", "expected one model, tiny")
    test_completions(client)
    test_chat(client)
    test_errors(openai, client, server)
    test_cancellation(client, server)


def test_metrics(server) -> None:
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        print("clients_test: prometheus_client: not run: this Python lacks it (make python-peers)")
        return
    families = list(text_string_to_metric_families(server.get("/metrics")[1]))
    names = {family.name for family in families}
    for name in ("vllm:num_requests_running", "vllm:prompt_tokens", "vllm:generation_tokens", "vllm:time_to_first_token_seconds"):
        check(name in names, "prometheus", f"no metric {name} among {sorted(names)}")
    for family in families:
        check(family.documentation and family.type != "unknown", "prometheus", f"{family.name} has no help or type")
        if family.type == "histogram":
            counts = [s.value for s in family.samples if s.name.endswith("_bucket")]
            check(counts and any(s.name.endswith("_count") for s in family.samples), "prometheus", f"{family.name} is no whole histogram")


def curl_lines() -> list[str]:
    """The curl commands of the documentation's shell blocks, continued lines joined."""
    text = (ROOT / "docs" / "serving.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", text, re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("curl ") and "127.0.0.1:8000" in line]


def test_curl(fovea: str, folder: pathlib.Path, model: pathlib.Path) -> None:
    if shutil.which("curl") is None:
        print("clients_test: curl: not run: it is not installed")
        return
    lines = curl_lines()
    check(len(lines) > 0, "curl", "docs/serving.md has no curl line")
    with served.Server(fovea, model, folder / "curl.log", "--name", "mine") as server:
        for line in lines:
            command = line.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
            done = subprocess.run(["bash", "-c", command.replace("curl ", "curl -sS --fail-with-body ", 1)], capture_output=True, text=True, timeout=120)
            check(done.returncode == 0, "curl", f"{shlex.quote(line)}: {done.stdout}{done.stderr}")


def main() -> int:
    served.run_with_peers("openai", "prometheus_client")
    fovea, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    model = served.write_model(folder / "tiny")
    with served.Server(fovea, model, folder / "clients.log", environment={**os.environ, "FOVEA_API_KEY": KEY}) as server:
        test_openai(server)
        test_metrics(server)
    test_curl(fovea, folder, model)
    for failure in failures:
        print("FAILED", failure)
    print(f"clients_test: {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
