// A model of the engine: checked, with the caches that its texts begin from. Private to
// fovea/engine.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "fovea/engine/engine.h"
#include "fovea/engine/prefix_cache.h"

namespace fovea {

/// A copy of the cache of one text with room for `capacity` tokens: it shares full pages with
/// `from`, which stays as it is.
DecodeState with_room(const DecodeState& from, int64_t capacity);
/// As above, of a text that goes on in the copy: keys sorted by group go along.
DecodeState with_room(DecodeState&& from, int64_t capacity);

class TextModel {
 public:
  /// Reads a token and decodes one. ConfigError for a context that the model cannot have;
  /// UnsupportedError naming the model and what does not decode.
  TextModel(EngineModel model, const EngineOptions& options);

  const Transformer& transformer() const { return model_.loaded.model; }
  const std::shared_ptr<const Tokenizer>& tokenizer() const { return model_.loaded.tokenizer; }
  const std::string& chat_template() const { return model_.loaded.chat_template; }
  const ServedModel& served() const { return served_; }
  int64_t context() const { return served_.context; }
  /// Beginnings of earlier prompts. None where the rotation of a token depends on the length of its
  /// text.
  PrefixCache* prefixes() { return prefixes_ ? &*prefixes_ : nullptr; }

  /// The cache of a text without tokens, of `positions` in all, with room for `capacity` of them.
  DecodeState begin(int64_t positions, int64_t capacity) const;
  /// Rows that the cache of a text grows by while it is written: one chunk, or all of `rest` where
  /// every growth copies the text.
  int64_t growth(int64_t rest) const;
  /// Bytes that `choices` texts of a prompt take at most, each with `rest` further tokens.
  int64_t bytes(int64_t prompt, int64_t rest, int64_t choices) const;

  /// Logits [n, v] after one more token of each text.
  at::Tensor step(std::span<const int64_t> tokens, std::span<DecodeState* const> states) const;

 private:
  void require_decodes() const;
  void describe(const EngineOptions& options);

  EngineModel model_;
  ServedModel served_;
  int64_t chunk_;
  bool together_ = false;     // texts share steps
  bool reads_pages_ = false;  // decoding reads shared pages where they lie
  bool sorts_keys_ = false;   // of long texts (SortedCopy)
  std::optional<DecodeState> empty_;
  RopeTable rope_;  // of all positions, unless the rule is dynamic
  std::optional<PrefixCache> prefixes_;
};

/// Lets a model that was made from `base` keep in memory only the numbers in which it differs.
void share_numbers(Transformer& model, const Transformer& base);

}  // namespace fovea
