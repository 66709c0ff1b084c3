// The variables of a template: a scope for each loop iteration, macro call and block.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>

#include "fovea/text/jinja/value.h"

namespace fovea::jinja {

class Scope {
 public:
  explicit Scope(std::shared_ptr<Scope> parent)
      : parent_(std::move(parent)), depth_(parent_ == nullptr ? 0 : parent_->depth_ + 1) {
    // A scope is destroyed with those around it, one within the other.
    if (depth_ > kDeepest) fault("blocks and macros nest deeper than {}", kDeepest);
  }

  void set(const std::string& name, Value value) { variables_[name] = std::move(value); }
  /// The value of the innermost scope that has the name, or null.
  const Value* find(const std::string& name, Budget& budget) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent_.get()) {
      budget.step();
      const auto found = scope->variables_.find(name);
      if (found != scope->variables_.end()) return &found->second;
    }
    return nullptr;
  }
  /// Frees what may refer back to this scope: macros refer to the scope that they stand in.
  void clear() { variables_.clear(); }

 private:
  static constexpr int kDeepest = 300;

  std::map<std::string, Value> variables_;
  std::shared_ptr<Scope> parent_;
  int depth_;
};

using ScopePtr = std::shared_ptr<Scope>;

}  // namespace fovea::jinja
