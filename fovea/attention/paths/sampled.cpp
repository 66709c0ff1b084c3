// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/paths/sampled.h"

#include <ATen/ATen.h>

#include <numeric>
#include <vector>

#include "fovea/attention/backend.h"
#include "fovea/attention/cache/hash_tables.h"
#include "fovea/attention/mechanisms/magic_pig_choice.h"

namespace fovea {
namespace {

template <class T>
void read_sampled(const AttentionCall& call, const at::Tensor& tau, const AttentionResult& result,
                  std::vector<int64_t>& read) {
  const HashTables& tables = *call.selector.tables;
  backend_for(call.q).run(
      kernels::SampledDecode<T>{.sizes = {.batch = call.q.size(0),
                                          .heads = call.spec.heads,
                                          .kv_heads = call.spec.kv_heads,
                                          .queries = 1,
                                          .keys = call.k.size(2),
                                          .head_dim = call.spec.head_dim,
                                          .value_dim = call.v.size(3)},
                                .q = rows_of<T>(call.q),
                                .k = rows_of<T>(call.k),
                                .v = rows_of<T>(call.v),
                                .rule = tables.rule(),
                                .tables = tables.tables().data(),
                                .scale = static_cast<float>(call.spec.logit_scale()),
                                .tau = tau.defined() ? tau.const_data_ptr<float>() : nullptr,
                                .out = writable_rows_of<T>(result.out_bhte),
                                .lse = result.lse_bht.mutable_data_ptr<float>(),
                                .read = read.data()});
}

AttentionResult sampled_query(const AttentionCall& given) {
  AttentionCall call = given;
  for (at::Tensor* x : {&call.q, &call.k, &call.v}) *x = contiguous_rows(*x);
  const int64_t b = call.q.size(0), h = call.spec.heads;
  const at::Tensor tau = float_rows(call.tensors.tau_bt);
  AttentionResult result;
  result.out_bhte = at::empty({b, h, 1, call.v.size(3)}, call.q.options());
  result.lse_bht = at::empty({b, h, 1}, at::kFloat);
  std::vector<int64_t> read(static_cast<size_t>(b * h));
  with_kernel_type(call.q.scalar_type(), "attention",
                   [&]<class T>(T) { read_sampled<T>(call, tau, result, read); });
  result.path.isa = kernel_isa(call.q);
  result.path.plan = PlanWord::scan;
  result.path.reason = one_query_reason(std::accumulate(read.begin(), read.end(), int64_t{0}),
                                        b * h, call.k.size(2));
  return result;
}

// The keys of one key head, with what all blocks of rows share.
struct TextKeys {
  at::Tensor k_sd, v_se;     // as given
  at::Tensor squares_s;      // |k|^2, float32
  at::Tensor sums_sd;        // of the keys before each, float64, [s + 1, d]
  at::Tensor products_11ns;  // key_side_products()
};

TextKeys text_keys(const AttentionCall& call, const at::Tensor& directions, int64_t b, int64_t g) {
  const auto head = [&](const at::Tensor& x) { return x.select(0, b).select(0, g); };
  TextKeys keys{.k_sd = head(call.k), .v_se = head(call.v)};
  const at::Tensor k = keys.k_sd.to(at::kFloat);
  keys.squares_s = k.square().sum(1).contiguous();
  keys.sums_sd = at::constant_pad_nd(k.cumsum(0, at::kDouble), {0, 0, 1, 0});
  keys.products_11ns = key_side_products(directions, k.unsqueeze(0).unsqueeze(0).contiguous());
  return keys;
}

// Ends of the regions of `rows` rows, the first of which sees `first_length` keys: rows of fewer
// than two sampled keys sample none.
at::Tensor region_ends(const MagicPigSpec& spec, int64_t first_length, int64_t rows) {
  const at::Tensor ends =
      at::arange(first_length - 1, first_length - 1 + rows, at::kLong) - spec.recent;
  return at::where(ends - spec.start >= 2, ends, at::full_like(ends, spec.start));
}

// Mean keys of the regions, [rows, d] float32; 0 where a region is empty.
at::Tensor region_centres(const TextKeys& keys, int64_t begin, const at::Tensor& ends) {
  const at::Tensor last = ends.clamp_max(keys.sums_sd.size(0) - 1);
  const at::Tensor first = last.clamp_max(begin);
  const at::Tensor sums = keys.sums_sd.index_select(0, last) - keys.sums_sd.index_select(0, first);
  return (sums / (last - first).clamp_min(1).unsqueeze(1)).to(at::kFloat).contiguous();
}

// What the blocks of a call share.
struct TextCall {
  const AttentionCall& call;
  at::Tensor tau_bt, directions;
  std::vector<float> log_weights;
  AttentionResult& result;
  int64_t read = 0, last_read = 0;  // of all rows; of the last ones
};

// Query rows [begin, begin + rows) of the heads of key head g.
template <class T>
void sample_block(TextCall& text, const TextKeys& keys, int64_t b, int64_t g, int64_t begin,
                  int64_t rows) {
  const AttentionCall& call = text.call;
  const MagicPigSpec& pig = call.spec.magic_pig;
  const int64_t n = heads_per_key(call), first = call.k.size(2) - call.q.size(2) + begin + 1;
  const at::Tensor q =
      call.q.select(0, b).narrow(0, g * n, n).narrow(1, begin, rows).to(at::kFloat).contiguous();
  const at::Tensor ends = region_ends(pig, first, rows),
                   centres = region_centres(keys, pig.start, ends);
  const at::Tensor twice =
      collision_words(pig, text.directions, q.unsqueeze(0).unsqueeze(0), keys.products_11ns,
                      centres.unsqueeze(0).unsqueeze(0), ends.unsqueeze(0));
  const auto out = writable_rows_of<T>(text.result.out_bhte);
  std::vector<int64_t> read(static_cast<size_t>(n * rows));
  backend_for(q).run(kernels::SampledRows<T>{
      .heads = n,
      .rows = rows,
      .first_length = first,
      .head_dim = call.spec.head_dim,
      .value_dim = call.v.size(3),
      .q = q.const_data_ptr<float>(),
      .k = static_cast<const T*>(keys.k_sd.const_data_ptr()),
      .v = static_cast<const T*>(keys.v_se.const_data_ptr()),
      .key_row = keys.k_sd.stride(0),
      .value_row = keys.v_se.stride(0),
      .squares = keys.squares_s.const_data_ptr<float>(),
      .centres = centres.const_data_ptr<float>(),
      .begin = pig.start,
      .ends = ends.const_data_ptr<int64_t>(),
      .twice = reinterpret_cast<const uint32_t*>(twice.const_data_ptr<int32_t>()),
      .words = twice.size(4),
      .log_weights = text.log_weights.data(),
      .scale = static_cast<float>(call.spec.logit_scale()),
      .tau = text.tau_bt.defined()
                 ? text.tau_bt[text.tau_bt.size(0) == 1 ? 0 : b].const_data_ptr<float>() + begin
                 : nullptr,
      .out = out.at(b, g * n, begin),
      .out_head = out.head,
      .out_row = out.row,
      .lse = text.result.lse_bht[b][g * n].mutable_data_ptr<float>() + begin,
      .lse_head = text.result.lse_bht.stride(1),
      .read = read.data()});
  text.read += std::accumulate(read.begin(), read.end(), int64_t{0});
  if (begin + rows < call.q.size(2)) return;
  for (int64_t h = 0; h < n; ++h) text.last_read += read[static_cast<size_t>((h + 1) * rows - 1)];
}

AttentionResult sampled_queries(const AttentionCall& given) {
  AttentionCall call = given;
  for (at::Tensor* x : {&call.k, &call.v}) *x = contiguous_rows(*x);
  const int64_t b = call.q.size(0), h = call.spec.heads, t = call.q.size(2), s = call.k.size(2);
  const MagicPigSpec& pig = call.spec.magic_pig;
  AttentionResult result;
  result.out_bhte = empty_by_token({b, h, t, call.v.size(3)}, call.q.options());
  result.lse_bht = at::empty({b, h, t}, at::kFloat);
  TextCall text{.call = call,
                .tau_bt = float_rows(call.tensors.tau_bt),
                .directions = hash_directions(pig, call.spec.head_dim).to(at::kFloat),
                .log_weights = sampling_weight_curve(pig),
                .result = result};
  const int64_t row_bytes = (heads_per_key(call) + 1) * pig.tables * pig.bits * 4;
  const int64_t block = std::clamp<int64_t>(kSelectorBlockBytes / row_bytes, 1, t);
  with_kernel_type(call.q.scalar_type(), "attention", [&]<class T>(T) {
    for (int64_t row = 0; row < b; ++row) {
      for (int64_t g = 0; g < call.spec.kv_heads; ++g) {
        const TextKeys keys = text_keys(call, text.directions, row, g);
        for (int64_t begin = 0; begin < t; begin += block)
          sample_block<T>(text, keys, row, g, begin, std::min(block, t - begin));
      }
    }
  });
  result.path.isa = kernel_isa(call.q);
  result.path.plan = PlanWord::lists;
  result.path.reason = text_reason(text.read, b * h * t, t, s);
  result.path.keys_read = {
      .row = static_cast<double>(text.read) / static_cast<double>(b * h * t),
      .last_row = static_cast<double>(text.last_read) / static_cast<double>(b * h)};
  return result;
}

bool asks_tables(const AttentionCall& call) {
  return call.q.size(2) == 1 && call.selector.tables != nullptr;
}

}  // namespace

std::optional<std::string> why_not_sampled(const AttentionCall& call) {
  const at::Tensor& prompts = call.selector.prompts_b;
  if (asks_tables(call) || !prompts.defined()) return std::nullopt;
  // Rows of the prompt itself sample as rows of a text do.
  if (call.q.size(2) > 1 && prompts.min().item<int64_t>() >= call.k.size(2)) return std::nullopt;
  return "one query behind a prompt needs the hash tables of a cache";
}

AttentionResult run_sampled(const AttentionCall& call) {
  return asks_tables(call) ? sampled_query(call) : sampled_queries(call);
}

}  // namespace fovea
