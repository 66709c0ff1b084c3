// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/jinja/loop.h"

namespace fovea::jinja {

Loop::Loop(Values elements, Keep keep) : elements_(std::move(elements)), keep_(std::move(keep)) {
  for (const Value& element : elements_) nesting_.add(element);
  previous_ = Value::undefined("there is no previous item");
}

bool Loop::fetch() {
  while (fetched_ < elements_.size()) {
    const Value& element = elements_[fetched_++];
    if (keep_ && !keep_(element)) continue;
    ahead_.push_back(element);
    return true;
  }
  return false;
}

std::optional<Value> Loop::advance() {
  if (ahead_.empty() && !fetch()) return {};
  if (index_ > 0) previous_ = current_;
  current_ = ahead_.front();
  ahead_.pop_front();
  ++index_;
  return current_;
}

void Loop::finish() {
  fetched_ = elements_.size();
  keep_ = nullptr;
}

int64_t Loop::length() {
  while (fetch()) {
  }
  return index_ + static_cast<int64_t>(ahead_.size());
}

Value Loop::attribute(std::string_view name) {
  if (name == "index") return index_;
  if (name == "index0") return index_ - 1;
  if (name == "first") return index_ == 1;
  if (name == "last") return ahead_.empty() && !fetch();
  if (name == "length") return length();
  if (name == "revindex") return length() - index_ + 1;
  if (name == "revindex0") return length() - index_;
  if (name == "previtem") return previous_;
  if (name == "nextitem") {
    if (ahead_.empty() && !fetch()) return Value::undefined("there is no next item");
    return ahead_.front();
  }
  // Loops that call themselves are not supported: each is its own outermost one.
  if (name == "depth") return int64_t{1};
  if (name == "depth0") return int64_t{0};
  if (name == "cycle" || name == "changed") refuse("loop.{}() is not supported", name);
  return Value::undefined(fmt::format("'LoopContext' object has no attribute '{}'", name));
}

}  // namespace fovea::jinja
