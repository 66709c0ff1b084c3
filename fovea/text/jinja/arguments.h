// Reads the arguments of a call by position or name, as a Python signature does.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "fovea/text/jinja/value.h"

namespace fovea::jinja {

/// Parameters are asked for in their order; finish() refuses arguments that none has taken.
///
///     ArgumentReader in("replace", arguments);
///     const std::string old = in.text("old"), fresh = in.text("new");
///     const int64_t count = in.integer("count", -1);
///     in.finish();
class ArgumentReader {
 public:
  ArgumentReader(std::string_view function, const Arguments& arguments)
      : function_(function), arguments_(arguments) {}

  /// The next parameter, or null where it is not given.
  const Value* next(std::string_view name);
  Value required(std::string_view name);
  Value optional(std::string_view name, Value absent);
  std::string text(std::string_view name);
  /// None counts as not given.
  std::optional<std::string> optional_text(std::string_view name);
  int64_t integer(std::string_view name, int64_t absent);
  bool flag(std::string_view name, bool absent);
  void finish() const;
  /// All arguments, for functions that pass them on.
  const Arguments& all() const { return arguments_; }

 private:
  std::string_view function_;
  const Arguments& arguments_;
  size_t position_ = 0, named_ = 0;
};

}  // namespace fovea::jinja
