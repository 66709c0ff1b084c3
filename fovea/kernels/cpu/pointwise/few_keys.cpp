// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/pointwise/few_keys.h"

#include <algorithm>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/kernels/cpu/kernel_levels.h"
#include "fovea/kernels/cpu/pointwise/attention_table.h"
#include "fovea/kernels/cpu/pointwise/few_keys_blocks.h"
#include "fovea/kernels/cpu/team.h"

namespace fovea::kernels {

template <class T>
const FewKeysTable<T>& few_keys_table() {
  return chosen_kernels<FewKeysTable<T>>();
}

namespace {

// Below this many products a thread's start costs more than it saves.
constexpr int64_t kParallelProducts = int64_t{1} << 18;

int64_t chunks_of(const AttentionSizes& sizes) {
  return (sizes.queries + kFewChunk - 1) / kFewChunk;
}

bool is_parallel(const AttentionSizes& s) {
  return s.batch * s.heads * s.queries * s.keys * (s.head_dim + s.value_dim) > kParallelProducts;
}

// A chunk of rows of one batch row and key head. Key heads of the same tokens follow each other:
// tensors by token have them side by side.
struct Chunk {
  int64_t b = 0, g = 0, number = 0, first = 0, rows = 0;

  Chunk(const AttentionSizes& s, int64_t item)
      : b(item / s.kv_heads / chunks_of(s)),
        g(item % s.kv_heads),
        number(item / s.kv_heads % chunks_of(s)),
        first(number * kFewChunk),
        rows(std::min(kFewChunk, s.queries - first)) {}
};

}  // namespace

template <class T>
void run(const FewKeys<T>& p) {
  const AttentionSizes& s = p.sizes;
  check_few_keys(s);
  if (s.keys == 0) return;
  const int64_t repeats = s.heads / s.kv_heads;
  const FewJoin<T> few(p);
  Team::run(is_parallel(s), [&](Team::Member& team) {
    std::vector<float> memory(static_cast<size_t>(few_memory(s.head_dim, s.value_dim)));
    team.each(
        s.batch * s.kv_heads * chunks_of(s),
        [&](int64_t item) {
          const Chunk chunk(s, item);
          for (int64_t h = chunk.g * repeats; h < (chunk.g + 1) * repeats; ++h)
            few.join({chunk.b, h, chunk.first, chunk.rows}, memory.data());
        },
        Meet::no);
  });
}

template <class T>
void run(const FewKeysGradient<T>& p) {
  const AttentionSizes& s = p.sizes;
  check_few_keys(s);
  if (s.keys == 0) return;
  const int64_t repeats = s.heads / s.kv_heads;
  FewGradient<T> few(p, chunks_of(s));
  Team::run(is_parallel(s), [&](Team::Member& team) {
    std::vector<float> memory(static_cast<size_t>(few_memory(s.head_dim, s.value_dim)));
    team.each(
        s.batch * s.kv_heads * chunks_of(s),
        [&](int64_t item) {
          const Chunk chunk(s, item);
          for (int64_t h = chunk.g * repeats; h < (chunk.g + 1) * repeats; ++h)
            few.add({chunk.b, h, chunk.first, chunk.rows}, chunk.number, memory.data());
        },
        Meet::no);
  });
  few.write_keys();
}

namespace {

// The few queries of all query heads of one key head, as the loops read them.
struct QueryGroup {
  std::vector<float> q, dout, lse, less, scales;

  template <class T>
  QueryGroup(const FewQueriesGradient<T>& p, int64_t b, int64_t g) {
    const AttentionSizes& s = p.sizes;
    const int64_t repeats = s.heads / s.kv_heads, d = few_pitch(s.head_dim),
                  e = few_pitch(s.value_dim);
    q.resize(static_cast<size_t>(repeats * s.queries * d));
    dout.resize(static_cast<size_t>(repeats * s.queries * e));
    for (int64_t m = 0; m < repeats * s.queries; ++m) {
      const int64_t h = g * repeats + m / s.queries, n = m % s.queries,
                    row = (b * s.heads + h) * s.queries + n;
      scales.push_back(p.tau != nullptr ? 1.0f / p.tau[b * s.queries + n] : p.scale);
      for (int64_t c = 0; c < s.head_dim; ++c)
        q[m * d + c] = scales.back() * to_float(p.q.at(b, h, n)[c]);
      double delta = 0.0;
      for (int64_t c = 0; c < s.value_dim; ++c) {
        dout[m * e + c] = to_float(p.dout.at(b, h, n)[c]);
        delta += double(dout[m * e + c]) * to_float(p.out.at(b, h, n)[c]);
        if (p.out_rest.data != nullptr)
          delta += double(dout[m * e + c]) * to_float(p.out_rest.at(b, h, n)[c]);
      }
      lse.push_back(p.lse[row]);
      less.push_back(static_cast<float>(delta) - (p.dlse != nullptr ? p.dlse[row] : 0.0f));
    }
  }
};

}  // namespace

template <class T>
void run(const FewQueriesGradient<T>& p) {
  const AttentionSizes& s = p.sizes;
  const int64_t repeats = s.heads / s.kv_heads, few = repeats * s.queries;
  require<ShapeError>(few <= kMostFewKeys && std::max(s.head_dim, s.value_dim) <= kWidestHead,
                      "few-queries kernel",
                      "at most {} queries of {} components a key head; got {} of {} and {}",
                      kMostFewKeys, kWidestHead, few, s.head_dim, s.value_dim);
  const int64_t d = few_pitch(s.head_dim), e = few_pitch(s.value_dim);
  const int64_t chunks = (s.keys + kFewChunk - 1) / kFewChunk, heads = s.batch * s.kv_heads,
                chunk_size = few * (d + 1);
  std::vector<QueryGroup> groups;
  for (int64_t head = 0; head < heads; ++head)
    groups.emplace_back(p, head / s.kv_heads, head % s.kv_heads);
  std::vector<uint64_t> seen(static_cast<size_t>(s.keys));  // by all query heads
  for (int64_t j = 0; j < s.keys; ++j)
    for (int64_t r = 0; r < repeats; ++r) seen[j] |= p.seen[j] << (r * s.queries);
  std::vector<float> sums(static_cast<size_t>(heads * chunks * chunk_size));
  const bool parallel = heads * s.keys * few * (d + e) > kParallelProducts;
  Team::run(parallel, [&](Team::Member& team) {
    std::vector<float> memory(static_cast<size_t>(few_memory(s.head_dim, s.value_dim)));
    team.each(heads * chunks, [&](int64_t item) {
      const int64_t b = item / s.kv_heads / chunks, g = item % s.kv_heads,
                    chunk = item / s.kv_heads % chunks, head = b * s.kv_heads + g;
      const int64_t first = chunk * kFewChunk;
      const QueryGroup& of = groups[head];
      float* const own = sums.data() + (head * chunks + chunk) * chunk_size;
      few_keys_table<T>().of_queries(
          {.q = {.width = s.head_dim, .pitch = d, .rows = of.q.data()},
           .dout = {.width = s.value_dim, .pitch = e, .rows = of.dout.data()},
           .lse = of.lse.data(),
           .less = of.less.data(),
           .count = std::min(kFewChunk, s.keys - first),
           .k = p.k.at(b, g, first),
           .v = p.v.at(b, g, first),
           .k_row = p.k.row,
           .v_row = p.v.row,
           .seen = seen.data() + first,
           .soft_cap = p.soft_cap,
           .dk = p.dk.at(b, g, first),
           .dv = p.dv.at(b, g, first),
           .dk_row = p.dk.row,
           .dv_row = p.dv.row,
           .add_to_keys = p.add_to_keys,
           .dq = own,
           .turn = own + few * d,
           .memory = memory.data()});
    });
    team.each(
        heads * few,
        [&](int64_t item) {
          const int64_t head = item / few, m = item % few, b = head / s.kv_heads,
                        h = head % s.kv_heads * repeats + m / s.queries, n = m % s.queries;
          const auto total = [&](int64_t at) {
            float sum = 0.0f;
            for (int64_t chunk = 0; chunk < chunks; ++chunk)
              sum += sums[(head * chunks + chunk) * chunk_size + at];
            return sum;
          };
          const float scale = groups[head].scales[m];
          for (int64_t c = 0; c < s.head_dim; ++c)
            from_float(scale * total(m * d + c), p.dq.at(b, h, n)[c]);
          if (p.dtau != nullptr)
            p.dtau[(b * s.heads + h) * s.queries + n] = -scale * total(few * d + m);
        },
        Meet::no);
  });
}

template const FewKeysTable<float>& few_keys_table();
template const FewKeysTable<BFloat16>& few_keys_table();
template void run(const FewQueriesGradient<float>&);
template void run(const FewQueriesGradient<BFloat16>&);
template void run(const FewKeys<float>&);
template void run(const FewKeys<BFloat16>&);
template void run(const FewKeysGradient<float>&);
template void run(const FewKeysGradient<BFloat16>&);

}  // namespace fovea::kernels
