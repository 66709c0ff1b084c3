// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/cache/hash_tables.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "fovea/attention/mechanisms/magic_pig_choice.h"

namespace fovea {
namespace {

// Offsets of 4096 buckets fit into the first-level cache with what is looked up.
constexpr int64_t kMostBucketBits = 12;
// Keys hashed at a time: their products with all directions are a few megabytes.
constexpr int64_t kHashedKeys = 512;

// Signs of products [n, tables * bits] as int32 [n, tables], bit 0 first.
at::Tensor packed_signs(const at::Tensor& products, int64_t tables, int64_t bits) {
  const at::Tensor weights =
      at::pow(2.0, at::arange(bits, at::TensorOptions().dtype(at::kDouble))).to(at::kInt);
  return (products.reshape({-1, tables, bits}) > 0)
      .to(at::kInt)
      .mul(weights)
      .sum(-1, false, at::kInt);
}

}  // namespace

HashTables::HashTables(const MagicPigSpec& spec, const at::Tensor& keys,
                       std::span<const int64_t> prompts)
    : spec_(spec),
      prompts_(prompts.begin(), prompts.end()),
      kv_heads_(keys.size(1)),
      keys_(keys.size(2)),
      head_dim_(keys.size(3)),
      bucket_bits_(std::min(spec.bits, kMostBucketBits)),
      directions_dn_(hash_directions(spec, head_dim_).to(at::kFloat).transpose(0, 1)),
      centres_bgd_(at::zeros({keys.size(0), kv_heads_, head_dim_}, at::kFloat)),
      lengths_bgs_(at::zeros({keys.size(0), kv_heads_, keys_}, at::kFloat)) {
  const at::NoGradGuard no_gradient;
  for (int64_t b = 0; b < keys.size(0); ++b) {
    for (int64_t g = 0; g < kv_heads_; ++g) {
      const int64_t count = std::max<int64_t>(0, std::min(end(b), keys_) - begin());
      at::Tensor region = keys.select(0, b).select(0, g).narrow(0, std::min(begin(), keys_), count);
      region = region.to(at::kFloat);
      if (count > 0) {
        const at::Tensor centre = region.to(at::kDouble).mean(0).to(at::kFloat);
        centres_bgd_.select(0, b).select(0, g).copy_(centre);
        region = region - centre;
        lengths_bgs_.select(0, b)
            .select(0, g)
            .narrow(0, begin(), count)
            .copy_(region.square().sum(-1).sqrt());
      }
      heads_.push_back(make_head(region));
    }
  }
}

HashTables::Head HashTables::make_head(const at::Tensor& centred) const {
  const int64_t n = centred.size(0), tables = spec_.tables, shift = spec_.bits - bucket_bits_;
  at::Tensor hashes_tn = at::empty({tables, n}, at::kInt);
  for (int64_t first = 0; first < n; first += kHashedKeys) {
    const int64_t some = std::min(kHashedKeys, n - first);
    hashes_tn.narrow(1, first, some).copy_(hashes(centred.narrow(0, first, some)).transpose(0, 1));
  }
  Head head;
  head.offsets.resize(static_cast<size_t>(tables * (buckets() + 1)));
  head.entries.resize(static_cast<size_t>(tables * n));
  if (shift > 0) head.hashes.resize(head.entries.size());
  const int32_t* const all = hashes_tn.const_data_ptr<int32_t>();
  std::vector<int32_t> next(static_cast<size_t>(buckets()));
  for (int64_t table = 0; table < tables; ++table) {
    const int32_t* const of_keys = all + table * n;
    int32_t* const offsets = head.offsets.data() + table * (buckets() + 1);
    for (int64_t j = 0; j < n; ++j) ++offsets[(of_keys[j] >> shift) + 1];
    for (int64_t c = 0; c < buckets(); ++c) offsets[c + 1] += offsets[c];
    std::copy_n(offsets, buckets(), next.begin());
    for (int64_t j = 0; j < n; ++j) {
      const int64_t place = table * n + next[static_cast<size_t>(of_keys[j] >> shift)]++;
      head.entries[static_cast<size_t>(place)] = static_cast<int32_t>(j);
      if (shift > 0) head.hashes[static_cast<size_t>(place)] = of_keys[j];
    }
  }
  return head;
}

at::Tensor HashTables::hashes(const at::Tensor& q_nd) const {
  return packed_signs(at::matmul(q_nd.to(at::kFloat), directions_dn_), spec_.tables, spec_.bits);
}

const float* HashTables::centre(int64_t b, int64_t g) const {
  return centres_bgd_.const_data_ptr<float>() + (b * kv_heads_ + g) * head_dim_;
}

const float* HashTables::lengths(int64_t b, int64_t g) const {
  return lengths_bgs_.const_data_ptr<float>() + (b * kv_heads_ + g) * keys_;
}

void HashTables::find(int64_t b, int64_t g, const int32_t* hashes, std::vector<uint16_t>& counts,
                      std::vector<int32_t>& found) const {
  const Head& head = heads_[static_cast<size_t>(b * kv_heads_ + g)];
  const int64_t n = std::ssize(head.entries) / spec_.tables;
  const int64_t shift = spec_.bits - bucket_bits_;
  counts.assign(static_cast<size_t>(n), 0);
  const auto bucket = [&](int64_t table) {
    const int32_t* const offsets =
        head.offsets.data() + table * (buckets() + 1) + (hashes[table] >> shift);
    return std::pair{table * n + offsets[0], table * n + offsets[1]};
  };
  constexpr int64_t kAhead = 8;  // tables whose bucket is fetched before its turn
  for (int64_t table = 0; table < spec_.tables; ++table) {
    if (table + kAhead < spec_.tables)
      __builtin_prefetch(head.entries.data() + bucket(table + kAhead).first);
    const auto [first, last] = bucket(table);
    for (int64_t at = first; at < last; ++at) {
      if (shift > 0 && head.hashes[static_cast<size_t>(at)] != hashes[table]) continue;
      const int32_t key = head.entries[static_cast<size_t>(at)];
      if (++counts[static_cast<size_t>(key)] == 2)
        found.push_back(key + static_cast<int32_t>(begin()));
    }
  }
}

int64_t HashTables::bytes() const {
  int64_t total = static_cast<int64_t>(lengths_bgs_.nbytes() + centres_bgd_.nbytes());
  for (const Head& head : heads_)
    total += 4 * (std::ssize(head.offsets) + std::ssize(head.entries) + std::ssize(head.hashes));
  return total;
}

}  // namespace fovea
