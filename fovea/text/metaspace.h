// Words of SentencePiece: a mark stands for each space, and a word begins with it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "fovea/text/byte_names.h"

namespace fovea {

/// The pre_tokenizer Metaspace of tokenizer.json.
struct Metaspace {
  enum class Prepend { never, first, always };
  std::string mark = std::string(kSpaceMark);
  Prepend prepend = Prepend::always;  ///< a mark before every text, or before the first of them
  bool split = true;                  ///< every mark begins a word

  /// Where a text stands: at the start of all, behind other text, or as a part that something cut
  /// off inside (special tokens, patterns).
  enum class Place { start, middle, part };
  void words(std::string_view text, Place place,
             const std::function<void(std::string_view)>& word) const;
};

}  // namespace fovea
