// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/chat_template.h"

#include "fovea/base/error.h"
#include "fovea/text/jinja/evaluator.h"
#include "fovea/text/jinja/parser.h"
#include "fovea/text/utf8.h"

namespace fovea {
namespace {

// The longest templates of published models have 20 KB.
constexpr size_t kLongestTemplate = 1 << 20;

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  localtime_r(&now, &parts);
  return parts;
}

jinja::Value message_list(std::span<const ChatMessage> messages, jinja::Budget& budget) {
  jinja::Values list;
  for (const ChatMessage& message : messages) {
    list.push_back(jinja::make_dict({{"role", jinja::make_text(message.role, budget)},
                                     {"content", jinja::make_text(message.content, budget)}},
                                    budget));
  }
  return jinja::make_sequence(std::move(list), budget);
}

jinja::NamedValues variables_of(std::span<const ChatMessage> messages,
                                const ChatTemplateOptions& options, jinja::Budget& budget) {
  jinja::NamedValues variables = {{"messages", message_list(messages, budget)},
                                  {"tools", jinja::None{}},
                                  {"documents", jinja::None{}},
                                  {"add_generation_prompt", options.add_generation_prompt}};
  for (const auto& [name, text] : options.special_tokens)
    variables.emplace_back(name, jinja::make_text(text, budget));
  for (const auto& [name, value] : options.variables.items())
    variables.emplace_back(name, jinja::from_json(value, budget));
  return variables;
}

}  // namespace

struct ChatTemplate::Compiled {
  std::string where;
  jinja::Block tree;
};

ChatTemplate::ChatTemplate(std::string_view text, std::string where) {
  require<InputError>(text.size() <= kLongestTemplate, where,
                      "expected a template of at most {} bytes; got {}", kLongestTemplate,
                      text.size());
  require<InputError>(valid_utf8_prefix(text) == text.size(), where,
                      "expected UTF-8; got other bytes at byte {}", valid_utf8_prefix(text));
  jinja::Block tree = jinja::parse(text, where);
  compiled_ = std::make_shared<const Compiled>(Compiled{std::move(where), std::move(tree)});
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages,
                                 const ChatTemplateOptions& options) const {
  require<InputError>(options.variables.is_object(), compiled_->where,
                      "expected variables by name; got {}", options.variables.type_name());
  jinja::Budget budget({.steps = options.max_steps, .bytes = options.max_bytes});
  try {
    const jinja::Rendering rendering{.where = compiled_->where,
                                     .variables = variables_of(messages, options, budget),
                                     .now = options.now ? *options.now : local_time()};
    return jinja::render(compiled_->tree, rendering, budget);
  } catch (const jinja::Fault& fault) {  // in the values given
    fail<InputError>(compiled_->where, "{}", fault.what());
  }
}

}  // namespace fovea
