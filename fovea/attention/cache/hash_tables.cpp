// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/cache/hash_tables.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>

#include "fovea/attention/backend.h"
#include "fovea/attention/cache/huge_pages.h"
#include "fovea/attention/mechanisms/magic_pig_choice.h"

namespace fovea {
namespace {

// HashRule::directions.
std::vector<float> packed_directions(const MagicPigSpec& spec, int64_t head_dim) {
  const at::Tensor rows = hash_directions(spec, head_dim);
  const int64_t count = rows.size(0);
  const int64_t panels = (count + kernels::kHashPanel - 1) / kernels::kHashPanel;
  std::vector<float> packed(static_cast<size_t>(panels * head_dim * kernels::kHashPanel), 0.0f);
  const double* const numbers = rows.const_data_ptr<double>();
  for (int64_t n = 0; n < count; ++n) {
    float* const panel = packed.data() + n / kernels::kHashPanel * head_dim * kernels::kHashPanel;
    for (int64_t c = 0; c < head_dim; ++c)
      panel[c * kernels::kHashPanel + n % kernels::kHashPanel] =
          static_cast<float>(numbers[n * head_dim + c]);
  }
  return packed;
}

}  // namespace

// All layers' tables have the same ones: between two layers they stay in a cache of the CPU.
std::shared_ptr<const HashNumbers> HashNumbers::of(const MagicPigSpec& spec, int64_t head_dim) {
  static std::mutex mutex;
  static std::map<std::array<int64_t, 4>, std::weak_ptr<const HashNumbers>> all;
  const std::lock_guard lock(mutex);
  std::weak_ptr<const HashNumbers>& known = all[{spec.bits, spec.tables, spec.seed, head_dim}];
  std::shared_ptr<const HashNumbers> numbers = known.lock();
  if (!numbers) {
    numbers = std::make_shared<const HashNumbers>(
        HashNumbers{packed_directions(spec, head_dim), sampling_weight_curve(spec)});
    known = numbers;
  }
  return numbers;
}

HashTables::HashTables(const MagicPigSpec& spec, const at::Tensor& keys,
                       std::span<const int64_t> prompts)
    : spec_(spec),
      prompts_(prompts.begin(), prompts.end()),
      numbers_(HashNumbers::of(spec, keys.size(3))),
      centres_bgd_(at::zeros({keys.size(0), keys.size(1), keys.size(3)}, at::kFloat)),
      lengths_bgs_(at::zeros({keys.size(0), keys.size(1), keys.size(2)}, at::kFloat)),
      rule_{.tables = spec.tables,
            .bits = spec.bits,
            .head_dim = keys.size(3),
            .directions = numbers_->directions.data(),
            .log_weights = numbers_->log_weights.data()} {
  const at::NoGradGuard no_gradient;
  const int64_t batch = keys.size(0), kv_heads = keys.size(1), length = keys.size(2);
  std::vector<int64_t> counts;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t g = 0; g < kv_heads; ++g) {
      counts.push_back(std::max<int64_t>(0, std::min(end(b), length) - begin()));
      at::Tensor region =
          keys.select(0, b).select(0, g).narrow(0, std::min(begin(), length), counts.back());
      region = region.to(at::kFloat);
      if (counts.back() > 0) {
        const at::Tensor centre = region.to(at::kDouble).mean(0).to(at::kFloat);
        centres_bgd_.select(0, b).select(0, g).copy_(centre);
        region = region - centre;
        lengths_bgs_.select(0, b)
            .select(0, g)
            .narrow(0, begin(), counts.back())
            .copy_(region.square().sum(-1).sqrt());
      }
      heads_.push_back(make_head(region.contiguous()));
    }
  }
  for (size_t n = 0; n < heads_.size(); ++n) {
    const auto at = static_cast<int64_t>(n);
    const Head& head = heads_[n];
    const auto bytes = [](const at::Tensor& x) {
      return x.defined() ? static_cast<const std::byte*>(x.const_data_ptr()) : nullptr;
    };
    tables_.push_back({.begin = begin(),
                       .end = begin() + counts[n],
                       .layout = head.layout,
                       .buckets = bytes(head.buckets),
                       .more = bytes(head.more),
                       .more_begin = head.more_begin.data(),
                       .centre = centres_bgd_.const_data_ptr<float>() + at * rule_.head_dim,
                       .lengths = lengths_bgs_.const_data_ptr<float>() + at * length});
  }
}

HashTables::Head HashTables::make_head(const at::Tensor& centred) const {
  const int64_t n = centred.size(0);
  if (n == 0) return {};
  std::vector<int32_t> of_keys(static_cast<size_t>(n * rule_.tables));
  backend_for(centred).run(kernels::RowHashes{.rule = rule_,
                                              .rows = centred.const_data_ptr<float>(),
                                              .count = n,
                                              .hashes = of_keys.data()});
  const kernels::BucketFill fill(rule_, n, of_keys.data());
  HugePages memory(HugePages::padded(fill.bucket_bytes()) + HugePages::padded(fill.more_bytes()));
  Head head{.buckets = memory.allocate({fill.bucket_bytes()}, at::kByte),
            .more = memory.allocate({fill.more_bytes()}, at::kByte),
            .more_begin = fill.more_begin(),
            .layout = fill.layout()};
  const auto bytes = [](const at::Tensor& x) {
    return static_cast<std::byte*>(x.mutable_data_ptr());
  };
  fill.write(bytes(head.buckets), bytes(head.more));
  return head;
}

int64_t HashTables::bytes() const {
  int64_t total = static_cast<int64_t>(lengths_bgs_.nbytes() + centres_bgd_.nbytes());
  for (const Head& head : heads_) {
    for (const at::Tensor* x : {&head.buckets, &head.more})
      total += x->defined() ? static_cast<int64_t>(x->nbytes()) : 0;
  }
  return total;
}

}  // namespace fovea
