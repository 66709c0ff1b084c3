// The limits of a template's rendering, and the error of a construct before its place is known.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace fovea::jinja {

/// A place in the text of a template; both count from 1, columns in characters.
struct Position {
  int line = 1, column = 1;
};

/// Thrown where the place is not known; the evaluator adds it and throws an error of Fovea.
class Fault : public std::runtime_error {
 public:
  enum class Type { wrong, unsupported };
  explicit Fault(const std::string& message, Type type = Type::wrong)
      : std::runtime_error(message), type_(type) {}
  Type type() const { return type_; }

 private:
  Type type_;
};

template <class... Args>
[[noreturn]] void fault(fmt::format_string<Args...> message, Args&&... args) {
  throw Fault(fmt::format(message, std::forward<Args>(args)...));
}
template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> message, Args&&... args) {
  throw Fault(fmt::format(message, std::forward<Args>(args)...), Fault::Type::unsupported);
}

/// Limits of one rendering. A thousand turns of 2 KB take a fifth of each.
struct Limits {
  int64_t steps = 5'000'000;    ///< evaluated nodes, visited elements, blocks of compared bytes
  int64_t bytes = 256ll << 20;  ///< output, and every text and list made on the way
};

/// Counts what a rendering has used; a Fault where a limit is passed.
class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}

  void step(int64_t count = 1) {
    if (count > limits_.steps - steps_) {
      fault("rendering takes more than {} steps: the template loops too long", limits_.steps);
    }
    steps_ += count;
  }
  /// Called before the memory is taken. Work that reads or writes each byte is paid with it.
  void take(int64_t bytes) {
    if (bytes > limits_.bytes - bytes_)
      fault("rendering takes more than {} bytes of text and lists", limits_.bytes);
    bytes_ += bytes;
    step(1 + bytes / 256);
  }
  /// Reads `bytes` once: a comparison, a count.
  void read(size_t bytes) { step(1 + static_cast<int64_t>(bytes / 256)); }
  /// A search for `needle` bytes at every place of `text` bytes.
  void search(size_t text, size_t needle) {
    read(text);
    step(static_cast<int64_t>(static_cast<double>(text) * static_cast<double>(needle) / 1024));
  }

 private:
  Limits limits_;
  int64_t steps_ = 0, bytes_ = 0;
};

}  // namespace fovea::jinja
