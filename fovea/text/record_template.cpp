// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/record_template.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "fovea/base/error.h"
#include "fovea/text/jinja/evaluator.h"
#include "fovea/text/jinja/parser.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;
using jinja::Block;
using jinja::Expression;
using jinja::ExpressionKind;
using jinja::Statement;
using jinja::Target;

// Names that a template has without a record.
constexpr std::array<std::string_view, 6> kGlobals{"range",           "namespace",    "dict",
                                                   "raise_exception", "strftime_now", "loop"};

/// Collects the names that a template reads and does not set itself.
class NameReader {
 public:
  void read(const Block& block) {
    for (const Statement& statement : block) {
      for (const Target& target : statement.targets) add_target(target);
      for (const auto& [name, initial] : statement.parameters) {
        own_.insert(name);
        if (initial) read(*initial);
      }
      if (statement.kind == jinja::StatementKind::macro) own_.insert(statement.text);
      for (const auto& expression : statement.expressions) {
        if (expression) read(*expression);
      }
      for (const Block& inner : statement.blocks) read(inner);
    }
  }

  std::vector<std::string> required() const {
    std::vector<std::string> names;
    for (const std::string& name : used_) {
      if (!own_.contains(name) && !optional_.contains(name)) names.push_back(name);
    }
    return names;
  }

 private:
  void add_target(const Target& target) {
    own_.insert(target.name);
    for (const Target& element : target.elements) add_target(element);
  }

  void read(const Expression& e) {
    if (e.kind == ExpressionKind::name) {
      const bool global = std::ranges::find(kGlobals, e.name) != kGlobals.end();
      const bool known = std::ranges::find(used_, e.name) != used_.end();
      if (!global && !known) used_.push_back(e.name);
    }
    const bool asks = (e.kind == ExpressionKind::test && e.name.ends_with("defined")) ||
                      (e.kind == ExpressionKind::filter && (e.name == "default" || e.name == "d"));
    if (asks && e.parts.front()->kind == ExpressionKind::name)
      optional_.insert(e.parts.front()->name);
    for (const auto& part : e.parts) {
      if (part) read(*part);
    }
    for (const auto& [name, part] : e.named) read(*part);
  }

  std::vector<std::string> used_;
  std::set<std::string> own_, optional_;
};

jinja::NamedValues variables_of(const Json& record, jinja::Budget& budget) {
  jinja::NamedValues variables;
  for (const auto& [name, value] : record.items())
    variables.emplace_back(name, jinja::from_json(value, budget));
  return variables;
}

}  // namespace

struct RecordTemplate::Compiled {
  std::string where;
  Block tree;
  std::vector<std::string> fields;
};

RecordTemplate::RecordTemplate(Form form, std::string_view source, std::string where) {
  std::string text =
      form == Form::text ? std::string(source) : fmt::format("{{{{ ({}) | tojson }}}}", source);
  if (text.ends_with('\n')) text += '\n';  // a prompt keeps the newline that Jinja takes away
  Block tree = jinja::parse(text, where);
  NameReader names;
  names.read(tree);
  compiled_ = std::make_shared<const Compiled>(
      Compiled{std::move(where), std::move(tree), names.required()});
}

const std::vector<std::string>& RecordTemplate::fields() const {
  static const std::vector<std::string> none;
  return compiled_ == nullptr ? none : compiled_->fields;
}

std::string RecordTemplate::render(const Json& record, const std::string& where) const {
  jinja::Budget budget({});
  try {
    const jinja::Rendering rendering{.where = where + ", " + compiled_->where,
                                     .variables = variables_of(record, budget)};
    return jinja::render(compiled_->tree, rendering, budget);
  } catch (const jinja::Fault& fault) {  // in the values of the record
    fail<InputError>(where, "{}", fault.what());
  }
}

Json RecordTemplate::evaluate(const Json& record, const std::string& where) const {
  return Json::parse(render(record, where));
}

}  // namespace fovea
