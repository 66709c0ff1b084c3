// The variable `loop` of a `for`, which fetches elements one at a time.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <optional>

#include "fovea/text/jinja/value.h"

namespace fovea::jinja {

class Loop {
 public:
  /// Visits the elements that `keep` accepts (all without one). As in jinja2 it is asked as late as
  /// possible: the body may change its answer.
  using Keep = std::function<bool(const Value&)>;
  Loop(Values elements, Keep keep);

  /// The next element, or nothing at the end.
  std::optional<Value> advance();
  /// After the last element: what `keep` refers to is gone.
  void finish();

  int64_t index() const { return index_; }  // from 1
  int64_t length();
  const Nesting& nesting() const { return nesting_; }
  /// loop.NAME; undefined where there is no such attribute.
  Value attribute(std::string_view name);

 private:
  bool fetch();  // one more element into ahead_

  Values elements_;
  size_t fetched_ = 0;
  Keep keep_;
  std::deque<Value> ahead_;
  Value previous_, current_;
  int64_t index_ = 0;
  Nesting nesting_;
};

}  // namespace fovea::jinja
