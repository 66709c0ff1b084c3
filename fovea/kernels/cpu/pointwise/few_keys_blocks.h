// Blocks of rows for the kernels of few keys: packed keys and values of a call, and sums of its
// gradient (internal to kernels/cpu).
//
// Whoever has the rows in the cache asks for them: a pass over all rows, or the kernels of the
// other keys.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/kernels/cpu/pointwise/few_keys.h"

namespace fovea::kernels {

/// Keys or values of all key heads.
class PackedFew {
 public:
  template <class T>
  PackedFew(const AttentionSizes& s, int64_t width, const HeadRows<const T>& from,
            const int64_t* key_rows)
      : width_(width),
        pitch_(few_pitch(width)),
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

/// Neighbouring rows of a query head.
struct RowBlock {
  int64_t b = 0, h = 0, first = 0, rows = 0;
};

/// ShapeError where the kernels cannot have them.
inline void check_few_keys(const AttentionSizes& sizes) {
  require<ShapeError>(
      sizes.keys <= kMostFewKeys && std::max(sizes.head_dim, sizes.value_dim) <= kWidestHead,
      "few-keys kernel", "at most {} keys of {} components; got {} of {} and {}", kMostFewKeys,
      kWidestHead, sizes.keys, sizes.head_dim, sizes.value_dim);
}

template <class T>
class FewJoin {
 public:
  /// Keeps a reference.
  explicit FewJoin(const FewKeys<T>& problem)
      : p_(problem),
        s_(problem.sizes),
        k_(s_, s_.head_dim, p_.k, p_.key_rows),
        v_(s_, s_.value_dim, p_.v, p_.key_rows) {}

  /// `memory`: few_memory(widths) floats.
  void join(const RowBlock& block, float* memory) const {
    const auto [b, h, first, rows] = block;
    const int64_t row = (b * s_.heads + h) * s_.queries + first;
    const int64_t key_head = b * s_.kv_heads + h / (s_.heads / s_.kv_heads);
    few_keys_table<T>().join({.k = k_.of(key_head),
                              .v = v_.of(key_head),
                              .count = rows,
                              .q = p_.q.at(b, h, first),
                              .q_row = p_.q.row,
                              .seen = p_.seen.of(b * s_.heads + h, s_.queries) + first,
                              .scale = p_.scale,
                              .soft_cap = p_.soft_cap,
                              .tau = p_.tau != nullptr ? p_.tau + b * s_.queries + first : nullptr,
                              .out = p_.out.at(b, h, first),
                              .rest = p_.out_rest.at_or_null(b, h, first),
                              .out_row = p_.out.row,
                              .rest_row = p_.out_rest.row,
                              .lse = p_.lse + row,
                              .memory = memory});
  }

 private:
  const FewKeys<T>& p_;
  const AttentionSizes& s_;
  const PackedFew k_, v_;
};

/// Blocks of a key head add to the sums of a part, which are added in the order of the parts.
template <class T>
class FewGradient {
 public:
  /// `parts` of every key head. Keeps a reference.
  FewGradient(const FewKeysGradient<T>& problem, int64_t parts)
      : p_(problem),
        s_(problem.sizes),
        k_(s_, s_.head_dim, p_.k, p_.key_rows),
        v_(s_, s_.value_dim, p_.v, p_.key_rows),
        parts_(parts),
        of_keys_(s_.keys * few_pitch(s_.head_dim)),
        of_values_(s_.keys * few_pitch(s_.value_dim)),
        sums_(static_cast<size_t>(s_.batch * s_.kv_heads * parts * (of_keys_ + of_values_))) {}

  /// Gradients of shared queries are added to `dq_sums`, rows `sums_row` apart, if it is not null.
  void add(const RowBlock& block, int64_t part, float* memory, float* dq_sums = nullptr,
           int64_t sums_row = 0) {
    const auto [b, h, first, rows] = block;
    const int64_t row = (b * s_.heads + h) * s_.queries + first;
    const int64_t key_head = b * s_.kv_heads + h / (s_.heads / s_.kv_heads);
    const bool in_sums = dq_sums != nullptr && p_.queries == FewQueries::shared;
    float* const own = sums_.data() + (key_head * parts_ + part) * (of_keys_ + of_values_);
    few_keys_table<T>().gradient(
        {.k = k_.of(key_head),
         .v = v_.of(key_head),
         .count = rows,
         .q = p_.q.at(b, h, first),
         .out = p_.out.at(b, h, first),
         .rest = p_.out_rest.at_or_null(b, h, first),
         .dout = p_.dout.at(b, h, first),
         .q_row = p_.q.row,
         .out_row = p_.out.row,
         .rest_row = p_.out_rest.row,
         .dout_row = p_.dout.row,
         .seen = p_.seen.of(b * s_.heads + h, s_.queries) + first,
         .scale = p_.scale,
         .soft_cap = p_.soft_cap,
         .tau = p_.tau != nullptr ? p_.tau + b * s_.queries + first : nullptr,
         .lse = p_.lse + row,
         .dlse = p_.dlse != nullptr ? p_.dlse + row : nullptr,
         .queries = p_.queries,
         .dq = in_sums ? nullptr : p_.dq.at(b, h, first),
         .dq_row = in_sums ? sums_row : p_.dq.row,
         .dq_sums = in_sums ? dq_sums : nullptr,
         .dk = own,
         .dv = own + of_keys_,
         .dtau = p_.dtau != nullptr && p_.turns == nullptr ? p_.dtau + row : nullptr,
         .turns = p_.turns != nullptr ? p_.turns + row * kTurnSums : nullptr,
         .memory = memory});
  }

  /// dk and dv of the call, of what its blocks have added.
  void write_keys() const {
    const int64_t size = of_keys_ + of_values_;
    const auto total = [&](const float* parts, int64_t floats, float* to) {
      for (int64_t n = 0; n < floats; ++n) {
        float sum = 0.0f;
        for (int64_t part = 0; part < parts_; ++part) sum += parts[part * size + n];
        to[n] = sum;
      }
    };
    for (int64_t head = 0; head < s_.batch * s_.kv_heads; ++head) {
      const float* const parts = sums_.data() + head * parts_ * size;
      total(parts, of_keys_, p_.dk + head * of_keys_);
      total(parts + of_keys_, of_values_, p_.dv + head * of_values_);
    }
  }

 private:
  const FewKeysGradient<T>& p_;
  const AttentionSizes& s_;
  const PackedFew k_, v_;
  const int64_t parts_, of_keys_, of_values_;
  std::vector<float> sums_;
};

}  // namespace fovea::kernels
