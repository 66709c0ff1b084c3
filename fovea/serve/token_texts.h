// Tokens as texts of JSON: log-probabilities and token strings name tokens by them.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "fovea/serve/problem.h"
#include "fovea/text/tokenizer.h"

namespace fovea::serve {

/// Number of Unicode characters of valid UTF-8.
int64_t characters_of(std::string_view utf8);

class TokenTexts {
 public:
  /// The tokenizer must outlive this.
  explicit TokenTexts(const Tokenizer& tokenizer);

  /// A token's piece; "bytes:\xe2\x80" where that is no whole character; a special token's own
  /// text; "token_id:7" for an id without any.
  std::string name(int32_t token) const;
  /// The bytes that name() stands for, as numbers.
  Json bytes(int32_t token) const;
  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  std::string raw(int32_t token) const;

  const Tokenizer& tokenizer_;
  std::map<int32_t, std::string> specials_;
};

}  // namespace fovea::serve
