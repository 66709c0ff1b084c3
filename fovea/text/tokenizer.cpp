// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/tokenizer.h"

#include <algorithm>

#include "fovea/base/error.h"
#include "fovea/base/files.h"

namespace fovea {

std::vector<int32_t> Tokenizer::ends() const {
  std::vector<int32_t> all;
  if (eos() >= 0) all.push_back(eos());
  for (const int32_t token : more_ends_)
    if (std::ranges::find(all, token) == all.end()) all.push_back(token);
  return all;
}

bool Tokenizer::ends_text(int32_t token) const {
  return (token == eos() && token >= 0) || std::ranges::find(more_ends_, token) != more_ends_.end();
}

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

void Tokenizer::set_ends(std::span<const int32_t> ends, const std::string& where) {
  for (const int32_t token : ends) {
    require<InputError>(token >= 0 && token < vocab_size(), where,
                        "expected ids that end a text in [0, {}); got {}; correct eos_token_id",
                        vocab_size(), token);
  }
  more_ends_.assign(ends.begin(), ends.end());
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
