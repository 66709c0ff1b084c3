// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/tokenizer.h"

#include "fovea/base/error.h"
#include "fovea/base/files.h"

namespace fovea {

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> tokens;
  append(text, tokens);
  return tokens;
}

std::string Tokenizer::decode(std::span<const int32_t> tokens) const {
  std::string bytes;
  for (const int32_t token : tokens) bytes.append(piece(token));
  if (bytes.starts_with(text_prefix())) bytes.erase(0, text_prefix().size());
  return repair_utf8(bytes);
}

std::string Tokenizer::fingerprint() const {
  uint64_t hash = fovea::fingerprint(kind()) + rules();
  for (int64_t id = 0; id < vocab_size(); ++id) {
    hash = fovea::fingerprint(piece(static_cast<int32_t>(id)), hash);
  }
  for (const SpecialToken& special : special_tokens()) {
    hash = fovea::fingerprint(special.text, hash + static_cast<uint64_t>(special.id));
  }
  return hex64(hash);
}

void Tokenizer::require_id(int32_t token) const {
  require<InputError>(
      token >= 0 && token < vocab_size(), "tokenizer",
      "expected a token id in [0, {}); got {}; was the text tokenized with another tokenizer?",
      vocab_size(), token);
}

std::string IncrementalDecoder::push(int32_t token) {
  std::string_view piece = tokenizer_.piece(token);
  const std::string_view prefix = tokenizer_.text_prefix();
  if (from_ == From::start && !begun_ && piece.starts_with(prefix))
    piece.remove_prefix(prefix.size());
  begun_ = begun_ || !tokenizer_.piece(token).empty();
  return stream_.push(piece);
}

std::string IncrementalDecoder::finish() {
  begun_ = false;
  return stream_.finish();
}

}  // namespace fovea
