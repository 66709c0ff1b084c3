// Hash tables over the sampled keys of a prompt, for decoding MagicPIG (spec 4.5): made once, read
// by every later token.
//
// Keys are centred by the mean of the region and hashed by signs; a table holds the region's keys
// sorted by hash. A query looks its own hashes up, one a table, and reads the keys that it meets in
// two tables or more. Immutable, so copies share it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "fovea/attention/mechanisms/magic_pig.h"

namespace fovea {

class HashTables {
 public:
  /// Over keys [b, g, s, d] whose sampled region is [start, prompt - recent) of each sequence.
  HashTables(const MagicPigSpec& spec, const at::Tensor& keys_bgsd,
             std::span<const int64_t> prompts);

  const MagicPigSpec& spec() const { return spec_; }
  std::span<const int64_t> prompts() const { return prompts_; }
  int64_t bytes() const;
  /// The region of sequence b, [begin, end): two keys or more, or none.
  int64_t begin() const { return spec_.start; }
  int64_t end(int64_t b) const {
    const int64_t end = prompts_[static_cast<size_t>(b)] - spec_.recent;
    return end - begin() < 2 ? begin() : end;
  }

  /// Hashes of queries [n, d], int32 [n, tables].
  at::Tensor hashes(const at::Tensor& q_nd) const;
  /// The mean key [b, g, d] and the lengths of centred keys [b, g, s] (of the region), float32.
  const float* centre(int64_t b, int64_t g) const;
  const float* lengths(int64_t b, int64_t g) const;

  /// Appends the keys that at least two of `hashes` [tables] find. `counts`: of the caller, used
  /// again by its next calls.
  void find(int64_t b, int64_t g, const int32_t* hashes, std::vector<uint16_t>& counts,
            std::vector<int32_t>& found) const;

 private:
  // The tables of one key head.
  struct Head {
    std::vector<int32_t> offsets;  // [tables][buckets + 1]
    std::vector<int32_t> entries;  // [tables][region], relative to begin()
    std::vector<int32_t> hashes;   // of the entries, where a bucket holds several
  };
  Head make_head(const at::Tensor& centred_nd) const;
  int64_t buckets() const { return int64_t{1} << bucket_bits_; }

  MagicPigSpec spec_;
  std::vector<int64_t> prompts_;
  int64_t kv_heads_ = 0, keys_ = 0, head_dim_ = 0, bucket_bits_ = 0;
  at::Tensor directions_dn_;  // float32
  at::Tensor centres_bgd_, lengths_bgs_;
  std::vector<Head> heads_;  // [b g]
};

}  // namespace fovea
