// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/unigram.h"

#include <algorithm>

#include "fovea/base/error.h"
#include "fovea/text/utf8.h"

namespace fovea {
namespace {

constexpr int32_t kUnreached = -1;

constexpr int32_t kUnknown = -1;  // as the piece of a step

}  // namespace

/// The best way to a place of the word, by its last piece.
template <class Sum>
struct Unigram::Step {
  Sum score = 0;
  int32_t id = 0;
  int32_t begin = kUnreached;

  void improve(Sum candidate, size_t from, int32_t piece) {
    if (begin != kUnreached && !(candidate > score)) return;
    score = candidate;
    begin = static_cast<int32_t>(from);
    id = piece;
  }
};

Unigram::Unigram(const std::vector<std::string>& pieces, std::vector<double> scores,
                 const UnigramOptions& options)
    : trie_(pieces), scores_(std::move(scores)), options_(options) {}

void Unigram::encode(std::string_view word, std::vector<int32_t>& tokens) const {
  constexpr size_t kLongest = 0x7FFFFFFF;
  require<InputError>(word.size() < kLongest, "tokenizer",
                      "expected a text of less than 2 GB; got {} bytes", word.size());
  if (options_.single_precision) {
    encode_in<float>(word, tokens);
  } else {
    encode_in<double>(word, tokens);
  }
}

template <class Sum>
void Unigram::encode_in(std::string_view word, std::vector<int32_t>& tokens) const {
  std::vector<Step<Sum>> steps(word.size() + 1);  // by where they end
  for (size_t at = 0; at < word.size();) {
    const size_t character = utf8_step(word.substr(at)).size;
    const Sum here = steps[at].score;
    bool covered = false;
    trie_.prefixes(word.substr(at), [&](size_t size, int32_t id) {
      steps[at + size].improve(static_cast<Sum>(scores_[static_cast<size_t>(id)] + here), at, id);
      covered = covered || size == character;
    });
    if (!covered) {
      const auto candidate = static_cast<Sum>(static_cast<Sum>(options_.unknown_score) + here);
      steps[at + character].improve(candidate, at, kUnknown);
    }
    at += character;
  }
  // The best way, from its end; each step is turned round to say where it goes.
  for (auto at = static_cast<int32_t>(word.size()), next = at; at > 0;) {
    const int32_t before = steps[static_cast<size_t>(at)].begin;
    steps[static_cast<size_t>(at)].begin = next;
    next = at;
    at = before;
    if (at == 0) steps[0].begin = next;
  }
  size_t unknown_from = 0;
  bool unknown = false;
  const auto end_unknown = [&](size_t end) {
    if (unknown) push_unknown(word.substr(unknown_from, end - unknown_from), tokens);
    unknown = false;
  };
  for (size_t at = 0; at < word.size();) {
    const auto end = static_cast<size_t>(steps[at].begin);
    const int32_t id = steps[end].id;
    if (id != kUnknown) {
      end_unknown(at);
      tokens.push_back(id);
    } else if (!unknown) {
      unknown = true;
      unknown_from = at;
    }
    at = end;
  }
  end_unknown(word.size());
}

void Unigram::push_unknown(std::string_view text, std::vector<int32_t>& tokens) const {
  if (append_byte_tokens(text, options_.byte_tokens, tokens)) return;
  require<InputError>(options_.unknown >= 0, "tokenizer",
                      "the text has '{}', for which this tokenizer has neither a token nor an "
                      "unknown token",
                      text);
  tokens.push_back(options_.unknown);
}

}  // namespace fovea
