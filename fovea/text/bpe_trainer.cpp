// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/bpe_trainer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <queue>
#include <unordered_set>

#include "fovea/base/error.h"
#include "fovea/text/byte_names.h"
#include "fovea/text/json_tokenizer.h"
#include "fovea/text/tokenizer_json.h"

namespace fovea {
namespace {

using Pair = std::pair<int32_t, int32_t>;

struct PairHash {
  size_t operator()(const Pair& p) const {
    const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(p.first)) << 32 |
                         static_cast<uint32_t>(p.second);
    return static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> 20);
  }
};

/// The words as token lists, and where each pair stands. A merge touches only the words that hold
/// it.
class Merger {
 public:
  explicit Merger(const std::unordered_map<std::string, int64_t>& counts) {
    for (int byte = 0; byte < 256; ++byte) id_of(std::string(1, static_cast<char>(byte)));
    for (const auto& [text, count] : counts) {
      Word word{.count = count};
      for (const char byte : text) word.tokens.push_back(static_cast<uint8_t>(byte));
      words_.push_back(std::move(word));
    }
    for (size_t i = 0; i < words_.size(); ++i) count_pairs(i, 1, nullptr);
    for (const auto& [pair, stats] : pairs_) queue_.push({stats.count, pair, &pieces_});
  }

  /// The next merge; false where no pair stands twice.
  bool step(BpeTrainer::Merges& merges) {
    while (!queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      const auto found = pairs_.find(best.pair);
      // Counts in the queue are upper bounds: a pair that has become rarer goes back with what it
      // has now.
      const int64_t now = found == pairs_.end() ? 0 : found->second.count;
      if (now != best.count) {
        if (now > 1) queue_.push({now, best.pair, &pieces_});
        continue;
      }
      if (now < 2) return false;
      merges.emplace_back(piece(best.pair.first), piece(best.pair.second));
      merge(best.pair);
      return true;
    }
    return false;
  }

 private:
  struct Word {
    std::vector<int32_t> tokens;
    int64_t count = 0;
  };
  struct Stats {
    int64_t count = 0;
    std::unordered_set<uint32_t> words;
  };
  struct Candidate {
    int64_t count;
    Pair pair;
    const std::vector<std::string>* pieces;
    bool operator<(const Candidate& o) const {
      if (count != o.count) return count < o.count;
      const auto text = [&](int32_t id) -> const std::string& {
        return (*pieces)[static_cast<size_t>(id)];
      };
      if (pair.first != o.pair.first) return text(pair.first) < text(o.pair.first);
      return text(pair.second) < text(o.pair.second);
    }
  };
  const std::string& piece(int32_t id) const { return pieces_[static_cast<size_t>(id)]; }

  /// Two merges may give the same piece ("a" + "bc", "ab" + "c"): it is one token.
  int32_t id_of(const std::string& piece) {
    const auto [found, fresh] = ids_.emplace(piece, static_cast<int32_t>(pieces_.size()));
    if (fresh) pieces_.push_back(piece);
    return found->second;
  }

  /// Adds the pairs of a word `sign` times; pairs that became more frequent go to `grown`.
  void count_pairs(size_t index, int64_t sign, std::vector<Pair>* grown) {
    const Word& word = words_[index];
    for (size_t i = 0; i + 1 < word.tokens.size(); ++i) {
      const Pair pair{word.tokens[i], word.tokens[i + 1]};
      Stats& stats = pairs_[pair];
      stats.count += sign * word.count;
      if (sign > 0) {
        stats.words.insert(static_cast<uint32_t>(index));
        if (grown != nullptr) grown->push_back(pair);
      }
    }
  }

  void merge(const Pair& pair) {
    const int32_t merged = id_of(piece(pair.first) + piece(pair.second));
    const std::unordered_set<uint32_t> where = std::move(pairs_[pair].words);
    std::vector<Pair> grown;
    for (const uint32_t index : where) {
      count_pairs(index, -1, nullptr);
      std::vector<int32_t>& tokens = words_[index].tokens;
      size_t to = 0;
      for (size_t i = 0; i < tokens.size(); ++i, ++to) {
        const bool here = i + 1 < tokens.size() && Pair{tokens[i], tokens[i + 1]} == pair;
        tokens[to] = here ? merged : tokens[i];
        i += here;
      }
      tokens.resize(to);
      count_pairs(index, 1, &grown);
    }
    pairs_.erase(pair);
    std::ranges::sort(grown);
    grown.erase(std::unique(grown.begin(), grown.end()), grown.end());
    for (const Pair& p : grown) {
      if (p.first == merged || p.second == merged) queue_.push({pairs_[p].count, p, &pieces_});
    }
  }

  std::vector<Word> words_;
  std::vector<std::string> pieces_;
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<Pair, Stats, PairHash> pairs_;
  std::priority_queue<Candidate> queue_;
};

}  // namespace

BpeTrainer::BpeTrainer()
    : splitter_({{std::string(kGpt2Pattern), WordSplitter::Rule::Keep::isolate}}) {}

void BpeTrainer::add(std::string_view text) {
  bytes_ += static_cast<int64_t>(text.size());
  splitter_.split(text, [&](std::string_view word) { ++counts_[std::string(word)]; });
}

size_t BpeTrainer::add_prefix(std::string_view text) {
  const size_t cut = safe_cut(text);
  if (cut > 0) add(text.substr(0, cut));
  return cut;
}

BpeTrainer::Merges BpeTrainer::train(int64_t count,
                                     const std::function<void(int64_t, int64_t)>& progress) const {
  Merges merges;
  Merger merger(counts_);
  while (static_cast<int64_t>(merges.size()) < count && merger.step(merges)) {
    if (progress) progress(static_cast<int64_t>(merges.size()), count);
  }
  return merges;
}

std::shared_ptr<const Tokenizer> make_bpe_tokenizer(const BpeTrainer::Merges& merges) {
  ByteLevelFile file;
  for (int byte = 0; byte < 256; ++byte) file.pieces.emplace_back(1, static_cast<char>(byte));
  std::unordered_set<std::string> known(file.pieces.begin(), file.pieces.end());
  for (const auto& [left, right] : merges) {
    if (known.insert(left + right).second) file.pieces.push_back(left + right);
    file.merges.emplace_back(left, right);
  }
  file.pattern = kGpt2Pattern;
  const auto next = static_cast<int32_t>(file.pieces.size());
  file.specials = {{next, "<|begin|>"}, {next + 1, "<|end|>"}, {next + 2, "<|pad|>"}};
  file.begin = file.specials.front();
  return json_tokenizer(byte_level_json(file), {.eos = "<|end|>", .pad = "<|pad|>"}, "tokenizer");
}

}  // namespace fovea
