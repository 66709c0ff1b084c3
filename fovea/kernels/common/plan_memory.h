// The memory of a plan: its arrays lie in one allocation, which a backend copies to its device as
// it is.
//
// A plan is a struct of numbers and spans with `memory` and each_array(f), which calls f with every
// span. While it is made, its arrays are kept one by one; then they are packed. Copies of a plan
// share its memory.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace fovea {

class PlanMemory {
 public:
  /// Keeps an array of a plan until the plan is packed.
  template <class T>
  std::span<const T> keep(std::vector<T> array) {
    auto kept = std::make_shared<const std::vector<T>>(std::move(array));
    kept_.push_back(kept);
    return *kept;
  }

  /// The allocation of a packed plan.
  std::span<const std::byte> bytes() const { return bytes_; }

  /// Moves the arrays of `plan`, whose memory this is, into one allocation.
  template <class Plan>
  void pack(Plan& plan) {
    constexpr size_t kAlignment = 16;
    const auto padded = [](size_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; };
    size_t size = 0, at = 0;
    plan.each_array([&](const auto& array) { size += padded(array.size_bytes()); });
    const std::shared_ptr<std::byte[]> packed(new std::byte[size]);
    plan.each_array([&]<class T>(std::span<const T>& array) {
      if (array.empty()) {
        array = {};
        return;
      }
      std::memcpy(packed.get() + at, array.data(), array.size_bytes());
      array = {reinterpret_cast<const T*>(packed.get() + at), array.size()};
      at += padded(array.size_bytes());
    });
    kept_ = {packed};
    bytes_ = {packed.get(), size};
  }

 private:
  std::vector<std::shared_ptr<const void>> kept_;
  std::span<const std::byte> bytes_;
};

/// A packed plan whose arrays lie in a copy of its memory at `to`.
template <class Plan>
Plan moved_to(const std::byte* to, Plan plan) {
  const std::byte* const from = plan.memory.bytes().data();
  plan.each_array([&]<class T>(std::span<const T>& array) {
    if (array.empty()) return;
    const auto offset = reinterpret_cast<const std::byte*>(array.data()) - from;
    array = {reinterpret_cast<const T*>(to + offset), array.size()};
  });
  return plan;
}

}  // namespace fovea
