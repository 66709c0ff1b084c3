// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/split.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "fovea/base/error.h"
#include "fovea/base/rng.h"

namespace fovea {
namespace {

// A document this many times larger than the wanted validation part is not put there whole.
constexpr double kOversize = 2.0;
// How far from the wanted place a line border is looked for: 2 x 4 MiB of tokens in memory at most.
constexpr int64_t kLongestReach = 1 << 20;

class Splitter {
 public:
  Splitter(std::vector<CorpusSource>& sources, const Tokenizer& tokenizer, double fraction,
           uint64_t seed)
      : sources_(sources), tokenizer_(tokenizer), fraction_(fraction), seed_(seed) {}

  void split() {
    for (const CorpusSource& source : sources_) keep_large_documents(source);
    for (const CorpusSource& source : sources_) {
      if (!has_side(source, true)) choose_validation(source);
    }
    for (const CorpusSource& source : sources_) {
      if (!has_side(source, false)) cut_longest(source);
    }
    for (CorpusSource& source : sources_) assign(source);
  }

 private:
  // Where a document falls, uniform in [0, 1): a function of seed and content.
  double draw(uint64_t hash) const {
    return static_cast<double>(mix_seed(seed_, hash) >> 11) * 0x1p-53;
  }

  bool is_validation(uint64_t hash) const {
    return chosen_.contains(hash) || (draw(hash) < fraction_ && !kept_.contains(hash));
  }
  bool is_oversize(const CorpusSource& source, const StoredDocument& document) const {
    return static_cast<double>(document.length) >
           kOversize * fraction_ * static_cast<double>(source.store.tokens());
  }

  void keep_large_documents(const CorpusSource& source) {
    for (const StoredDocument& document : source.store.documents()) {
      if (is_oversize(source, document)) kept_.insert(document.hash);
    }
  }

  bool has_side(const CorpusSource& source, bool validation) const {
    const auto documents = source.store.documents();
    return std::any_of(documents.begin(), documents.end(), [&](const StoredDocument& document) {
      return cuts_.contains(document.hash) || is_validation(document.hash) == validation;
    });
  }

  void choose_validation(const CorpusSource& source) {
    const StoredDocument* best = nullptr;
    const auto documents = source.store.documents();
    for (const StoredDocument& document : documents) {
      if (!kept_.contains(document.hash) &&
          (best == nullptr || draw(document.hash) < draw(best->hash)))
        best = &document;
    }
    if (best == nullptr) {
      cut_longest(source);
    } else {
      chosen_.insert(best->hash);
    }
  }

  void cut_longest(const CorpusSource& source) {
    const auto documents = source.store.documents();
    const auto longest =
        std::max_element(documents.begin(), documents.end(),
                         [](const auto& a, const auto& b) { return a.length < b.length; });
    require<InputError>(longest != documents.end() && longest->length >= 2, "data",
                        "expected text for train and validation in source '{}'; got {} documents "
                        "of {} tokens in all; add "
                        "text",
                        source.name, documents.size(), source.store.tokens());
    const double wanted = fraction_ * static_cast<double>(source.store.tokens());
    const int64_t tail = std::clamp<int64_t>(std::llround(wanted), 1, longest->length / 2);
    cuts_.emplace(longest->hash, cut_position(source.store, *longest, longest->length - tail,
                                              std::min(tail / 2, kLongestReach)));
  }

  // The line border nearest to `wanted` within `reach` tokens, else a border of characters, else
  // `wanted`.
  int64_t cut_position(const TokenStore& store, const StoredDocument& document, int64_t wanted,
                       int64_t reach) const {
    const int64_t first = std::max<int64_t>(wanted - reach, 1),
                  last = std::min(wanted + reach, document.length - 1);
    std::vector<int32_t> tokens(static_cast<size_t>(last - first + 2));
    store.read(document.offset + first - 1, tokens);
    int64_t line = -1, character = -1;
    const auto nearer = [&](int64_t at, int64_t best) {
      return best < 0 || std::abs(at - wanted) < std::abs(best - wanted);
    };
    for (int64_t at = first; at <= last; ++at) {
      const std::string_view before = tokenizer_.piece(tokens[static_cast<size_t>(at - first)]);
      const std::string_view after = tokenizer_.piece(tokens[static_cast<size_t>(at - first + 1)]);
      if (before.ends_with('\n') && nearer(at, line)) line = at;
      const bool continues = !after.empty() && (static_cast<uint8_t>(after[0]) & 0xC0) == 0x80;
      if (!continues && nearer(at, character)) character = at;
    }
    return line >= 0 ? line : character >= 0 ? character : wanted;
  }

  void assign(CorpusSource& source) const {
    struct Held {
      double draw;
      DocumentSpan span;
    };
    std::vector<Held> held;
    std::unordered_set<uint64_t> cut_already;
    for (const StoredDocument& document : source.store.documents()) {
      const auto cut = cuts_.find(document.hash);
      if (cut != cuts_.end()) {
        source.train.push_back({document.offset, cut->second});
        if (cut_already.insert(document.hash).second) {
          held.push_back({draw(document.hash),
                          {document.offset + cut->second, document.length - cut->second}});
        }
      } else if (is_validation(document.hash)) {
        held.push_back({draw(document.hash), {document.offset, document.length}});
      } else {
        source.train.push_back({document.offset, document.length});
      }
    }
    std::stable_sort(held.begin(), held.end(),
                     [](const Held& a, const Held& b) { return a.draw < b.draw; });
    for (const Held& document : held) source.validation.push_back(document.span);
    source.train_tokens = count(source.train);
    source.validation_tokens = count(source.validation);
  }

  int64_t count(const std::vector<DocumentSpan>& documents) const {
    const int64_t marks = (tokenizer_.bos() >= 0) + (tokenizer_.eos() >= 0);
    int64_t tokens = 0;
    for (const DocumentSpan& document : documents) tokens += document.length + marks;
    return tokens;
  }

  std::vector<CorpusSource>& sources_;
  const Tokenizer& tokenizer_;
  double fraction_;
  uint64_t seed_;
  // By content hash; the rule is the draw, these are the exceptions.
  std::unordered_set<uint64_t> kept_;    // train although the draw says validation: too large
  std::unordered_set<uint64_t> chosen_;  // validation although the draw says train
  std::unordered_map<uint64_t, int64_t>
      cuts_;  // in both: train up to this token, validation from it
};

}  // namespace

void split_sources(std::vector<CorpusSource>& sources, const Tokenizer& tokenizer, double fraction,
                   uint64_t seed) {
  Splitter(sources, tokenizer, fraction, seed).split();
}

}  // namespace fovea
