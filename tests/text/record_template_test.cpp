// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/record_template.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/expect_error.h"

namespace fovea::record_template_test {
namespace {

using Json = nlohmann::ordered_json;
using Form = RecordTemplate::Form;

TEST(RecordTemplate, WritesTextAndEvaluatesExpressions) {
  const Json record{{"q", "Why?"}, {"choices", {{"text", {"a", "b"}}}}, {"n", 1}};
  EXPECT_EQ(RecordTemplate(Form::text, "Q: {{q}}\nA:", "t").render(record, "r"), "Q: Why?\nA:");
  EXPECT_EQ(RecordTemplate(Form::expression, "choices.text", "t").evaluate(record, "r"),
            Json({"a", "b"}));
  EXPECT_EQ(RecordTemplate(Form::expression, "n + 1", "t").evaluate(record, "r"), Json(2));
}

TEST(RecordTemplate, KeepsEveryNewlineAtItsEnd) {
  const Json record{{"q", "Why?"}};
  EXPECT_EQ(RecordTemplate(Form::text, "{{q}}\n", "t").render(record, "r"), "Why?\n");
  EXPECT_EQ(RecordTemplate(Form::text, "{{q}}\n\n", "t").render(record, "r"), "Why?\n\n");
}

TEST(RecordTemplate, NamesTheFieldsThatARecordMustHave) {
  const RecordTemplate plain(
      Form::text,
      "{% set own = a %}{% for x in list %}{{x}}{{loop.index}}{% endfor %}{{own}}{{b.c}}"
      "{% if d is defined %}{{d}}{% endif %}{{e | default('')}}{{range(2) | length}}",
      "t");
  EXPECT_EQ(plain.fields(), (std::vector<std::string>{"a", "list", "b"}));
  EXPECT_TRUE(RecordTemplate().fields().empty());
}

TEST(RecordTemplate, ErrorsNameTheRecordAndTheTemplate) {
  EXPECT_ERROR(InputError, RecordTemplate(Form::text, "{{a", "task: context"), "task: context");
  const RecordTemplate wrong(Form::expression, "a + 1", "task: gold");
  EXPECT_ERROR(InputError, wrong.evaluate(Json{{"a", "x"}}, "data.jsonl:7"), "data.jsonl:7",
               "task: gold");
}

}  // namespace
}  // namespace fovea::record_template_test
