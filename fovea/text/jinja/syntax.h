// The syntax tree of a template.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fovea/text/jinja/value.h"

namespace fovea::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class ExpressionKind {
  constant,
  name,
  list,
  tuple,
  dict,       // parts: key, value, key, value
  attribute,  // parts: object; `name`
  item,       // parts: object, key
  slice,      // parts: object, start, stop, step; absent bounds are null
  call,       // parts: function, arguments
  filter,     // parts: input, arguments; `name`
  test,       // parts: input, arguments; `name`
  logical_not,
  logical_and,
  logical_or,
  negative,
  positive,
  arithmetic,   // parts: left, right; `name` is the operator
  concatenate,  // any number of parts
  compare,      // parts: operands; `operators` between them
  conditional,  // parts: condition, value, other value or null
};

struct Expression {
  ExpressionKind kind = ExpressionKind::constant;
  Position at;
  std::string name;
  Value constant;
  std::vector<ExpressionPtr> parts;
  std::vector<std::string> operators;
  std::vector<std::pair<std::string, ExpressionPtr>> named;  // arguments by name
  int height = 1;                                            // nodes on the longest way down
};

/// A target of `for` or `set`: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  Position at;
  std::string name, attribute;
  std::vector<Target> elements;  // a tuple where there are any
};

struct Statement;
using Block = std::vector<Statement>;

enum class StatementKind {
  text,          // `text`
  print,         // expressions: value
  if_else,       // expressions: conditions; blocks: one for each, and the else
  for_loop,      // target; expressions: iterable, filter or null; blocks: body, else
  set,           // target; expressions: value
  set_block,     // target; blocks: body; expressions: a filter around `kBodyName`, or none
  filter_block,  // blocks: body; expressions: a filter around `kBodyName`
  with,          // targets with expressions; blocks: body
  macro,         // text: name; parameters; blocks: body
  group,         // {% generation %}: a body with a scope of its own
  break_loop,
  continue_loop,
};

struct Statement {
  StatementKind kind = StatementKind::text;
  Position at;
  std::string text;
  std::vector<Target> targets;
  std::vector<ExpressionPtr> expressions;
  std::vector<Block> blocks;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  // with defaults, or null
};

/// The name by which the filter of a block finds the text of the block; no template can spell it.
inline constexpr const char* kBodyName = "{% set %}";

}  // namespace fovea::jinja
