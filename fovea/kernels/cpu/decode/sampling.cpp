// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/decode/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "fovea/kernels/cpu/decode/selector.h"
#include "fovea/kernels/cpu/kernel_levels.h"
#include "fovea/kernels/cpu/team.h"

namespace fovea::kernels {

const SamplingTable& sampling_table() { return chosen_kernels<SamplingTable>(); }

namespace {

// Rows hashed at a time, by one thread; below this many products a thread's start costs more.
constexpr int64_t kHashedRows = 32, kParallelProducts = int64_t{1} << 21;
// Below this many keys a thread's start costs more than it saves.
constexpr int64_t kParallelKeys = 4096;
// Tables from use to prefetch. Buckets come into the second-level cache first: the first one waits
// for few lines at a time, and counting waits with it. What does not fit into a bucket is known
// when that has come.
constexpr int64_t kBucketsAhead = 48, kMoreAhead = 12, kNearAhead = 4;
// Tables that are counted before what did not fit into their buckets.
constexpr int64_t kTablesTogether = 256;

// The bits of table l of a row's signs.
int32_t hash_of(const HashRule& rule, const uint32_t* words, int64_t l) {
  const int64_t first = l * rule.bits;
  uint64_t two = 0;
  std::memcpy(&two, words + first / kHashPanel, sizeof(two));
  return static_cast<int32_t>((two >> (first % kHashPanel)) & ((uint64_t{1} << rule.bits) - 1));
}

// What one thread needs for a head, kept from token to token.
struct SamplingScratch {
  std::vector<uint8_t> counts;
  std::vector<int32_t> list;
  std::vector<float> products, out, lengths;
};

template <class X>
X* at_least(std::vector<X>& x, int64_t size) {
  if (std::ssize(x) < size) x.resize(static_cast<size_t>(size));
  return x.data();
}

// Sampled keys first, then those that are always read.
template <class T>
struct ReadKeys {
  int64_t sampled = 0, count = 0;
  const int32_t* list = nullptr;

  ReadKeys(const SampledDecode<T>& p, const HashTable& table, const int32_t* hashes,
           SamplingScratch& scratch) {
    const int64_t keys = p.sizes.keys, begin = std::min(table.begin, keys);
    const int64_t end = std::clamp(table.end, begin, keys);
    int32_t* const to = at_least(scratch.list, keys + kFoundRoom);
    if (end > begin) {
      sampled = find_twice(p.rule, table, hashes, at_least(scratch.counts, table.counted()), to);
      for (int64_t n = 0; n < sampled; ++n) __builtin_prefetch(table.lengths + to[n]);
    }
    count = sampled;
    for (int64_t j = 0; j < begin; ++j) to[count++] = static_cast<int32_t>(j);
    for (int64_t j = end; j < keys; ++j) to[count++] = static_cast<int32_t>(j);
    list = to;
  }
};

float dot(const float* a, const float* b, int64_t n) {
  double sum = 0.0;
  for (int64_t c = 0; c < n; ++c) sum += static_cast<double>(a[c]) * b[c];
  return static_cast<float>(sum);
}

/// The keys that a head reads, sampled ones first, and what their cosines to the query need.
struct HeadKeys {
  const int32_t* list = nullptr;
  int64_t count = 0, sampled = 0;
  const float *centre = nullptr, *lengths = nullptr;  ///< as in HashTable
};

struct HeadRule {
  int64_t head_dim = 0, value_dim = 0;
  float scale = 1.0f;
  const float* log_weights = nullptr;
};

/// Inline: GCC takes a function that only prefetches for one that does nothing.
template <class T>
FOVEA_INLINE void fetch_first(const ListedRows<T>& rows) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  for (int64_t n = 0; n < std::min(rows.count, kListedAhead); ++n)
    for (int64_t c = 0; c < rows.width; c += kLine)
      __builtin_prefetch(rows.data + rows.list[n] * rows.row + c, 0, 2);
}

/// Writes the result of a head; returns its log of the sum of weights.
template <class T>
float attend(const HeadRule& rule, const HeadKeys& keys, const float* q, ListedRows<T> k,
             ListedRows<T> v, SamplingScratch& scratch, T* to) {
  k.list = v.list = keys.list;
  k.count = v.count = keys.count;
  float* const weights = at_least(scratch.products, keys.count);
  fetch_first(k);
  selector_table<T>().products(q, k, weights);
  fetch_first(v);
  const WeightTotal sum =
      sampling_table().weights({.products = weights,
                                .list = keys.list,
                                .count = keys.count,
                                .sampled = keys.sampled,
                                .scale = rule.scale,
                                .with_centre = dot(q, keys.centre, rule.head_dim),
                                .query_length = std::sqrt(dot(q, q, rule.head_dim)),
                                .lengths = keys.lengths,
                                .log_weights = rule.log_weights});
  float* const out = at_least(scratch.out, rule.value_dim);
  selector_table<T>().weighted_sum(weights, v, out);
  for (int64_t c = 0; c < rule.value_dim; ++c) from_float(out[c] / sum.total, to[c]);
  return sum.top + std::log(sum.total);
}

template <class T>
void decode_head(const SampledDecode<T>& p, int64_t item, const float* q, const int32_t* hashes,
                 SamplingScratch& scratch) {
  const int64_t b = item / p.sizes.heads, h = item % p.sizes.heads;
  const int64_t g = h / (p.sizes.heads / p.sizes.kv_heads);
  const HashTable& table = p.tables[b * p.sizes.kv_heads + g];
  const ReadKeys<T> keys(p, table, hashes, scratch);
  p.lse[item] = attend<T>({.head_dim = p.sizes.head_dim,
                           .value_dim = p.sizes.value_dim,
                           .scale = p.tau != nullptr ? 1.0f / p.tau[b] : p.scale,
                           .log_weights = p.rule.log_weights},
                          {.list = keys.list,
                           .count = keys.count,
                           .sampled = keys.sampled,
                           .centre = table.centre,
                           .lengths = table.lengths},
                          q, {.data = p.k.at(b, g), .row = p.k.row, .width = p.sizes.head_dim},
                          {.data = p.v.at(b, g), .row = p.v.row, .width = p.sizes.value_dim},
                          scratch, p.out.at(b, h));
  p.read[item] = keys.count;
}

/// The list of a row: keys of set bits, then those outside of [begin, end).
int64_t list_row(const uint32_t* words, int64_t begin, int64_t end, int64_t length, int32_t* list,
                 int64_t& sampled) {
  int64_t count = 0;
  for (int64_t n = begin / kHashPanel; n * kHashPanel < end; ++n) {
    for (uint32_t word = words[n]; word != 0; word &= word - 1) {
      const int64_t j = n * kHashPanel + std::countr_zero(word);
      if (j >= begin && j < end) list[count++] = static_cast<int32_t>(j);
    }
  }
  sampled = count;
  for (int64_t j = 0; j < begin; ++j) list[count++] = static_cast<int32_t>(j);
  for (int64_t j = end; j < length; ++j) list[count++] = static_cast<int32_t>(j);
  return count;
}

/// |k - centre| of the listed keys, by key.
template <class T>
const float* centred_lengths(const SampledRows<T>& p, const float* centre, const HeadKeys& keys,
                             int64_t length, SamplingScratch& scratch) {
  float* const with_centre = at_least(scratch.products, keys.sampled);
  selector_table<T>().products(centre,
                               {.data = p.k,
                                .row = p.key_row,
                                .width = p.head_dim,
                                .list = keys.list,
                                .count = keys.sampled},
                               with_centre);
  float* const lengths = at_least(scratch.lengths, length);
  const float square = dot(centre, centre, p.head_dim);
  for (int64_t n = 0; n < keys.sampled; ++n) {
    const int32_t j = keys.list[n];
    lengths[j] = std::sqrt(std::max(0.0f, p.squares[j] - 2.0f * with_centre[n] + square));
  }
  return lengths;
}

template <class T>
void sample_row(const SampledRows<T>& p, int64_t h, int64_t r, SamplingScratch& scratch) {
  const int64_t length = p.first_length + r, begin = std::min(p.begin, length);
  const int64_t end = std::clamp(p.ends[r], begin, length);
  int32_t* const list = at_least(scratch.list, length);
  HeadKeys keys{.list = list, .centre = p.centres + r * p.head_dim};
  keys.count =
      list_row(p.twice + (h * p.rows + r) * p.words, begin, end, length, list, keys.sampled);
  keys.lengths = centred_lengths(p, keys.centre, keys, length, scratch);
  p.lse[h * p.lse_head + r] = attend<T>({.head_dim = p.head_dim,
                                         .value_dim = p.value_dim,
                                         .scale = p.tau != nullptr ? 1.0f / p.tau[r] : p.scale,
                                         .log_weights = p.log_weights},
                                        keys, p.q + (h * p.rows + r) * p.head_dim,
                                        {.data = p.k, .row = p.key_row, .width = p.head_dim},
                                        {.data = p.v, .row = p.value_row, .width = p.value_dim},
                                        scratch, p.out + h * p.out_head + r * p.out_row);
  p.read[h * p.rows + r] = keys.count;
}

/// Clears the bits of `words` words from bit `end` on.
void clear_from(uint32_t* to, int64_t words, int64_t end) {
  const int64_t kept = std::clamp<int64_t>(end, 0, words * kHashPanel);
  int64_t n = kept / kHashPanel;
  if (kept % kHashPanel != 0) to[n++] &= (uint32_t{1} << (kept % kHashPanel)) - 1;
  std::fill(to + n, to + words, uint32_t{0});
}

}  // namespace

void run(const RowHashes& p) {
  const HashRule& rule = p.rule;
  const int64_t blocks = (p.count + kHashedRows - 1) / kHashedRows, pitch = rule.panels() + 1;
  const bool parallel =
      blocks > 1 && p.count * rule.tables * rule.bits * rule.head_dim > kParallelProducts;
  Team::run(parallel, [&](Team::Member& team) {
    thread_local std::vector<uint32_t> memory;
    uint32_t* const words = at_least(memory, kHashedRows * pitch);
    team.each(
        blocks,
        [&](int64_t block) {
          const int64_t first = block * kHashedRows;
          const int64_t some = std::min(kHashedRows, p.count - first);
          sampling_table().signs(rule, p.rows + first * rule.head_dim, some, words);
          for (int64_t r = 0; r < some; ++r)
            for (int64_t l = 0; l < rule.tables; ++l)
              p.hashes[(first + r) * rule.tables + l] = hash_of(rule, words + r * pitch, l);
        },
        Meet::no);
  });
}

namespace {

/// How keys are counted. A table counts a key once at most, so up to 255 tables fill a byte.
enum class Counting { whole_hashes, other_bits, to_two };

constexpr int64_t kMostCounts = 255;

Counting counting_of(const HashRule& rule, const HashTable& table) {
  if (rule.tables > kMostCounts) return Counting::to_two;
  return table.layout.shift == 0 ? Counting::whole_hashes : Counting::other_bits;
}

/// Counts the key of an entry if its other bits are `rest`; whole_hashes: there are none.
template <Counting form>
FOVEA_INLINE void count(uint64_t entry, int64_t key_bits, uint64_t rest,
                        uint8_t* __restrict counts) {
  if constexpr (form == Counting::whole_hashes) {
    ++counts[entry];
    return;
  }
  // Without a branch: which keys have been met before cannot be predicted.
  uint8_t& times = counts[entry & ((uint64_t{1} << key_bits) - 1)];
  uint32_t counted = uint32_t{entry >> key_bits == rest};
  if constexpr (form == Counting::to_two) counted &= uint32_t{times < 2};
  times = static_cast<uint8_t>(times + counted);
}

/// The buckets of a query, table by table.
struct QueryBuckets {
  const std::byte* at[kTablesTogether];

  BucketHead head(int64_t n) const {
    BucketHead head;
    std::memcpy(&head, at[n], sizeof(head));
    return head;
  }
};

/// Counts the keys of the buckets of tables [first, end). What a bucket holds cannot be predicted,
/// and a wrong guess costs as much as counting what a line holds: so all places of a bucket are
/// counted where spare numbers fill it up, and what did not fit into buckets in a pass of its own.
template <class Entry, Counting form>
void count_in_buckets(const HashTable& table, const int32_t* hashes, int64_t first, int64_t end,
                      uint8_t* counts) {
  const BucketLayout layout = table.layout;
  const auto full = static_cast<uint32_t>(layout.full());
  const int64_t tables = end - first, bytes = layout.bytes;
  QueryBuckets buckets;
  for (int64_t n = 0; n < tables; ++n)
    buckets.at[n] = table.buckets +
                    (((first + n) << layout.bits) + (hashes[first + n] >> layout.shift)) * bytes;
  const auto more = [&](int64_t n, const BucketHead& head) {
    return table.more +
           (table.more_begin[first + n] + head.first) * static_cast<int64_t>(sizeof(Entry));
  };
  const auto rest_of = [&](int64_t n) {
    return static_cast<uint64_t>(hashes[first + n]) & ((uint64_t{1} << layout.shift) - 1);
  };
  const auto count_some = [&](const Entry* entries, uint32_t number, uint64_t rest)
      __attribute__((always_inline)) {
    for (uint32_t n = 0; n < number; ++n) count<form>(entries[n], layout.key_bits, rest, counts);
  };
  const auto count_places = [&](const Entry* entries, uint64_t rest)
      __attribute__((always_inline)) {
    constexpr uint32_t kLine = 64 / sizeof(Entry);
    constexpr uint32_t kFirst = kLine - sizeof(BucketHead) / sizeof(Entry);
#pragma GCC unroll 32
    for (uint32_t n = 0; n < kFirst; ++n) count<form>(entries[n], layout.key_bits, rest, counts);
    for (uint32_t line = kFirst; line < full; line += kLine) {
#pragma GCC unroll 32
      for (uint32_t n = 0; n < kLine; ++n)
        count<form>(entries[line + n], layout.key_bits, rest, counts);
    }
  };
  // Not functions of their own: GCC takes one that only prefetches for one that does nothing.
  const auto prefetch = [&](int64_t n) __attribute__((always_inline)) {
    if (n >= tables) return;
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(buckets.at[n] + at, 0, 2);
  };
  const auto prefetch_near = [&](int64_t n) __attribute__((always_inline)) {
    if (n >= tables) return;
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(buckets.at[n] + at, 0, 3);
  };
  const auto prefetch_more = [&](int64_t n) __attribute__((always_inline)) {
    if (n >= tables) return;
    const BucketHead head = buckets.head(n);
    __builtin_prefetch(head.count > full ? more(n, head) : buckets.at[n], 0, 2);
  };
  for (int64_t n = 0; n < kBucketsAhead; ++n) prefetch(n);
  for (int64_t n = 0; n < kMoreAhead; ++n) prefetch_more(n);
  int64_t beyond[kTablesTogether];
  int64_t overfull = 0;
  for (int64_t n = 0; n < tables; ++n) {
    prefetch(n + kBucketsAhead);
    prefetch_more(n + kMoreAhead);
    prefetch_near(n + kNearAhead);
    const BucketHead head = buckets.head(n);
    const auto* const entries = reinterpret_cast<const Entry*>(buckets.at[n] + sizeof(head));
    if (layout.spare > 0)
      count_places(entries, rest_of(n));
    else
      count_some(entries, std::min(head.count, full), rest_of(n));
    beyond[overfull] = n;
    overfull += head.count > full ? 1 : 0;
  }
  for (int64_t n = 0; n < overfull; ++n) {
    const BucketHead head = buckets.head(beyond[n]);
    count_some(reinterpret_cast<const Entry*>(more(beyond[n], head)), head.count - full,
               rest_of(beyond[n]));
  }
}

template <class Entry>
void count_entries(const HashRule& rule, const HashTable& table, const int32_t* hashes,
                   uint8_t* counts) {
  for (int64_t first = 0; first < rule.tables; first += kTablesTogether) {
    const int64_t end = std::min(first + kTablesTogether, rule.tables);
    switch (counting_of(rule, table)) {
      case Counting::whole_hashes:
        count_in_buckets<Entry, Counting::whole_hashes>(table, hashes, first, end, counts);
        break;
      case Counting::other_bits:
        count_in_buckets<Entry, Counting::other_bits>(table, hashes, first, end, counts);
        break;
      default:
        count_in_buckets<Entry, Counting::to_two>(table, hashes, first, end, counts);
    }
  }
}

}  // namespace

int64_t find_twice(const HashRule& rule, const HashTable& table, const int32_t* hashes,
                   uint8_t* counts, int32_t* found) {
  const int64_t keys = table.end - table.begin;
  if (keys <= 0) return 0;
  std::memset(counts, 0, static_cast<size_t>(table.counted()));
  switch (table.layout.entry_bytes) {
    case 2:
      count_entries<uint16_t>(rule, table, hashes, counts);
      break;
    case 4:
      count_entries<uint32_t>(rule, table, hashes, counts);
      break;
    default:
      count_entries<uint64_t>(rule, table, hashes, counts);
  }
  return sampling_table().counted_twice(counts, keys, static_cast<int32_t>(table.begin), found);
}

void run(const CollidingKeys& p) {
  *p.count = find_twice(p.rule, *p.table, p.hashes, p.counts, p.found);
}

void run(const CentredHashes& p) {
  const int64_t panels = (p.pitch + kAskedKeys - 1) / kAskedKeys,
                parts = (p.rows + kAskedRows - 1) / kAskedRows;
  const bool parallel = p.rows * p.pitch * p.hashes() > kParallelProducts;
  Team::run(parallel, [&](Team::Member& team) {
    team.each(
        panels * parts,
        [&](int64_t n) {
          AskedPart part{.first_row = n % parts * kAskedRows, .begin = n / parts * kAskedKeys};
          part.rows = std::min(kAskedRows, p.rows - part.first_row);
          const int64_t words = std::min(kAskedKeys, p.pitch - part.begin) / kHashPanel;
          const int64_t end =
              *std::max_element(p.ends + part.first_row, p.ends + part.first_row + part.rows);
          part.words =
              std::clamp<int64_t>((end - part.begin + kHashPanel - 1) / kHashPanel, 0, words);
          if (part.words > 0) sampling_table().collisions(p, part);
          for (int64_t row = part.first_row; row < part.first_row + part.rows; ++row)
            for (int64_t h = 0; h < p.heads; ++h)
              clear_from(p.twice_of(h, row) + part.begin / kHashPanel, words,
                         p.ends[row] - part.begin);
        },
        Meet::no);
  });
}

template <class T>
void run(const SampledDecode<T>& p) {
  const int64_t items = p.sizes.batch * p.sizes.heads, d = p.sizes.head_dim;
  thread_local std::vector<float> wide;
  thread_local std::vector<int32_t> all;
  float* const q = at_least(wide, items * d);
  int32_t* const hashes = at_least(all, items * p.rule.tables);
  for (int64_t item = 0; item < items; ++item) {
    const T* const row = p.q.at(item / p.sizes.heads, item % p.sizes.heads);
    for (int64_t c = 0; c < d; ++c) q[item * d + c] = to_float(row[c]);
  }
  run(RowHashes{.rule = p.rule, .rows = q, .count = items, .hashes = hashes});
  const bool parallel = items > 1 && items * p.sizes.keys > kParallelKeys;
  Team::run(parallel, [&](Team::Member& team) {
    thread_local SamplingScratch scratch;
    team.each(
        items,
        [&](int64_t item) {
          decode_head(p, item, q + item * d, hashes + item * p.rule.tables, scratch);
        },
        Meet::no);
  });
}

template <class T>
void run(const SampledRows<T>& p) {
  const bool parallel = p.rows * p.heads > 1 && p.rows * p.heads * p.first_length > kParallelKeys;
  Team::run(parallel, [&](Team::Member& team) {
    thread_local SamplingScratch scratch;
    team.each(
        p.rows * p.heads, [&](int64_t n) { sample_row(p, n % p.heads, n / p.heads, scratch); },
        Meet::no);
  });
}

template void run(const SampledRows<float>&);
template void run(const SampledRows<BFloat16>&);
template void run(const SampledDecode<float>&);
template void run(const SampledDecode<BFloat16>&);

}  // namespace fovea::kernels
