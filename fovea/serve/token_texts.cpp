// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/serve/token_texts.h"

#include <algorithm>

namespace fovea::serve {

int64_t characters_of(std::string_view utf8) {
  const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
  return static_cast<int64_t>(utf8.size()) - std::ranges::count_if(utf8, continues);
}

TokenTexts::TokenTexts(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  for (const SpecialToken& special : tokenizer.special_tokens())
    specials_[special.id] = special.text;
}

std::string TokenTexts::raw(int32_t token) const {
  if (const auto special = specials_.find(token); special != specials_.end())
    return special->second;
  if (token < 0 || token >= tokenizer_.vocab_size()) return "";  // a row that pads the embedding
  return std::string(tokenizer_.piece(token));
}

std::string TokenTexts::name(int32_t token) const {
  const std::string bytes = raw(token);
  if (bytes.empty()) return fmt::format("token_id:{}", token);
  if (valid_utf8_prefix(bytes) == bytes.size()) return bytes;
  std::string escaped = "bytes:";
  for (const char c : bytes) escaped += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return escaped;
}

Json TokenTexts::bytes(int32_t token) const {
  Json numbers = Json::array();
  for (const char c : raw(token)) numbers.push_back(static_cast<unsigned char>(c));
  return numbers;
}

}  // namespace fovea::serve
