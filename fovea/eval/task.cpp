// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/task.h"

#include <array>
#include <memory>

namespace fovea {
namespace {

constexpr std::array<std::string_view, 6> kKinds{"multiple_choice", "multiple_true", "partial",
                                                 "last_word",       "rolling",       "generate"};

}  // namespace

std::span<const std::string_view> enum_names(TaskKind) { return kKinds; }

TaskItems items_of(std::vector<TaskItem> items) {
  const auto held = std::make_shared<const std::vector<TaskItem>>(std::move(items));
  return {.size = std::ssize(*held),
          .make = [held](int64_t n) { return held->at(static_cast<size_t>(n)); }};
}

}  // namespace fovea
