// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/few_keys.h"

#include <algorithm>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/kernels/cpu/attention_table.h"
#include "fovea/kernels/cpu/isa.h"
#include "fovea/kernels/cpu/team.h"

namespace fovea::kernels {

template <class T>
const FewKeysTable<T>& few_keys_table() {
  static const FewKeysTable<T>& chosen = pick_by_isa<const FewKeysTable<T>&()>(
      {few_keys_scalar<T>, FOVEA_AVX2(few_keys_avx2<T>), FOVEA_AVX512(few_keys_avx512<T>)})();
  return chosen;
}

namespace {

// Below this many products a thread's start costs more than it saves.
constexpr int64_t kParallelProducts = int64_t{1} << 18;

// Keys or values of all key heads.
class PackedFew {
 public:
  template <class T>
  PackedFew(const AttentionSizes& s, int64_t width, const HeadRows<const T>& from,
            const int64_t* key_rows)
      : width_(width),
        pitch_(FewOperand::pitch_of(width)),
        head_(s.keys * pitch_),
        rows_(static_cast<size_t>(s.batch * s.kv_heads * head_)) {
    for (int64_t item = 0; item < s.batch * s.kv_heads; ++item) {
      for (int64_t n = 0; n < s.keys; ++n) {
        const T* const row = from.at(item / s.kv_heads, item % s.kv_heads, key_rows[n]);
        for (int64_t c = 0; c < width; ++c) rows_[item * head_ + n * pitch_ + c] = to_float(row[c]);
      }
    }
  }
  FewOperand of(int64_t item) const {
    return {.width = width_, .pitch = pitch_, .rows = rows_.data() + item * head_};
  }

 private:
  int64_t width_, pitch_, head_;
  std::vector<float> rows_;
};

void check(const AttentionSizes& sizes) {
  require<ShapeError>(
      sizes.keys <= kMostFewKeys && std::max(sizes.head_dim, sizes.value_dim) <= kWidestHead,
      "few-keys kernel", "at most {} keys of {} components; got {} of {} and {}", kMostFewKeys,
      kWidestHead, sizes.keys, sizes.head_dim, sizes.value_dim);
}

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

// Of the gradient: every chunk has sums of its own, which are added in their order.
template <class T>
void add_sums(const FewKeysGradient<T>& p, const std::vector<float>& sums, int64_t chunk_size,
              int64_t item) {
  const AttentionSizes& s = p.sizes;
  const int64_t chunks = chunks_of(s), b = item / s.kv_heads, g = item % s.kv_heads;
  const auto add = [&](const HeadRows<T>& to, int64_t width, int64_t begin) {
    for (int64_t n = 0; n < s.keys; ++n) {
      T* const row = to.at(b, g, p.key_rows[n]);
      for (int64_t c = 0; c < width; ++c) {
        float sum = to_float(row[c]);
        for (int64_t chunk = 0; chunk < chunks; ++chunk)
          sum += sums[(item * chunks + chunk) * chunk_size + begin +
                      n * FewOperand::pitch_of(width) + c];
        from_float(sum, row[c]);
      }
    }
  };
  add(p.dk, s.head_dim, 0);
  add(p.dv, s.value_dim, s.keys * FewOperand::pitch_of(s.head_dim));
}

}  // namespace

template <class T>
void run(const FewKeys<T>& p) {
  const AttentionSizes& s = p.sizes;
  check(s);
  if (s.keys == 0) return;
  const int64_t repeats = s.heads / s.kv_heads;
  const PackedFew k(s, s.head_dim, p.k, p.key_rows), v(s, s.value_dim, p.v, p.key_rows);
  Team::run(is_parallel(s), [&](Team::Member& team) {
    std::vector<float> memory(static_cast<size_t>(few_memory(s.head_dim, s.value_dim)));
    team.each(
        s.batch * s.kv_heads * chunks_of(s),
        [&](int64_t item) {
          const Chunk chunk(s, item);
          const int64_t b = chunk.b, g = chunk.g, head = b * s.kv_heads + g;
          for (int64_t h = g * repeats; h < (g + 1) * repeats; ++h)
            few_keys_table<T>().join(
                {.k = k.of(head),
                 .v = v.of(head),
                 .count = chunk.rows,
                 .q = p.q.at(b, h, chunk.first),
                 .q_row = p.q.row,
                 .seen = p.seen[h] + chunk.first,
                 .scale = p.scale,
                 .soft_cap = p.soft_cap,
                 .tau = p.tau != nullptr ? p.tau + b * s.queries + chunk.first : nullptr,
                 .out = p.out.at(b, h, chunk.first),
                 .out_row = p.out.row,
                 .lse = p.lse + (b * s.heads + h) * s.queries + chunk.first,
                 .memory = memory.data()});
        },
        Meet::no);
  });
}

template <class T>
void run(const FewKeysGradient<T>& p) {
  const AttentionSizes& s = p.sizes;
  check(s);
  if (s.keys == 0) return;
  const int64_t repeats = s.heads / s.kv_heads, items = s.batch * s.kv_heads * chunks_of(s);
  const int64_t of_keys = s.keys * FewOperand::pitch_of(s.head_dim),
                chunk_size = of_keys + s.keys * FewOperand::pitch_of(s.value_dim);
  std::vector<float> sums(static_cast<size_t>(items * chunk_size));
  const PackedFew k(s, s.head_dim, p.k, p.key_rows), v(s, s.value_dim, p.v, p.key_rows);
  Team::run(is_parallel(s), [&](Team::Member& team) {
    std::vector<float> memory(static_cast<size_t>(few_memory(s.head_dim, s.value_dim)));
    team.each(items, [&](int64_t item) {
      const Chunk chunk(s, item);
      const int64_t b = chunk.b, g = chunk.g, head = b * s.kv_heads + g;
      float* const own = sums.data() + (head * chunks_of(s) + chunk.number) * chunk_size;
      for (int64_t h = g * repeats; h < (g + 1) * repeats; ++h) {
        const int64_t row = (b * s.heads + h) * s.queries + chunk.first;
        few_keys_table<T>().gradient(
            {.k = k.of(head),
             .v = v.of(head),
             .count = chunk.rows,
             .q = p.q.at(b, h, chunk.first),
             .out = p.out.at(b, h, chunk.first),
             .dout = p.dout.at(b, h, chunk.first),
             .q_row = p.q.row,
             .out_row = p.out.row,
             .dout_row = p.dout.row,
             .seen = p.seen[h] + chunk.first,
             .scale = p.scale,
             .soft_cap = p.soft_cap,
             .tau = p.tau != nullptr ? p.tau + b * s.queries + chunk.first : nullptr,
             .lse = p.lse + row,
             .dlse = p.dlse != nullptr ? p.dlse + row : nullptr,
             .dq = p.dq.at(b, h, chunk.first),
             .dq_row = p.dq.row,
             .dk = own,
             .dv = own + of_keys,
             .dtau = p.dtau != nullptr ? p.dtau + row : nullptr,
             .memory = memory.data()});
      }
    });
    team.each(
        s.batch * s.kv_heads, [&](int64_t item) { add_sums(p, sums, chunk_size, item); }, Meet::no);
  });
}

namespace {

// The few queries of all query heads of one key head, as the loops read them.
struct QueryGroup {
  std::vector<float> q, dout, lse, less, scales;

  template <class T>
  QueryGroup(const FewQueriesGradient<T>& p, int64_t b, int64_t g) {
    const AttentionSizes& s = p.sizes;
    const int64_t repeats = s.heads / s.kv_heads, d = FewOperand::pitch_of(s.head_dim),
                  e = FewOperand::pitch_of(s.value_dim);
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
  const int64_t d = FewOperand::pitch_of(s.head_dim), e = FewOperand::pitch_of(s.value_dim);
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

template void run(const FewQueriesGradient<float>&);
template void run(const FewQueriesGradient<BFloat16>&);
template void run(const FewKeys<float>&);
template void run(const FewKeys<BFloat16>&);
template void run(const FewKeysGradient<float>&);
template void run(const FewKeysGradient<BFloat16>&);

}  // namespace fovea::kernels
