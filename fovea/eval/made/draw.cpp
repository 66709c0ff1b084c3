// Random draws.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/made/draw.h"

#include <map>

#include "fovea/base/error.h"
#include "fovea/eval/made/english_words.h"

namespace fovea {
namespace {

constexpr int kMostTries = 1000;

std::string letters(Rng& rng, int count, char first) {
  std::string text;
  for (int i = 0; i < count; ++i) text += static_cast<char>(first + draw_below(rng, 26));
  return text;
}

std::string uuid(Rng& rng) {
  const uint64_t high = (rng.next_u64() & ~uint64_t{0xF000}) | 0x4000;               // version 4
  const uint64_t low = (rng.next_u64() & ~(uint64_t{3} << 62)) | uint64_t{2} << 62;  // variant 1
  return fmt::format("{:08x}-{:04x}-{:04x}-{:04x}-{:012x}", high >> 32, high >> 16 & 0xFFFF,
                     high & 0xFFFF, low >> 48, low & 0xFFFFFFFFFFFF);
}

std::string_view pick(Rng& rng, std::span<const std::string_view> words) {
  return words[rng.below(words.size())];
}

}  // namespace

std::vector<int64_t> draw_subset(Rng& rng, int64_t n, int64_t count) {
  require<ConfigError>(count >= 0 && count <= n, "draw", "cannot draw {} different ones of {}",
                       count, n);
  // Fisher-Yates on a list that holds only what was moved.
  std::map<int64_t, int64_t> moved;
  const auto at = [&](int64_t i) {
    const auto found = moved.find(i);
    return found == moved.end() ? i : found->second;
  };
  std::vector<int64_t> drawn;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t other = i + draw_below(rng, n - i);
    drawn.push_back(at(other));
    moved[other] = at(i);
  }
  return drawn;
}

std::string draw(Rng& rng, DrawKind kind) {
  switch (kind) {
    case DrawKind::numbers:
      return std::to_string(1'000'000 + draw_below(rng, 9'000'000));
    case DrawKind::uuids:
      return uuid(rng);
    case DrawKind::words: {
      const std::string_view adjective = pick(rng, english_adjectives());
      return fmt::format("{}-{}", adjective, pick(rng, english_nouns()));
    }
    case DrawKind::codes:
      return letters(rng, 6, 'a');
    case DrawKind::variables:
      return letters(rng, 5, 'A');
    case DrawKind::variables3:
      break;
  }
  return letters(rng, 3, 'A');
}

std::string DistinctDraws::operator()(Rng& rng) {
  for (int tries = 0; tries < kMostTries; ++tries) {
    std::string text = draw(rng, kind_);
    if (taken_.insert(text).second) return text;
  }
  fail<ConfigError>("draw",
                    "expected enough different keys for this length; all {} are taken: ask "
                    "for a shorter one",
                    taken_.size());
}

}  // namespace fovea
