#!/usr/bin/env python3
"""Writes chat_templates.json: prompts that jinja2 renders from chat templates, as `transformers` sets jinja2 up.

    python3 tests/golden/make_chat_cases.py      needs the package jinja2

Run by hand; the tests only read the file. The templates are of this project, written in the manner of the model families
whose names they carry: they use the constructs that published templates use, with marks and wording of their own.

SPDX-FileCopyrightText: The Fovea authors
SPDX-License-Identifier: Apache-2.0
"""

import datetime
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

NOW = datetime.datetime(2024, 7, 26, 14, 5, 9)


class Generation(jinja2.ext.Extension):
    """{% generation %}, which transformers adds to mark answers: its body is called as a macro is."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("body_of"), [], [], body).set_lineno(line)

    def body_of(self, caller):
        return caller()


def environment() -> jinja2.Environment:
    """jinja2 as transformers.utils.chat_template_utils configures it, at a fixed time."""
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = NOW.strftime
    return made


TEMPLATES = {}
TEMPLATES["ChatML"] = """\
{% for message in messages %}
{{ '<|turn|>' + message['role'] + '
' + message['content'] + '<|stop|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|turn|>assistant\\n' }}{% endif %}
"""
TEMPLATES["SmolLM2"] = """\
{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|turn|>system
A small model speaks.<|stop|>
' }}{% endif %}{{'<|turn|>' + message['role'] + '
' + message['content'] + '<|stop|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|turn|>assistant
' }}{% endif %}"""
TEMPLATES["Zephyr"] = """\
{% for message in messages %}
    {% if message['role'] == 'user' %}
{{ '<|you|>\\n' + message['content'] + eos_token }}
    {% elif message['role'] == 'system' %}
{{ '<|rules|>\\n' + message['content'] + eos_token }}
    {%- elif message.role == 'assistant' %}
{{ '<|me|>\\n' }}{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}

    {% endif %}
    {% if loop.last and add_generation_prompt -%}
{{ '<|me|>' }}
    {% endif %}
{% endfor %}
"""
TEMPLATES["LLaMA-2"] = """\
{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set rules = messages[0]['content'] %}\
{% else %}{% set rest = messages %}{% set rules = false %}{% endif %}\
{% for message in rest %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Turns of user and assistant must alternate: ' ~ message.role) }}{% endif %}\
{% if loop.index0 == 0 and rules != false %}{% set content = '{{RULES}}\\n' + rules + '\\n{{/RULES}}\\n\\n' + message['content'] %}\
{% else %}{% set content = message['content'] %}{% endif %}\
{% if message['role'] == 'user' %}{{ bos_token + '[ASK] ' + content.strip() + ' [/ASK]' }}\
{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""
TEMPLATES["LLaMA-3"] = """\
{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_first is defined %}
    {%- set tools_first = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system message is taken out. -#}
{%- if messages and messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{{- "<|head|>system<|/head|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Known until: December 2023\\n" }}
{{- "Today: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_first %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|end|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|head|>' + message['role'] + '<|/head|>\\n\\n'+ message['content'] | trim + '<|end|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("One call at a time!") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|head|>assistant<|/head|>\\n\\n' -}}
        {{- '{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}{{- "}<|end|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|head|>ipython<|/head|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|end|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|head|>assistant<|/head|>\\n\\n' }}
{%- endif %}
"""
TEMPLATES["Mistral"] = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}

{#- Roles must alternate; calls of tools do not count. #}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, roles must alternate user/assistant") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "][/TOOLS]" }}{%- endif %}
            {%- endfor %}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[ASK] " + system_message + "\\n\\n" + message["content"] + "[/ASK]" }}
        {%- else %}
            {{- "[ASK] " + message["content"] + "[/ASK]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[RESULT] {"content": ' + content|string + '}[/RESULT]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
"""
TEMPLATES["Qwen2.5"] = """\
{%- if tools %}
    {{- '<|turn|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You help.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n{\\"name\\": <name>, \\"arguments\\": <object>}\\n<|stop|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|turn|>system\\n' + messages[0]['content'] + '<|stop|>\\n' }}
    {%- else %}
        {{- '<|turn|>system\\nYou help.<|stop|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|turn|>' + message.role + '\\n' + message.content + '<|stop|>' + '\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|turn|>user' }}
        {%- endif %}
        {{- '\\n<result>\\n' }}
        {{- message.content }}
        {{- '\\n</result>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|stop|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|turn|>assistant\\n' }}
{%- endif %}
"""
TEMPLATES["Qwen3"] = """\
{%- if messages[0].role == 'system' %}
    {{- '<|turn|>system\\n' + messages[0].content + '<|stop|>\\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string and not(message.content.startswith('<result>') and message.content.endswith('</result>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|turn|>' + message.role + '\\n' + content + '<|stop|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query and (loop.last or (not loop.last and reasoning)) %}
            {{- '<|turn|>assistant\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|turn|>assistant\\n' + content }}
        {%- endif %}
        {{- '<|stop|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (loop.previtem.role != "tool") %}{{- '<|turn|>user' }}{%- endif %}
        {{- '\\n<result>\\n' ~ content ~ '\\n</result>' }}
        {%- if loop.last or (loop.nextitem.role != "tool") %}{{- '<|stop|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|turn|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
TEMPLATES["OLMo-2"] = """\
{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|rules|>\\n' + message['content'] + '\\n' }}\
{% elif message['role'] == 'user' %}{{ '<|you|>\\n' + message['content'] + '\\n' }}\
{% elif message['role'] == 'assistant' %}{% if not loop.last %}{{ '<|me|>\\n'  + message['content'] + eos_token + '\\n' }}\
{% else %}{{ '<|me|>\\n'  + message['content'] + eos_token }}{% endif %}{% endif %}\
{% if loop.last and add_generation_prompt %}{{ '<|me|>\\n' }}{% endif %}{% endfor %}"""
TEMPLATES["Gemma-2"] = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system role here') }}{% endif %}\
{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}\
{{ '<turn>' + role + '\\n' + message['content'] | trim + '</turn>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{'<turn>model\\n'}}{% endif %}"""
TEMPLATES["Gemma-3"] = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set prefix = messages[0]['content'] + '

' -%}
    {%- else -%}
        {%- set prefix = messages[0]['content'][0]['text'] + '

' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Roles must alternate") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<turn>' + role + '
' + (prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '</turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<turn>model
'}}
{%- endif -%}
"""
TEMPLATES["Command-R"] = """\
{%- macro type_name(spec) -%}
  {%- set names = {"string": "str", "number": "float", "integer": "int", "boolean": "bool"} -%}
  {%- if spec.type in names -%}
    {{- names[spec.type] -}}
  {%- elif spec.type == "array" -%}
    {{- "List[" + (type_name(spec["items"]) if spec.get("items") else "Any") + "]" -}}
  {%- elif spec.type is iterable and spec.type is not string -%}
    Union[{% for t in spec.type %}{{ type_name({"type": t}) }}{{ "," if not loop.last }}{% endfor %}]
  {%- else -%}
    {{- "Any" -}}
  {%- endif -%}
{%- endmacro -%}
{%- macro head(role, close=true) %}<|{{ role|upper }}|{{ ">" if close else "" }}{% endmacro -%}
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}\
{% else %}{% set loop_messages = messages %}{% set system_message = 'You are ' ~ name|default('a helper') ~ '.' %}{% endif %}
{% if system_message != false %}{{ head('system') + system_message + head(role='end') }}{% endif %}
{% for tool in (tools or []) %}
def {{ tool.function.name }}({% for key, spec in tool.function.parameters.properties.items() %}{{ ", " if not loop.first }}{{ key }}: {{ type_name(spec) }}{% if key not in tool.function.parameters.required|default([]) %} = None{% endif %}{% endfor %}) -> List[Dict]:
    {{ ('"' * 3) }}{{ tool.function.description|indent(4) }}
{% endfor %}
{% for message in loop_messages if message.role in ['user', 'assistant', 'tool'] %}
{% if message['role'] == 'user' != (loop.index0 is even) and message.role != 'tool' %}{{ raise_exception('Roles must alternate (turn %s)' if false else 'Roles must alternate') }}{% endif %}
{% set content = message['content'] %}
{{- head({'user': 'user', 'assistant': 'chatbot'}.get(message.role, 'system')) ~ content.strip() ~ head('end', false) ~ '>' -}}
{% else %}
(no turns)
{% endfor %}{% if add_generation_prompt %}{{ head('chatbot') }}{% endif %}
"""
TEMPLATES["Phi"] = """\
{% for message in messages %}{% if (message['role'] == 'system') and message['content'] %}{{'<|rules|>' + message['content'] + '<|stop|>'}}\
{% elif (message['role'] == 'user') %}{{'<|you|>' + '\\n' + message['content'] + '<|stop|>' + '\\n'}}\
{% elif message['role'] == 'assistant' %}{{'<|me|>' + '\\n' + message['content'] + '<|stop|>' + '\\n'}}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|me|>\\n' }}{% else %}{{ eos_token }}{% endif %}"""
TEMPLATES["DeepSeek"] = """\
{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}\
{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='') %}\
{%- for message in messages %}{%- if message['role'] == 'system' %}\
{%- if ns.system_prompt %}{% set ns.system_prompt = ns.system_prompt + '\\n\\n' + message['content'] %}\
{%- else %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endif %}{%- endfor %}\
{{bos_token}}{{ns.system_prompt}}\
{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<|You|>' + message['content']}}{%- endif %}\
{%- if message['role'] == 'assistant' and message['content'] is not none %}\
{%- if ns.is_tool %}{{'<|outputs end|>' + message['content'] + '<|end|>'}}{%- set ns.is_tool = false -%}\
{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}\
{{'<|Me|>' + content + '<|end|>'}}{%- endif %}{%- endif %}\
{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}{{'<|outputs|>' + message['content']}}{%- set ns.is_output_first = false %}\
{%- else %}{{'\\n' + message['content']}}{%- endif %}{%- endif %}{%- endfor -%}\
{% if ns.is_tool %}{{'<|outputs end|>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}{{'<|Me|><think>\\n'}}{% endif %}"""
TEMPLATES["loops and blocks"] = """\
{% set found = namespace(role=none) %}
{% for message in messages -%}
    {% if message.content == '' %}{% continue %}{% endif %}
    {{- loop.index }}/{{ loop.length }}/{{ loop.revindex0 }} {{ message.role|title }}
    {%+ if loop.index > 3 %}{% break %}{% endif +%}
{% endfor %}
{% set joined %}
{% for m in messages if m.role != 'system' %}{{ m.content|lower|replace('a', 'A', 2) }};{% else %}nobody{% endfor %}
{% endset %}
[{{ joined|trim(';\\n') }}]{# a comment #}
{% set shout | upper | trim %} {{ messages|map(attribute='role')|unique|join(', ') }} {% endset %}
{{ shout }}
{% with a = 1, b = messages|length %}{{ a + b }}{% endwith %}
{% for role, group in {'x': [1, 2], 'y': ()}.items() %}{{ role }}{{ group }}{{ loop.first }} {% endfor %}
{% for (i, j), k in [((1, 2), 3)] %}{{ i }}{{ j }}{{ k }}{% endfor %}
{% raw %}{{ not a tag }} {% if %}{% endraw %}

{%- for m in messages|rejectattr('role', 'in', ['system']) | list | reverse %}{% set found.role = m.role %}
  {{ loop.index0 }}{{ m.content[:5] ~ m.content[-3:] | upper }}{{ m.content|length }}
{%- endfor %}

{{ found.role }} {{ found.other is defined }} {{ messages | selectattr('content') | list | length }}
"""

TALK = [("user", "Hello"), ("assistant", "Hi, how can I help?"), ("user", "What is 2 + 2?")]
CONVERSATIONS = [
    [("user", "Hello")],
    [("system", "Be brief."), *TALK],
    [("system", "  Rules with blanks  \n"), ("user", "\n hi \t"), ("assistant", " \u00a0ok\u3000"), ("user", " ")],
    [("system", ""), ("user", ""), ("assistant", ""), ("user", "")],
    [*TALK, ("assistant", "<think>\nsum\n</think>\n\nIt is 4."), ("user", "Größe: 日本語 🙂 naïve é"), ("assistant", "GROSS ß")],
    [("user", "{{ 7 * 7 }} {% raw %} <|stop|> \"quoted\" 'single' \\ back")],
    [("assistant", "I begin"), ("user", "No, I do.")],
    [("user", "one"), ("user", "two")],
    [("system", "one"), ("system", "two"), ("user", "three"), ("critic", "four")],
    [("user", "weather?"), ("assistant", "let me see"), ("tool", "sunny"), ("tool", "{\"t\": 20}"), ("assistant", "It is sunny.")],
    [("system", "Only rules.")],
    [],
]
TOOL = {"type": "function", "function": {
    "name": "weather", "description": "Weather of a \"city\"\nof <now> & then.", "return": "text",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "at": {"type": "array", "items": {"type": "number"}},
        "unit": {"type": ["string", "boolean"]}, "list": {"type": "array"}}}}}
CALL = [{"role": "user", "content": "weather?"},
        {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {
            "name": "weather", "arguments": {"city": "Zürich", "days": [1, 2.50, None, True]}}}]},
        {"role": "tool", "content": "sunny"}]
EXTRA = [
    {"tools": [TOOL]},
    {"tools": [TOOL, TOOL], "messages": CALL, "add_generation_prompt": True},
    {"enable_thinking": False, "date_string": "1 May 2025", "add_generation_prompt": True},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": " look "}, {"type": "image"}]}]},
    {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "reasoning_content": "\nwhy\n"}]},
]

DATA = {"s": "Hello wörld", "n": 7, "f": 2.5, "t": True, "none": None, "l": [3, 1, 2], "e": [], "d": {"b": 1, "a": {"x": "y"}},
        "m": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "yo", "n": 2}, {"role": "USER", "content": "hi"}]}
EXPRESSIONS = (pathlib.Path(__file__).with_name("chat_expressions.txt")).read_text().splitlines()


def outcome(template: str, variables: dict) -> dict:
    try:
        return {"prompt": environment().from_string(template).render(**variables)}
    except jinja2.exceptions.TemplateError as error:
        return {"error": str(error)}
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
        return {"error": type(error).__name__}


def main() -> None:
    variables = []
    for i, turns in enumerate(CONVERSATIONS):
        messages = [{"role": role, "content": content} for role, content in turns]
        variables.append({"messages": messages, "add_generation_prompt": i % 3 != 2})
    talk = [{"role": role, "content": content} for role, content in TALK]
    variables += [{"messages": talk, "add_generation_prompt": False} | extra for extra in EXTRA]
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "tools": None}
    templates = [{"family": name, "template": text, "outcomes": [outcome(text, tokens | v) for v in variables]}
                 for name, text in TEMPLATES.items()]
    expressions = [{"template": text} | outcome(text, DATA) for text in EXPRESSIONS if text]
    lines = ["{", f'"tokens": {json.dumps(tokens)},', f'"data": {json.dumps(DATA)},', '"variables": [',
             ",\n".join(json.dumps(v) for v in variables), '],', '"templates": [',
             ",\n".join(json.dumps(t) for t in templates), '],', '"expressions": [',
             ",\n".join(json.dumps(e) for e in expressions), "]", "}"]
    path = pathlib.Path(__file__).with_name("chat_templates.json")
    path.write_text("\n".join(lines) + "\n")
    refused = sum("error" in o for t in templates for o in t["outcomes"])
    print(f"{path}: {len(templates)} templates, {len(variables)} conversations each ({refused} refused), "
          f"{len(expressions)} expressions, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
