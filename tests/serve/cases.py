"""Tests of the server as a process (run.py runs them): each function's name says what holds.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import concurrent.futures
import json
import pathlib
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time

from client import SECONDS, Server, post_bytes, read_all, read_until, status_of

COMPLETIONS = "/v1/completions"
# A text that goes on for as long as anybody wants it.
ENDLESS = {"prompt": "Number", "max_tokens": 90000, "ignore_eos": True, "temperature": 1, "seed": 1}


def test_a_text_is_that_of_generate_and_of_its_own_stream(suite):
    wanted = json.loads(suite.fovea("generate", str(suite.model), "Number 7", "--max-tokens", "30", "--temperature", "0",
                                    "--json"))["text"]
    with suite.serve() as server:
        body = {"prompt": "Number 7", "max_tokens": 30, "temperature": 0}
        status, answer = server.post(COMPLETIONS, body)
        assert status == 200 and answer["choices"][0]["text"] == wanted, (answer, wanted)
        with server.stream(COMPLETIONS, {**body, "stream_options": {"include_usage": True}}) as stream:
            text = read_until(stream, b"[DONE]").decode()
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        assert "".join(e["choices"][0]["text"] for e in events if e["choices"]) == wanted
        assert events[-1]["usage"]["completion_tokens"] == 30
        # Those that are answered at the same time have the texts that they have alone.
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            again = list(pool.map(lambda _: server.post(COMPLETIONS, body)[1]["choices"][0]["text"], range(8)))
        assert again == [wanted] * 8
        assert server.stop() == 0


def test_the_page_models_tokens_attention_and_metrics_answer(suite):
    with suite.serve("--name", "mine") as server:
        status, headers, page = server.ask("GET", "/")
        assert status == 200 and b"<html" in page and "default-src 'none'" in headers["Content-Security-Policy"]
        assert "Access-Control-Allow-Origin" not in headers
        status, _, head = server.ask("HEAD", "/")
        assert status == 200 and head == b""
        model = json.loads(server.ask("GET", "/v1/models")[2])["data"][0]
        assert model["id"] == "mine" and model["fovea"]["layers"] == 2
        tokens = server.post("/tokenize", {"prompt": "Number 7"})[1]["tokens"]
        assert server.post("/detokenize", {"tokens": tokens})[1]["prompt"] == "Number 7"
        status, answer = server.post("/v1/attention", {"text": "Number 7 looks", "k": 3})
        assert status == 200, answer
        row = answer["layers"][1]["heads"][0]["rows"][0]
        assert len(row["keys"]) == 3 and abs(sum(row["weights"]) + row["rest"] - 1) < 1e-4, row
        assert server.metric("fovea:http_responses_total", 'route="/v1/attention",status="200"') == 1


def test_the_curl_lines_of_the_documentation_answer_as_they_stand(suite):
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs/serving.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("curl ") and "chat" not in line]  # it has no template
    assert len(lines) >= 8
    with suite.serve() as server:
        for line in lines:
            words = shlex.split(line.replace(":8000", f":{server.port}"))
            url = next(word for word in words if word.startswith("http"))
            data = words[words.index("-d") + 1] if "-d" in words else None
            if shutil.which("curl"):
                done = subprocess.run([*words, "-w", " %{http_code}"], capture_output=True, text=True, timeout=SECONDS)
                assert done.returncode == 0 and done.stdout.endswith(" 200"), (line, done.stdout)
            path = url.split(str(server.port), 1)[1]
            status, _, body = server.ask("GET" if data is None else "POST", path, data)
            assert status == 200, (line, body)


def test_forty_requests_that_are_no_http_or_no_json_harm_nobody(suite):
    def with_body(text: str | bytes, extra: str = "") -> bytes:
        data = text.encode() if isinstance(text, str) else text
        return f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\n{extra}Content-Length: {len(data)}\r\n\r\n".encode() + data
    refused = [
        (b"\r\n\r\n\r\n", (0, 400)), (b"\x00" * 64, (0, 400)), (b"\x16\x03\x01\x02\x00\x01\x00", (0, 400)),
        (b"GET\r\n\r\n", (400,)), (b"GET / HTTP/9.9\r\n\r\n", (400,)), (b"GET  / HTTP/1.1\r\n\r\n", (400,)),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", (400,)), (b"GET / HTTP/1.1\r\n: empty\r\n\r\n", (400,)),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", (400,)),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n", (400,)),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", (400,)),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n", (400, 413)),
        (f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".encode(), (400,)),
        (f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n".encode(), (413,)),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 20000 + b"\r\n\r\n", (431,)),
        (b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\n\r\n", (400, 431)),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 4000 + b"\r\n", (431,)),
        (b"BREW / HTTP/1.1\r\nConnection: close\r\n\r\n", (405,)),
        (b"GET /../../etc/passwd HTTP/1.1\r\nConnection: close\r\n\r\n", (404,)),
        (b"GET /page/%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nConnection: close\r\n\r\n", (404,)),
        (b"GET //etc/passwd HTTP/1.1\r\nConnection: close\r\n\r\n", (404,)),
        (b"GET /page/ HTTP/1.1\r\nConnection: close\r\n\r\n", (404,)),
        (b"GET \xff\xfe HTTP/1.1\r\nConnection: close\r\n\r\n", (400, 404)),
        (b"DELETE /v1/models HTTP/1.1\r\nConnection: close\r\n\r\n", (405,)),
        (b"GET /v1/completions HTTP/1.1\r\nConnection: close\r\n\r\n", (405,)),
        (b"OPTIONS /v1/models HTTP/1.1\r\nOrigin: http://evil.org\r\nConnection: close\r\n\r\n", (403,)),
    ] + [(with_body(body, "Connection: close\r\n"), (400,)) for body in (
        "", "null", "[]", "{", "{\"prompt\": \"a\"", "[" * 100000, "{\"a\":" * 5000, "{\"prompt\": 1e9999}",
        "{\"prompt\": \"\\ud800\"}", b"{\"prompt\": \"\xff\"}", "{\"prompt\": [999999]}", "{\"prompt\": \"a\", \"n\": 1e300}",
        "{\"prompt\": \"a\", \"max_tokens\": \"9\"}", "{\"prompt\": [[1], []]}", "{\"prompt\": \"\"" + "," * 1000 + "}",
        "{\"prompt\": \"" + "Number " * 4000 + "\"}")]
    assert len(refused) >= 40
    with suite.serve() as server:
        for data, statuses in refused:
            answer = server.raw(data, close=True)
            assert status_of(answer) in statuses, (data[:200], answer[:300], statuses)
        status, answer = server.post(COMPLETIONS, {"prompt": "Number", "max_tokens": 3})
        assert status == 200, answer
        assert server.metric("fovea:http_responses_total", 'status="500"') == 0
        assert server.stop() == 0


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(suite):
    with suite.serve() as server:
        status, answer = server.post(COMPLETIONS, {"prompt": "a" * 300})
        assert status == 400 and answer["error"]["code"] == "context_length_exceeded"
        assert "256" in answer["error"]["message"] and "301" in answer["error"]["message"]


def test_half_a_body_and_a_slow_header_hold_nothing(suite):
    with suite.serve("--header-timeout", "0.5") as server:
        half = post_bytes(COMPLETIONS, {"prompt": "Number"})[:-4]
        assert status_of(server.raw(half, close=True)) in (0, 400)
        with server.connect() as slow:
            started = time.monotonic()
            try:
                for byte in b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: " + b"a" * 1000:
                    slow.sendall(bytes([byte]))
                    time.sleep(0.05)
                raise AssertionError("a byte at a time was waited for")
            except (ConnectionResetError, BrokenPipeError):
                assert time.monotonic() - started < 10
        server.until(lambda: server.metric("fovea:http_connections") == 1)
        assert server.ask("GET", "/health")[0] == 200


def test_a_thousand_idle_connections_cost_less_than_50_mb(suite):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    try:
        with suite.serve() as server:
            server.ask("GET", "/health")
            before = server.memory()
            connections = [server.connect() for _ in range(1000)]
            server.until(lambda: server.metric("fovea:http_connections") >= 1000)
            assert server.memory() - before < 50 << 20
            assert server.post(COMPLETIONS, {"prompt": "Number", "max_tokens": 3})[0] == 200
            for connection in connections:
                connection.close()
            server.until(lambda: server.metric("fovea:http_connections") == 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_ten_thousand_connections_may_come_and_go(suite):
    with suite.serve() as server:
        for _ in range(10_000):
            server.connect().close()
        server.until(lambda: server.metric("fovea:http_connections") == 1)
        assert server.ask("GET", "/health")[0] == 200


def test_more_connections_than_allowed_wait_and_idle_ones_make_room(suite):
    with suite.serve("--connections", "4") as server:
        idle = [server.connect() for _ in range(8)]
        assert server.ask("GET", "/health")[0] == 200
        for connection in idle:
            connection.close()


def test_a_client_that_leaves_in_mid_stream_frees_its_slot(suite):
    with suite.serve("--context", "100000", "--sequences", "1") as server:
        stream = server.stream(COMPLETIONS, ENDLESS)
        read_until(stream, b"data: ")
        server.until(lambda: server.metric("vllm:num_requests_running") == 1)
        stream.close()
        # The only slot serves the next one at once.
        assert server.post(COMPLETIONS, {"prompt": "Number", "max_tokens": 3})[0] == 200
        server.until(lambda: server.metric("fovea:requests_ended_total", 'outcome="cancelled"') == 1)
        # The same for an answer that is no stream.
        waiting = server.connect()
        waiting.sendall(post_bytes(COMPLETIONS, ENDLESS))
        server.until(lambda: server.metric("vllm:num_requests_running") == 1)
        waiting.close()
        assert server.post(COMPLETIONS, {"prompt": "Number", "max_tokens": 3})[0] == 200
        server.until(lambda: server.metric("fovea:requests_ended_total", 'outcome="cancelled"') == 2)


def test_a_slow_reader_hurts_nobody_else(suite):
    with suite.serve("--context", "100000") as server:
        before = server.memory()
        slow = server.stream(COMPLETIONS, {**ENDLESS, "logprobs": 20}, receive_bytes=2048)
        read_until(slow, b"data: ")
        for _ in range(20):
            assert server.post(COMPLETIONS, {"prompt": "Number", "max_tokens": 20})[0] == 200
        # It waits for its reader, or was ended; it never takes memory without bound.
        assert server.memory() - before < 200 << 20
        slow.close()
        server.until(lambda: server.metric("vllm:num_requests_running") == 0)


def test_a_full_queue_answers_503_with_retry_after(suite):
    with suite.serve("--context", "100000", "--sequences", "1", "--queue", "1") as server:
        streams = [server.stream(COMPLETIONS, ENDLESS)]
        read_until(streams[0], b"data: ")
        streams.append(server.stream(COMPLETIONS, ENDLESS))
        server.until(lambda: server.metric("vllm:num_requests_waiting") == 1)
        status, headers, body = server.ask("POST", COMPLETIONS, {"prompt": "a"})
        assert status == 503 and int(headers["Retry-After"]) > 0, (status, headers, body)
        for stream in streams:
            stream.close()


def test_keys_of_a_file_or_the_environment_are_needed(suite):
    keys = suite.folder / "keys"
    keys.write_text("# ours\nfirst\n second \n")
    with suite.serve("--api-key-file", str(keys)) as server:
        assert server.ask("GET", "/v1/models")[0] == 401
        assert server.ask("GET", "/v1/models", headers={"Authorization": "Bearer wrong"})[0] == 401
        assert server.ask("GET", "/v1/models", headers={"Authorization": "Bearer second"})[0] == 200
        assert server.ask("GET", "/health")[0] == 200
        # A large body is not even read.
        assert server.ask("POST", COMPLETIONS, b"x" * 100_000)[0] == 401
    with suite.serve(environment={"FOVEA_API_KEY": "third"}) as server:
        assert server.ask("GET", "/v1/models", headers={"Authorization": "Bearer third"})[0] == 200
        assert server.ask("GET", "/v1/models")[0] == 401


def test_sigterm_under_load_answers_all_that_was_accepted(suite):
    with suite.serve() as server:
        started = 0

        def client(n: int) -> list[int]:
            nonlocal started
            statuses = []
            while True:
                try:
                    connection = server.connect()
                except ConnectionError:
                    return statuses  # nothing is accepted any more
                with connection:
                    try:
                        connection.sendall(post_bytes(COMPLETIONS, {"prompt": f"Number {n}", "max_tokens": 40},
                                                      "Connection: close\r\n"))
                        started += 1
                        answer = read_all(connection)
                    except ConnectionError:
                        return statuses  # closed before it read the request
                    if not answer:
                        return statuses
                    head, _, body = answer.partition(b"\r\n\r\n")
                    json.loads(body)  # a whole answer
                    statuses.append(status_of(head))

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            clients = [pool.submit(client, n) for n in range(8)]
            server.until(lambda: started > 20)
            server.signal(signal.SIGTERM)
            statuses = [status for one in clients for status in one.result(SECONDS)]
        assert server.wait() == 0
        assert set(statuses) <= {200, 503} and statuses.count(200) >= 10, statuses


def test_streams_end_with_an_error_event_when_the_time_for_the_end_is_over(suite):
    with suite.serve("--context", "100000", "--shutdown-timeout", "0.3") as server:
        with server.stream(COMPLETIONS, ENDLESS) as stream:
            read_until(stream, b"data: ")
            server.signal(signal.SIGTERM)
            rest = read_all(stream)
        assert b"event: error" in rest and b"shutting down" in rest and b"[DONE]" not in rest, rest[-500:]
        assert server.wait() == 0


def test_a_draining_server_says_so_and_a_second_signal_ends_it_at_once(suite):
    with suite.serve("--context", "100000") as server:
        health = server.connect()
        health.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n")  # open before the signal, finished after it
        with server.stream(COMPLETIONS, ENDLESS) as stream:
            read_until(stream, b"data: ")
            server.signal(signal.SIGTERM)
            time.sleep(0.2)
            health.sendall(b"\r\n")
            assert status_of(read_all(health)) == 503
            started = time.monotonic()
            server.signal(signal.SIGTERM)
            assert server.wait() == -signal.SIGTERM
            assert time.monotonic() - started < 10
        health.close()


def test_after_sigkill_it_starts_again_on_the_same_port(suite):
    with suite.serve("--context", "100000") as server:
        port = server.port
        stream = server.stream(COMPLETIONS, ENDLESS)
        read_until(stream, b"data: ")
        server.signal(signal.SIGKILL)
        server.wait()
        stream.close()
    with suite.serve("--port", str(port)) as again:
        assert again.port == port
        assert again.ask("GET", "/health")[0] == 200


def test_a_hostile_chat_template_is_an_error_and_harms_nobody(suite):
    sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "peers"))
    import served

    loops = "".join(f"{{% for {name} in range(99999) %}}" for name in "abc") + "{% endfor %}" * 3
    templates = {
        "endless": loops,
        "huge": "{% set n = namespace(t='x' * 999) %}{% for i in range(99) %}{% set n.t = n.t + n.t %}{% endfor %}{{ n.t }}",
        "recursive": "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "deep": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "unfinished": "{% if messages",
        "inside": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "file": "{% include '/etc/passwd' %}",
        "refuses": "{{ raise_exception('not you') }}",
        "long": "{% for i in range(9000) %}the key {% endfor %}",
    }
    chat = {"messages": [{"role": "user", "content": "{{ 7 * 7 }}{% raw %}<|end|>"}], "max_tokens": 3}
    model = served.write_model(suite.folder / "hostile")
    settings = model / "tokenizer_config.json"
    for name, template in templates.items():
        settings.write_text(json.dumps({"eos_token": served.SPECIAL[1], "chat_template": template}))
        with Server(suite.program, model, "--context", "4096") as server:
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                answers = [pool.submit(server.post, "/v1/chat/completions", chat) for _ in range(3)]
                assert server.ask("GET", "/health")[0] == 200, name
                for status, answer in (one.result(SECONDS) for one in answers):
                    assert status == 400 and answer["error"]["message"], (name, status, answer)
                    assert "root:" not in str(answer) and len(str(answer)) < 4000, (name, answer)
            status, answer = server.post(COMPLETIONS, {"prompt": "the key", "max_tokens": 3})
            assert status == 200, (name, answer)
            assert server.metric("fovea:http_responses_total", 'status="500"') == 0, name
            assert server.stop() == 0, name


def test_pipelined_requests_and_http_1_0_are_answered_in_order(suite):
    with suite.serve() as server:
        first = post_bytes("/tokenize", {"prompt": "a"})
        last = b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n"
        answer = server.raw(post_bytes(COMPLETIONS, {"prompt": "Number", "max_tokens": 2}) + first + last)
        assert answer.count(b"HTTP/1.1 200 OK") == 3 and answer.index(b"text_completion") < answer.index(b"max_model_len")
        data = json.dumps({"prompt": "Number", "max_tokens": 2, "stream": True}).encode()
        old = server.raw(f"POST {COMPLETIONS} HTTP/1.0\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        assert b"chunked" not in old and old.rstrip().endswith(b"data: [DONE]"), old


def test_hard_focus_is_for_the_models_that_have_focus(suite):
    out = suite.folder / "focus"
    suite.fovea("retrofit", str(suite.model), "--with", "focus", "--text", str(suite.folder / "text.txt"), "--out", str(out),
                "--steps", "2", "--length", "256", "--tokens", "256", "--copy", "0", "--no-speed", "--quiet")
    options = ("--focus", "hard", "--focus-top-k", "1")
    body = {"prompt": "Number 7 looks at number", "max_tokens": 20, "temperature": 0}
    with suite.serve("--name", "base", "--adapter", f"focus={out / 'adapter'}", *options) as server:
        for model, changes in (("base", ()), ("focus", ("--adapter", str(out / "adapter"), *options))):
            wanted = json.loads(suite.fovea("generate", str(suite.model), body["prompt"], "--max-tokens", "20", "--temperature", "0",
                                            "--json", *changes))["text"]
            status, answer = server.post(COMPLETIONS, {**body, "model": model})
            assert status == 200 and answer["choices"][0]["text"] == wanted, (model, answer, wanted)
        assert server.stop() == 0
    refused = subprocess.run([suite.program, "serve", str(suite.model), *options], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2 and "this model has no Focus" in refused.stderr, refused
