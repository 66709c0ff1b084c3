// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/bpe.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>
#include <span>
#include <utility>

namespace fovea {
namespace {

constexpr uint64_t kNoKey = ~uint64_t{0};
// Up to this many bytes looking for the best pair again and again is faster than keeping places.
constexpr size_t kShortWord = 64;

uint64_t key_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

bool never_in_utf8(uint8_t byte) { return byte == 0xC0 || byte == 0xC1 || byte >= 0xF5; }

size_t slot_of(uint64_t key, size_t mask) {
  key *= 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio
  return (key >> 32) & mask;
}

/// The pieces of one word and the pairs that can be merged, by rank.
class LongWord {
 public:
  struct Pair {
    int32_t left, right, merged;
  };

  explicit LongWord(std::span<const int32_t> ids) : pieces_(ids.size()) {
    for (uint32_t i = 0; i < pieces_.size(); ++i) pieces_[i] = {ids[i], i + 1, i - 1};
  }

  /// The pair that begins at a place; right is -1 behind the last piece.
  std::pair<int32_t, int32_t> pair_at(uint32_t place) const {
    const Piece& piece = pieces_[place];
    return {piece.id, piece.next < pieces_.size() ? pieces_[piece.next].id : -1};
  }

  void add(int32_t rank, const Pair& pair, uint32_t place) {
    Places& of = places_[rank];
    if (of.done == of.at.size()) {
      of.pair = pair;
      of.at.clear();
      of.done = 0;
      of.ascending = true;
      ranks_.push(rank);
    }
    of.ascending = of.ascending && (of.at.empty() || of.at.back() < place);
    of.at.push_back(place);
  }

  /// Merges until no pair is left; look(place) adds the pair that begins there.
  template <class Look>
  void merge_all(const Look& look) {
    while (!ranks_.empty()) {
      const int32_t rank = ranks_.top();
      Places& of = places_[rank];
      // A lower rank that comes in goes first; this one is returned to.
      while (of.done < of.at.size() && ranks_.top() == rank) {
        if (!of.ascending) sort(of);
        if (of.done + kAhead < of.at.size())
          __builtin_prefetch(&pieces_[of.at[of.done + kAhead]], 1);
        merge(of.pair, of.at[of.done++], look);
      }
      if (ranks_.top() == rank) ranks_.pop();
    }
  }

  /// Writes the tokens that are left, in order; returns their number.
  size_t write(int32_t* tokens) const {
    size_t n = 0;
    for (uint32_t i = 0; i < pieces_.size(); i = pieces_[i].next) tokens[n++] = pieces_[i].id;
    return n;
  }

 private:
  static constexpr size_t kAhead = 16;  // merges between asking for a place and needing it
  // A piece stands at the place of its first byte, with the places of its neighbours.
  struct Piece {
    int32_t id;
    uint32_t next, before;
  };
  struct Places {
    Pair pair{};
    std::vector<uint32_t> at;
    size_t done = 0;
    bool ascending = true;
  };

  static void sort(Places& places) {
    std::sort(places.at.begin() + static_cast<std::ptrdiff_t>(places.done), places.at.end());
    places.ascending = true;
  }

  template <class Look>
  void merge(const Pair& pair, uint32_t place, const Look& look) {
    Piece& piece = pieces_[place];
    if (pair_at(place) != std::pair(pair.left, pair.right)) return;  // merged with others since
    Piece& gone = pieces_[piece.next];
    piece.id = pair.merged;
    piece.next = gone.next;
    gone.id = -1;
    if (piece.next < pieces_.size()) {
      pieces_[piece.next].before = place;
      look(place);
    }
    if (place > 0) look(piece.before);
  }

  std::vector<Piece> pieces_;
  std::unordered_map<int32_t, Places> places_;
  std::priority_queue<int32_t, std::vector<int32_t>, std::greater<>> ranks_;  // that have places
};

}  // namespace

Bpe::Bpe(const std::vector<std::string>& pieces, const std::vector<BpeMerge>& merges,
         bool whole_words, UnknownByte unknown)
    : unknown_(unknown) {
  byte_.fill(-1);
  size_t bytes = 0;
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (pieces[id].size() == 1)
      byte_[static_cast<uint8_t>(pieces[id][0])] = static_cast<int32_t>(id);
    bytes += pieces[id].size();
  }
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

void Bpe::push_bytes(std::string_view word, std::vector<int32_t>& tokens) const {
  bool after_unknown = false;
  const auto push = [&](uint8_t byte) {
    const bool known = byte_[byte] >= 0;
    if (known) {
      tokens.push_back(byte_[byte]);
    } else if (unknown_.token >= 0 && !(after_unknown && unknown_.fused)) {
      tokens.push_back(unknown_.token);
    }
    after_unknown = !known;
  };
  for (const char character : word) {
    const auto byte = static_cast<uint8_t>(character);
    if (byte_[byte] < 0 && never_in_utf8(byte)) {
      for (const int part : {0xEF, 0xBF, 0xBD})
        push(static_cast<uint8_t>(part));  // what decoding would make of it
    } else {
      push(byte);
    }
  }
}

void Bpe::merge(std::string_view word, std::vector<int32_t>& tokens) const {
  const size_t begin = tokens.size();
  push_bytes(word, tokens);
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

// All places of a pair are merged in one go, in ascending order: that is the order of the
// definition as long as no merge makes a pair of a lower rank, and where one does, its places come
// first. A sweep over known places waits for no memory, which a queue of single places does in
// every step of a word beyond the caches.
void Bpe::merge_long(std::vector<int32_t>& tokens, size_t begin) const {
  LongWord word(std::span<const int32_t>(tokens).subspan(begin));
  const auto look = [&](uint32_t place) {
    const auto [left, right] = word.pair_at(place);
    const Target* target = right < 0 ? nullptr : find(left, right);
    if (target != nullptr) word.add(target->rank, {left, right, target->merged}, place);
  };
  for (uint32_t place = 0; place + 1 < tokens.size() - begin; ++place) look(place);
  word.merge_all(look);
  tokens.resize(begin + word.write(tokens.data() + begin));
}

}  // namespace fovea
