// Changes a text before it is split into words: the normalizer of tokenizer.json.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/text/pattern.h"

namespace fovea {

/// Steps that run one after the other. Texts are valid UTF-8, unless every step takes any bytes
/// (normal_form). Safe from several threads.
class Normalizer {
 public:
  using Step = std::function<std::string(std::string_view)>;

  void add(Step step) { steps_.push_back({std::move(step)}); }
  /// A step that puts something before a text.
  void add_prefix(Step step) { steps_.push_back({std::move(step), true}); }
  bool empty() const { return steps_.empty(); }
  /// `goes_on`: the text stands behind other text, so nothing is put before it.
  std::string apply(std::string_view text, bool goes_on = false) const;

 private:
  struct Kept {
    Step step;
    bool prefix = false;
  };
  std::vector<Kept> steps_;
};

/// `text` with every match of a pattern, or every place of a string that is not empty, replaced.
std::string replace_all(std::string_view text, const Pattern& pattern, std::string_view content);
std::string replace_all(std::string_view text, std::string_view from, std::string_view content);

/// `text` without the white space at its ends.
enum class Ends { left, right, both };
std::string_view strip_spaces(std::string_view text, Ends ends);

}  // namespace fovea
