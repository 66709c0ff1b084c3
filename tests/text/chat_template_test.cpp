// Chat templates render as jinja2 does under transformers' settings, refuse by place what is not
// supported, and stay within their limits.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/chat_template.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "tests/support/expect_error.h"

namespace fovea::chat_template_test {
namespace {

using Json = nlohmann::ordered_json;

// The time of tests/golden/make_chat_cases.py: 26 July 2024, 14:05:09, a Friday.
constexpr std::tm kNow = {.tm_sec = 9,
                          .tm_min = 5,
                          .tm_hour = 14,
                          .tm_mday = 26,
                          .tm_mon = 6,
                          .tm_year = 124,
                          .tm_wday = 5,
                          .tm_yday = 207};

std::string render(const std::string& text, const Json& variables = Json::object()) {
  ChatTemplateOptions options;
  options.variables = variables;
  options.now = kNow;
  return ChatTemplate(text).render({}, options);
}

/// Expects the prompt that jinja2 gave, or an error of ours where it gave one.
void expect_outcome(const std::string& text, const Json& variables, const Json& outcome) {
  SCOPED_TRACE(text + "\nwith " + variables.dump());
  try {
    const std::string prompt = render(text, variables);
    if (outcome.contains("error")) {
      ADD_FAILURE() << "jinja2 fails: " << outcome["error"] << "\nwe render: " << prompt;
    } else {
      EXPECT_EQ(prompt, outcome["prompt"].get<std::string>());
    }
  } catch (const Error& error) {
    EXPECT_TRUE(outcome.contains("error")) << error.what();
  }
}

const Json& golden() {
  static const Json json = Json::parse(read_file("tests/golden/chat_templates.json"));
  return json;
}

TEST(ChatTemplateGolden, FamiliesRenderAsJinja2Renders) {
  size_t prompts = 0;
  for (const Json& family : golden()["templates"]) {
    const Json& outcomes = family["outcomes"];
    ASSERT_EQ(outcomes.size(), golden()["variables"].size());
    for (size_t i = 0; i < outcomes.size(); ++i, ++prompts) {
      Json variables = golden()["tokens"];
      variables.update(golden()["variables"][i]);
      expect_outcome(family["template"], variables, outcomes[i]);
    }
  }
  EXPECT_GT(prompts, 200u);
}

TEST(ChatTemplateGolden, ExpressionsRenderAsJinja2Renders) {
  for (const Json& expression : golden()["expressions"])
    expect_outcome(expression["template"], golden()["data"], expression);
}

TEST(ChatTemplateGolden, ARefusalCarriesTheMessageOfTheTemplate) {
  size_t refusals = 0;
  for (const Json& family : golden()["templates"]) {
    for (size_t i = 0; i < family["outcomes"].size(); ++i) {
      const Json& outcome = family["outcomes"][i];
      if (!outcome.contains("error") ||
          outcome["error"].get<std::string>().find("lternate") == std::string::npos)
        continue;
      Json variables = golden()["tokens"];
      variables.update(golden()["variables"][i]);
      EXPECT_ERROR(InputError, render(family["template"], variables),
                   outcome["error"].get<std::string>(), "refuses this conversation");
      ++refusals;
    }
  }
  EXPECT_GT(refusals, 10u);
}

TEST(ChatTemplate, MessagesAndTokensReachTheTemplate) {
  const ChatTemplate chat(
      "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m['content'] }}{% endfor %}"
      "{% if add_generation_prompt %}<answer>{% endif %}{{ tools is none }}");
  const std::vector<ChatMessage> messages = {{"system", "Be brief."}, {"user", "Hi"}};
  ChatTemplateOptions options;
  options.special_tokens["bos_token"] = "<s>";
  EXPECT_EQ(chat.render(messages, options), "<s><system>Be brief.<user>Hi<answer>True");
  options.add_generation_prompt = false;
  EXPECT_EQ(chat.render(messages, options), "<s><system>Be brief.<user>HiTrue");
}

TEST(ChatTemplate, VariablesReplaceWhatIsGivenOtherwise) {
  ChatTemplateOptions options;
  options.special_tokens["eos_token"] = "</s>";
  options.variables = {{"eos_token", "<end>"}, {"tools", Json::array({1, 2})}, {"depth", 2.5}};
  EXPECT_EQ(ChatTemplate("{{ eos_token }}{{ tools }}{{ depth }}").render({}, options),
            "<end>[1, 2]2.5");
}

TEST(ChatTemplate, TextOfMessagesIsNeverATemplate) {
  const std::vector<ChatMessage> messages = {{"user", "{{ 7 * 7 }}{% if %}"}};
  EXPECT_EQ(ChatTemplate("{{ messages[0].content }}").render(messages), "{{ 7 * 7 }}{% if %}");
}

TEST(ChatTemplate, BytesThatAreNoUtf8PassThrough) {
  const std::vector<ChatMessage> messages = {{"user", " a\xFF\xE2\x82z "}};
  const std::string prompt =
      ChatTemplate("{{ messages[0].content|trim }} {{ messages[0].content|length }}")
          .render(messages);
  EXPECT_EQ(prompt, "a\xFF\xE2\x82z 6");
}

TEST(ChatTemplate, WhiteSpaceRulesAreThoseOfTransformers) {
  EXPECT_EQ(render("a\n  {% if true %}\n  b\n  {% endif %}\nc\n"), "a\n  b\nc");
  EXPECT_EQ(render("a\n  {%+ if true %}b{% endif +%}\nc"), "a\n  b\nc");
  EXPECT_EQ(render("a  \n {%- if true -%} \n b {% endif %}"), "ab ");
  EXPECT_EQ(render("a {{- 1 -}} \n b"), "a1b");
  EXPECT_EQ(render("a\n  {# note #}\nb{#- note -#} c"), "a\nbc");
  EXPECT_EQ(render("{{ 1 }}\n\n"), "1\n");
  EXPECT_EQ(render("a\r\nb\rc"), "a\nb\nc");
  EXPECT_EQ(render("x {% raw %}\n{{ y }}{% endraw %}\nz"), "x \n{{ y }}z");
}

TEST(ChatTemplate, MalformedTemplatesNameThePlace) {
  EXPECT_ERROR(InputError, ChatTemplate("a\nb {{ 1 + }}"), "[chat template, line 2, column 10]",
               "expected an expression; got '}}'");
  EXPECT_ERROR(InputError, ChatTemplate("{% if x %}"), "line 1", "{% endif %}");
  EXPECT_ERROR(InputError, ChatTemplate("{% endfor %}"), "line 1", "endfor");
  EXPECT_ERROR(InputError, ChatTemplate("\n\n  {{ 'abc }}"), "line 3, column 6", "no end");
  EXPECT_ERROR(InputError, ChatTemplate("{# never"), "line 1, column 1", "comment");
  EXPECT_ERROR(InputError, ChatTemplate("{{ (1] }}"), "expected ')'");
  EXPECT_ERROR(InputError, ChatTemplate("{{ a $ b }}"), "'$'");
  EXPECT_ERROR(InputError, ChatTemplate("{{ 1|no_such }}"), "no filter 'no_such'");
  EXPECT_ERROR(InputError, ChatTemplate("{{ 1 is no_such }}"), "no test 'no_such'");
  EXPECT_ERROR(InputError, ChatTemplate("{% break %}"), "outside a loop");
  EXPECT_ERROR(InputError, ChatTemplate("{% filter %}a{% endfilter %}"), "got '%}'");
  EXPECT_ERROR(InputError, ChatTemplate("{% filter upper %}a"), "{% endfilter %}");
  EXPECT_ERROR(InputError, ChatTemplate("{% filter no_such %}a{% endfilter %}"), "'no_such'");
  EXPECT_ERROR(InputError, ChatTemplate("{% for x in y %}{% macro f() %}{% break %}"), "outside");
  EXPECT_ERROR(InputError, ChatTemplate("{% wrong %}"), "unexpected tag 'wrong'");
  EXPECT_ERROR(InputError, ChatTemplate("{{ '\\ud800' }}"), "U+D800");
  EXPECT_ERROR(InputError, ChatTemplate("a\xFF"), "UTF-8");
  EXPECT_ERROR(InputError, ChatTemplate("{{ }}", "model.gguf"), "[model.gguf, line 1");
}

TEST(ChatTemplate, UnsupportedConstructsAreRefusedByNameAndPlace) {
  for (const char* tag : {"include 'x'", "import 'x' as y", "from 'x' import y", "extends 'x'",
                          "block x", "call f()", "autoescape true", "do f()"}) {
    const std::string name = std::string(tag).substr(0, std::string(tag).find(' '));
    EXPECT_ERROR(UnsupportedError, ChatTemplate("\n{% " + std::string(tag) + " %}"),
                 "line 2, column 4", "'" + name + "'");
  }
  EXPECT_ERROR(UnsupportedError, ChatTemplate("{% for x in y recursive %}"), "recursive");
  EXPECT_ERROR(UnsupportedError, ChatTemplate("{{ x|wordwrap }}"), "wordwrap");
  EXPECT_ERROR(UnsupportedError, ChatTemplate("{% filter wordwrap %}{% endfilter %}"), "wordwrap");
  EXPECT_ERROR(UnsupportedError, ChatTemplate("{{ f(*x) }}"), "'*'");
  EXPECT_ERROR(UnsupportedError, ChatTemplate("{{ cycler() }}"), "cycler");
  EXPECT_ERROR(UnsupportedError, render("\n{{ 'a'.zfill(3) }}"), "line 2", "zfill");
  EXPECT_ERROR(UnsupportedError, render("{{ '%s' % 1 }}"), "'%'");
  EXPECT_ERROR(UnsupportedError, render("{% if true %}{{ 1|wordwrap }}{% endif %}"), "wordwrap");
}

TEST(ChatTemplate, FailuresWhileRenderingNameThePlace) {
  EXPECT_ERROR(InputError, render("a\n{{ x.y }}"), "line 2", "'x' is undefined");
  EXPECT_ERROR(InputError, render("{{ messages[0].role.x }}"), "line 1");
  EXPECT_ERROR(InputError, render("{{ 1 + 'a' }}"), "'int' and 'str'");
  EXPECT_ERROR(InputError, render("{{ raise_exception('roles: ' ~ 1) }}"), "roles: 1");
  EXPECT_ERROR(InputError, render("{{ 9223372036854775807 + 1 }}"), "too large");
  EXPECT_ERROR(InputError, render("{{ [].append(1) }}"), "unsafe");
}

TEST(ChatTemplate, OneTemplateRendersInSeveralThreads) {
  const ChatTemplate chat(
      "{% macro f(x) %}{{ x }}{% endmacro %}{% for m in messages %}{{ f(m.content) }}{% endfor %}");
  const std::vector<ChatMessage> messages(50, {"user", "hello"});
  std::vector<std::string> prompts(4);
  {
    std::vector<std::jthread> threads;
    for (std::string& prompt : prompts)
      threads.emplace_back([&] { prompt = chat.render(messages); });
  }
  for (const std::string& prompt : prompts) EXPECT_EQ(prompt, chat.render(messages));
}

// Hostile templates.

std::string repeated(const std::string& part, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += part;
  return text;
}

TEST(HostileChatTemplate, WorkAndMemoryEndInAnErrorWithinSeconds) {
  const std::string loop = "{% for a in range(100000) %}";
  const std::string templates[] = {
      loop + loop + loop + "{% endfor %}{% endfor %}{% endfor %}",
      "{{ range(1000000000) }}",
      "{{ 'a' * 1000000000 }}",
      "{{ [0] * 1000000000 }}",
      "{{ 'a' * 9223372036854775807 }}",
      "{{ 2 ** 100000 }}",
      "{% set n = namespace(s='aaaaaaaa') %}" + loop + "{% set n.s = n.s + n.s %}{% endfor %}",
      "{% set n = namespace(s=[1]) %}" + loop + "{% set n.s = [n.s, n.s] %}{% endfor %}",
      "{% set n = namespace(s=[1]) %}{% for a in range(60) %}{% set n.s = [n.s, n.s] %}"
      "{% endfor %}{{ n.s }}",
      "{% set n = namespace(s=[1], t=[1]) %}{% for a in range(60) %}{% set n.s = [n.s, n.s] %}"
      "{% set n.t = [n.t, n.t] %}{% endfor %}{{ n.s == n.t }}",
      "{% set n = namespace(s=1) %}{% for a in range(60) %}{% set n.s = [n.s, n.s] %}"
      "{% endfor %}{{ n.s|tojson }}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
      "{% set n = namespace() %}{% set n.n = n %}{{ n }}",
      "{% set n = namespace() %}{% set n.n = [{'n': n}] %}{{ n }}",
      "{{ ('a' * 10000000).replace('a', 'b' * 10000000) }}",
      "{{ ('a' * 10000000).replace('', 'b' * 10000000) }}",
      "{{ ('a' * 5000000 ~ 'b') in ('a' * 10000000) }}",
      "{{ 'x'|indent(1000000000) }}",
      "{{ [[[1]]]|tojson(indent=1000000000) }}",
      "{{ ('a\n' * 100000)|indent(100000) }}",
      "{{ strftime_now('%1000000000d') }}",
      loop + "{{ 'a' * 100000 }}{% endfor %}",
      "{{ (range(100000)|list * 100)|sort|unique|list }}",
      "{{ '" + repeated("{0}", 1000) + "'.format('a' * 1000000) }}",
      "{% set n = namespace(f=1) %}" + loop +
          "{% macro g() %}{{ n.f }}{% endmacro %}{% set n.f = [n.f, g] %}{% endfor %}",
      "{% set n = namespace(f='a') %}" + loop + "{% set n.f = {'a': n.f}.get %}{% endfor %}",
  };
  for (const std::string& text : templates) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THROW(render(text), Error) << text.substr(0, 200);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    EXPECT_LT(seconds.count(), 20) << text.substr(0, 200);
  }
}

TEST(HostileChatTemplate, DeepNestingIsRefusedWhenItIsRead) {
  const std::string texts[] = {
      "{{ " + repeated("(", 100000) + "1" + repeated(")", 100000) + " }}",
      "{{ " + repeated("[", 100000) + repeated("]", 100000) + " }}",
      "{{ " + repeated("not ", 100000) + "1 }}",
      "{{ " + repeated("-", 100000) + "1 }}",
      "{{ " + repeated("1 + ", 100000) + "1 }}",
      "{{ x" + repeated(".y", 100000) + " }}",
      "{{ x" + repeated("|trim", 100000) + " }}",
      "{{ x" + repeated("()", 100000) + " }}",
      "{{ " + repeated("1 if 1 else ", 100000) + "1 }}",
      "{{ " + repeated("1 ** ", 100000) + "1 }}",
      "{{ f(" + repeated("1, ", 100000) + "1) }}",
      repeated("{% if 1 %}", 20000) + repeated("{% endif %}", 20000),
      repeated("{% for x in y %}", 20000) + repeated("{% endfor %}", 20000),
      "{% set " + repeated("(", 100000) + "x" + repeated(")", 100000) + " = 1 %}",
      std::string(2 << 20, 'x'),
  };
  for (const std::string& text : texts)
    EXPECT_THROW(ChatTemplate{text}, InputError) << text.substr(0, 60);
}

TEST(HostileChatTemplate, DeepVariablesAreRefused) {
  Json deep = 1;
  for (int i = 0; i < 5000; ++i) deep = Json::array({std::move(deep)});
  EXPECT_ERROR(InputError, render("a", {{"deep", deep}, {"other", 1}}), "nest deeper");
}

TEST(HostileChatTemplate, LimitsAreOfOneRendering) {
  const ChatTemplate chat("{% for a in range(1000) %}{{ a }}{% endfor %}");
  ChatTemplateOptions options;
  options.max_steps = 100;
  EXPECT_ERROR(InputError, chat.render({}, options), "more than 100 steps");
  options.max_steps = 1'000'000;
  EXPECT_EQ(chat.render({}, options).size(), 2890u);
  options.max_bytes = 1000;
  EXPECT_ERROR(InputError, chat.render({}, options), "more than 1000 bytes");
}

TEST(ChatTemplate, AThousandTurnsTakeAFifthOfTheLimits) {
  const ChatTemplate chat(
      "{% set ns = namespace(text='') %}{% for m in messages[::-1] %}"
      "{% set ns.last = m.content.split('</think>')[-1].strip() %}{% endfor %}"
      "{% for m in messages %}{{ '<' + m.role + '>' + m.content|trim + '</s>\\n' }}{% endfor %}");
  const std::vector<ChatMessage> messages(1000, {"user", std::string(2000, 'x')});
  ChatTemplateOptions options;
  options.max_steps /= 5;
  options.max_bytes /= 5;
  EXPECT_GT(chat.render(messages, options).size(), 2'000'000u);
}

}  // namespace
}  // namespace fovea::chat_template_test
