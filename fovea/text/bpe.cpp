// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/bpe.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>
#include <span>
#include <unordered_map>
#include <utility>

#include "fovea/text/utf8.h"

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
    if (of.empty()) {
      of.pair = pair;
      of.at.clear();
      of.done = 0;
      ranks_.push(rank);
    }
    if (of.at.empty() || of.at.back() < place) {
      of.at.push_back(place);
    } else {
      of.early.push(place);
    }
  }

  /// Merges until no pair is left; look(place) adds the pair that begins there, and target(left,
  /// right) is what these become, or null.
  template <class Look, class Target>
  void merge_all(const Look& look, const Target& target) {
    while (!ranks_.empty()) {
      const int32_t rank = ranks_.top();
      Places& of = places_[rank];
      // A lower rank that comes in goes first; this one is returned to.
      while (!of.empty() && ranks_.top() == rank) {
        if (of.done + kAhead < of.at.size())
          __builtin_prefetch(&pieces_[of.at[of.done + kAhead]], 1);
        merge(rank, of.pair, of.next(), look, target);
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
    Pair pair{};               // of the first place; others of this rank are looked up
    std::vector<uint32_t> at;  // ascending; those before `done` are taken
    size_t done = 0;
    std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> early;  // came too late

    bool empty() const { return done == at.size() && early.empty(); }
    /// The leftmost place.
    uint32_t next() {
      if (early.empty() || (done < at.size() && at[done] < early.top())) return at[done++];
      const uint32_t place = early.top();
      early.pop();
      return place;
    }
  };

  template <class Look, class Target>
  void merge(int32_t rank, const Pair& pair, uint32_t place, const Look& look,
             const Target& target) {
    Piece& piece = pieces_[place];
    const auto [left, right] = pair_at(place);
    int32_t merged = pair.merged;
    if (left != pair.left || right != pair.right) {
      // Merged with others since, or another pair of the same rank.
      const auto* found = piece.id < 0 || right < 0 ? nullptr : target(left, right);
      if (found == nullptr || found->rank != rank) return;
      merged = found->merged;
    }
    Piece& gone = pieces_[piece.next];
    piece.id = merged;
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
         const BpeOptions& options)
    : options_(options), whole_(pieces.size()) {
  find_units(pieces);
  const size_t slots = std::bit_ceil(2 * merges.size() + 2);
  keys_.assign(slots, kNoKey);
  targets_.resize(slots);
  for (size_t i = 0; i < merges.size(); ++i) {
    const uint64_t key = key_of(merges[i].left, merges[i].right);
    size_t slot = slot_of(key, slots - 1);
    while (keys_[slot] != kNoKey && keys_[slot] != key) slot = (slot + 1) & (slots - 1);
    keys_[slot] = key;
    targets_[slot] = {merges[i].rank < 0 ? static_cast<int32_t>(i) : merges[i].rank,
                      merges[i].merged};
  }
  // Most words of a text are one token; finding them whole saves their merges.
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (pieces[id].empty()) continue;
    std::vector<int32_t> tokens;
    if (!options_.whole_words) merge(pieces[id], tokens);
    if (!options_.whole_words && (tokens.size() != 1 || tokens[0] != static_cast<int32_t>(id)))
      continue;
    if (whole_.find(pieces[id]) < 0) whole_.add(pieces[id], static_cast<int32_t>(id));
  }
  cut_at_mark_ = merges_stop_at_mark(pieces, merges);
}

void Bpe::find_units(const std::vector<std::string>& pieces) {
  unit_.assign(256, -1);
  for (size_t id = 0; id < pieces.size(); ++id) {
    const std::string& piece = pieces[id];
    if (piece.empty()) continue;
    size_t unit = static_cast<uint8_t>(piece[0]);
    if (options_.unit == BpeOptions::Unit::character) {
      const Utf8Step step = utf8_step(piece);
      if (step.kind != Utf8Step::Kind::character || step.size != piece.size()) continue;
      unit = utf8_character(piece, step.size);
    } else if (piece.size() != 1) {
      continue;
    }
    if (unit >= unit_.size()) unit_.resize(unit + 1, -1);
    unit_[unit] = static_cast<int32_t>(id);
  }
}

// Then a text can be encoded word by word: a word is often one token, and short.
bool Bpe::merges_stop_at_mark(const std::vector<std::string>& pieces,
                              const std::vector<BpeMerge>& merges) const {
  if (options_.unit != BpeOptions::Unit::character || options_.whole_words) return false;
  const size_t mark = utf8_character(kSpaceMark, kSpaceMark.size());
  if (mark >= unit_.size() || unit_[mark] < 0) return false;
  return std::ranges::all_of(merges, [&](const BpeMerge& merge) {
    return !pieces[static_cast<size_t>(merge.right)].starts_with(kSpaceMark) ||
           pieces[static_cast<size_t>(merge.left)].ends_with(kSpaceMark);
  });
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
  while (cut_at_mark_ && word.size() > kSpaceMark.size()) {
    size_t cut = 0;  // the end of the marks at the start
    while (word.substr(cut).starts_with(kSpaceMark)) cut += kSpaceMark.size();
    cut = word.find(kSpaceMark, cut);
    if (cut == std::string_view::npos) break;
    encode_part(word.substr(0, cut), tokens);
    word.remove_prefix(cut);
  }
  if (!word.empty()) encode_part(word, tokens);
}

void Bpe::encode_part(std::string_view part, std::vector<int32_t>& tokens) const {
  if (const int32_t token = whole_.find(part); token >= 0) {
    tokens.push_back(token);
  } else {
    merge(part, tokens);
  }
}

void Bpe::push_bytes(std::string_view word, std::vector<int32_t>& tokens) const {
  bool after_unknown = false;
  const auto push = [&](uint8_t byte) {
    const bool known = unit_[byte] >= 0;
    if (known) {
      tokens.push_back(unit_[byte]);
    } else if (options_.unknown.token >= 0 && !(after_unknown && options_.unknown.fused)) {
      tokens.push_back(options_.unknown.token);
    }
    after_unknown = !known;
  };
  for (const char character : word) {
    const auto byte = static_cast<uint8_t>(character);
    if (unit_[byte] < 0 && never_in_utf8(byte)) {
      for (const int part : {0xEF, 0xBF, 0xBD})
        push(static_cast<uint8_t>(part));  // what decoding would make of it
    } else {
      push(byte);
    }
  }
}

// As the `tokenizers` package has it, the unknown token waits for the next character with a token
// of its own: the bytes of characters in between come first.
void Bpe::push_characters(std::string_view word, std::vector<int32_t>& tokens) const {
  const UnknownUnit unknown = options_.unknown;
  bool waiting = false;
  const auto push_unknown = [&] {
    if (waiting) tokens.push_back(unknown.token);
    waiting = false;
  };
  while (!word.empty()) {
    const size_t size = utf8_step(word).size;
    const size_t code = utf8_character(word, size);
    const std::string_view character = word.substr(0, size);
    word.remove_prefix(size);
    if (code < unit_.size() && unit_[code] >= 0) {
      push_unknown();
      tokens.push_back(unit_[code]);
    } else if (!append_byte_tokens(character, options_.byte_tokens, tokens)) {
      if (!unknown.fused) push_unknown();
      waiting = unknown.token >= 0;
    }
  }
  push_unknown();
}

void Bpe::merge(std::string_view word, std::vector<int32_t>& tokens) const {
  const size_t begin = tokens.size();
  if (options_.unit == BpeOptions::Unit::byte) {
    push_bytes(word, tokens);
  } else {
    push_characters(word, tokens);
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

// All places of a rank are merged in one go, in ascending order: that is the order of the
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
  word.merge_all(look, [&](int32_t left, int32_t right) { return find(left, right); });
  tokens.resize(begin + word.write(tokens.data() + begin));
}

}  // namespace fovea
