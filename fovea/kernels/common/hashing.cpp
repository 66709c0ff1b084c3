// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/common/hashing.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace fovea::kernels {
namespace {

constexpr int64_t kLine = 64, kHead = sizeof(BucketHead);
// Spare numbers: with few, their counts wait for one another.
constexpr int64_t kFewestSpare = 8, kMostSpare = 32;

int64_t width_of(int64_t n) { return std::bit_width(static_cast<uint64_t>(n)); }

}  // namespace

// Buckets are 4/7 full on average, so that few overflow; where hashes are too short for that, they
// take lines for 5/4 of their average.
BucketLayout::BucketLayout(const HashRule& rule, int64_t keys) : key_bits(width_of(keys - 1)) {
  for (entry_bytes = 2;; entry_bytes *= 2) {
    const int64_t usual = (kLine - kHead) / entry_bytes * 4 / 7;
    bits = std::min(rule.bits, width_of((keys - 1) / usual));
    shift = rule.bits - bits;
    if (entry_bytes == 8 || key_bits + shift <= 8 * entry_bytes) break;
  }
  const int64_t average = keys >> bits;
  bytes = (kHead + entry_bytes * average * 5 / 4 + kLine - 1) / kLine * kLine;
  const int64_t wider = std::max(key_bits, width_of(keys - 1 + kFewestSpare));
  if (wider + shift > 8 * entry_bytes) return;
  key_bits = wider;
  spare = std::min(kMostSpare, (int64_t{1} << key_bits) - keys);
}

BucketFill::BucketFill(const HashRule& rule, int64_t keys, const int32_t* hashes)
    : tables_(rule.tables),
      keys_(keys),
      hashes_(hashes),
      layout_(rule, keys),
      counts_(static_cast<size_t>(rule.tables * layout_.buckets())),
      more_begin_{0} {
  const auto full = static_cast<uint32_t>(layout_.full());
  for (int64_t n = 0; n < keys; ++n) {
    for (int64_t l = 0; l < tables_; ++l)
      ++counts_[static_cast<size_t>((l << layout_.bits) +
                                    (hashes[n * tables_ + l] >> layout_.shift))];
  }
  for (int64_t l = 0; l < tables_; ++l) {
    int64_t more = more_begin_.back();
    for (int64_t b = 0; b < layout_.buckets(); ++b) {
      const uint32_t count = counts_[static_cast<size_t>((l << layout_.bits) + b)];
      more += count > full ? count - full : 0;
    }
    more_begin_.push_back(more);
  }
}

template <class Entry>
void BucketFill::write_as(std::byte* buckets, std::byte* more) const {
  const auto full = static_cast<uint32_t>(layout_.full());
  const uint64_t rest_mask = (uint64_t{1} << layout_.shift) - 1;
  std::vector<uint32_t> next(static_cast<size_t>(layout_.buckets()));
  for (int64_t l = 0; l < tables_; ++l) {
    std::byte* const table = buckets + l * layout_.buckets() * layout_.bytes;
    auto* const further = reinterpret_cast<Entry*>(more) + more_begin_[static_cast<size_t>(l)];
    uint32_t first = 0;
    for (int64_t b = 0; b < layout_.buckets(); ++b) {
      const uint32_t count = counts_[static_cast<size_t>((l << layout_.bits) + b)];
      const BucketHead head{.count = count, .first = first};
      std::memcpy(table + b * layout_.bytes, &head, sizeof(head));
      if (layout_.spare > 0) {
        auto* const places = reinterpret_cast<Entry*>(table + b * layout_.bytes + kHead);
        for (uint32_t n = count; n < full; ++n)
          places[n] = static_cast<Entry>(keys_ + n % layout_.spare);
      }
      first += count > full ? count - full : 0;
    }
    std::ranges::fill(next, 0u);
    for (int64_t n = 0; n < keys_; ++n) {
      const auto hash = static_cast<uint64_t>(hashes_[n * tables_ + l]);
      std::byte* const bucket = table + static_cast<int64_t>(hash >> layout_.shift) * layout_.bytes;
      const auto entry =
          static_cast<Entry>((hash & rest_mask) << layout_.key_bits | static_cast<uint64_t>(n));
      const uint32_t place = next[hash >> layout_.shift]++;
      if (place < full) {
        std::memcpy(bucket + kHead + place * sizeof(Entry), &entry, sizeof(entry));
      } else {
        BucketHead head;
        std::memcpy(&head, bucket, sizeof(head));
        further[head.first + (place - full)] = entry;
      }
    }
  }
}

void BucketFill::write(std::byte* buckets, std::byte* more) const {
  switch (layout_.entry_bytes) {
    case 2:
      return write_as<uint16_t>(buckets, more);
    case 4:
      return write_as<uint32_t>(buckets, more);
    default:
      return write_as<uint64_t>(buckets, more);
  }
}

}  // namespace fovea::kernels
