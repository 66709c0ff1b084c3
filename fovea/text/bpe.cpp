// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/bpe.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>

#include "fovea/base/error.h"

namespace fovea {
namespace {

constexpr uint64_t kNoKey = ~uint64_t{0};
// Up to this many bytes looking for the best pair again and again is faster than a heap.
constexpr size_t kShortWord = 64;

uint64_t key_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

bool never_in_utf8(uint8_t byte) { return byte == 0xC0 || byte == 0xC1 || byte >= 0xF5; }

size_t slot_of(uint64_t key, size_t mask) {
  key *= 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio
  return (key >> 32) & mask;
}

}  // namespace

Bpe::Bpe(const std::vector<std::string>& pieces, const std::vector<BpeMerge>& merges,
         bool whole_words) {
  byte_.fill(-1);
  size_t bytes = 0;
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (pieces[id].size() == 1)
      byte_[static_cast<uint8_t>(pieces[id][0])] = static_cast<int32_t>(id);
    bytes += pieces[id].size();
  }
  for (size_t byte = 0; byte < byte_.size(); ++byte)
    require<InputError>(byte_[byte] >= 0 || never_in_utf8(static_cast<uint8_t>(byte)), "tokenizer",
                        "expected a token for every byte of UTF-8; there is none for byte {}",
                        byte);
  const size_t slots = std::bit_ceil(2 * merges.size() + 2);
  keys_.assign(slots, kNoKey);
  targets_.resize(slots);
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t key = key_of(merges[rank].left, merges[rank].right);
    size_t slot = slot_of(key, slots - 1);
    while (keys_[slot] != kNoKey && keys_[slot] != key) slot = (slot + 1) & (slots - 1);
    keys_[slot] = key;
    targets_[slot] = {static_cast<int32_t>(rank), merges[rank].merged};
  }
  // Most words of a text are one token; finding them whole saves their merges.
  text_.reserve(bytes);
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (pieces[id].empty()) continue;
    std::vector<int32_t> tokens;
    if (!whole_words) merge(pieces[id], tokens);
    if (!whole_words && (tokens.size() != 1 || tokens[0] != static_cast<int32_t>(id))) continue;
    const size_t begin = text_.size();
    text_ += pieces[id];
    whole_.emplace(std::string_view(text_).substr(begin), static_cast<int32_t>(id));
  }
}

const Bpe::Target* Bpe::find(int32_t left, int32_t right) const {
  const uint64_t key = key_of(left, right);
  const size_t mask = keys_.size() - 1;
  for (size_t slot = slot_of(key, mask);; slot = (slot + 1) & mask) {
    if (keys_[slot] == key) return &targets_[slot];
    if (keys_[slot] == kNoKey) return nullptr;
  }
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& tokens) const {
  if (const auto found = whole_.find(word); found != whole_.end()) {
    tokens.push_back(found->second);
  } else {
    merge(word, tokens);
  }
}

void Bpe::merge(std::string_view word, std::vector<int32_t>& tokens) const {
  const size_t begin = tokens.size();
  for (const char byte : word) {
    const int32_t token = byte_[static_cast<uint8_t>(byte)];
    if (token >= 0) {
      tokens.push_back(token);
    } else {  // U+FFFD, what decoding would make of it
      for (const int part : {0xEF, 0xBF, 0xBD}) tokens.push_back(byte_[static_cast<size_t>(part)]);
    }
  }
  if (tokens.size() - begin <= kShortWord) {
    merge_short(tokens, begin);
  } else {
    merge_long(tokens, begin);
  }
}

void Bpe::merge_short(std::vector<int32_t>& tokens, size_t begin) const {
  constexpr int32_t none = std::numeric_limits<int32_t>::max();
  std::array<int32_t, kShortWord> ranks, merged;  // of the pair that begins at i
  int32_t* ids = tokens.data() + begin;
  size_t n = tokens.size() - begin;
  const auto look = [&](size_t i) {
    const Target* target = i + 1 < n ? find(ids[i], ids[i + 1]) : nullptr;
    ranks[i] = target == nullptr ? none : target->rank;
    merged[i] = target == nullptr ? -1 : target->merged;
  };
  for (size_t i = 0; i < n; ++i) look(i);
  while (n > 1) {
    const size_t best = static_cast<size_t>(
        std::min_element(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(n - 1)) -
        ranks.begin());
    if (ranks[best] == none) break;
    ids[best] = merged[best];
    for (size_t i = best + 1; i + 1 < n; ++i) {
      ids[i] = ids[i + 1];
      ranks[i] = ranks[i + 1];
      merged[i] = merged[i + 1];
    }
    --n;
    look(best);
    if (best > 0) look(best - 1);
  }
  tokens.resize(begin + n);
}

void Bpe::merge_long(std::vector<int32_t>& tokens, size_t begin) const {
  struct Candidate {
    int32_t rank;
    uint32_t place;
    int32_t left, right;  // a candidate is stale where these stand there no longer
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : place > other.place;
    }
  };
  const auto n = static_cast<uint32_t>(tokens.size() - begin);
  int32_t* ids = tokens.data() + begin;
  std::vector<uint32_t> next(n), before(n);
  for (uint32_t i = 0; i < n; ++i) next[i] = i + 1, before[i] = i - 1;
  std::vector<Candidate> first;
  const auto candidate = [&](uint32_t i, uint32_t j, auto add) {
    if (const Target* target = find(ids[i], ids[j]))
      add(Candidate{target->rank, i, ids[i], ids[j]});
  };
  for (uint32_t i = 0; i + 1 < n; ++i)
    candidate(i, i + 1, [&](const Candidate& c) { first.push_back(c); });
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue({},
                                                                               std::move(first));
  while (!queue.empty()) {
    const Candidate c = queue.top();
    queue.pop();
    const uint32_t i = c.place;
    if (ids[i] != c.left || next[i] >= n || ids[next[i]] != c.right) continue;
    const uint32_t gone = next[i];
    ids[i] = find(c.left, c.right)->merged;
    ids[gone] = -1;
    next[i] = next[gone];
    if (next[i] < n) before[next[i]] = i;
    const auto push = [&](const Candidate& added) { queue.push(added); };
    if (next[i] < n) candidate(i, next[i], push);
    if (i > 0) candidate(before[i], i, push);
  }
  const auto end =
      std::remove(tokens.begin() + static_cast<std::ptrdiff_t>(begin), tokens.end(), -1);
  tokens.erase(end, tokens.end());
}

}  // namespace fovea
