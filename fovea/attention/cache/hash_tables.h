// Hash tables over the sampled keys of a prompt, for decoding MagicPIG (spec 4.5): made once and
// read by every later token.
//
// Keys are centred by the mean of the region and hashed by signs; a table holds the region's keys
// by hash (kernels/common/hashing.h). A query looks up its own hashes, one a table, and reads the
// keys that it finds in two tables or more. Immutable, so copies share it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "fovea/attention/specs/magic_pig.h"
#include "fovea/kernels/common/hashing.h"

namespace fovea {

/// The numbers that all tables of a MagicPigSpec share, as in HashRule.
struct HashNumbers {
  std::vector<float> directions, log_weights;

  static std::shared_ptr<const HashNumbers> of(const MagicPigSpec& spec, int64_t head_dim);
};

class HashTables {
 public:
  /// Over keys [b, g, s, d] whose sampled region is [start, prompt - recent) of each sequence.
  HashTables(const MagicPigSpec& spec, const at::Tensor& keys_bgsd,
             std::span<const int64_t> prompts);
  HashTables(const HashTables&) = delete;
  HashTables& operator=(const HashTables&) = delete;

  const MagicPigSpec& spec() const { return spec_; }
  std::span<const int64_t> prompts() const { return prompts_; }
  /// Memory of these tables, without the HashNumbers, which are shared.
  int64_t bytes() const;
  /// The region of sequence b, [begin, end): two keys or more, or none.
  int64_t begin() const { return spec_.start; }
  int64_t end(int64_t b) const {
    const int64_t end = prompts_[static_cast<size_t>(b)] - spec_.recent;
    return end - begin() < 2 ? begin() : end;
  }

  /// The form that kernels read (kernels/common/sampling.h), [b][g].
  const kernels::HashRule& rule() const { return rule_; }
  std::span<const kernels::HashTable> tables() const { return tables_; }

 private:
  // The buckets of one key head, on huge pages: a query reads one place of every table, and on
  // small pages each costs a translation of its address, too.
  struct Head {
    at::Tensor buckets, more;  // bytes; undefined without keys
    std::vector<int64_t> more_begin;
    kernels::BucketLayout layout;
  };
  Head make_head(const at::Tensor& centred_nd) const;

  MagicPigSpec spec_;
  std::vector<int64_t> prompts_;
  std::shared_ptr<const HashNumbers> numbers_;
  at::Tensor centres_bgd_, lengths_bgs_;  // float32
  std::vector<Head> heads_;               // [b g]
  kernels::HashRule rule_;
  std::vector<kernels::HashTable> tables_;
};

}  // namespace fovea
