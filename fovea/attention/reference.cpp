// The reference: attention as a composition of plain tensor operations, in the order of the stage
// table. It is the definition.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>

#include "fovea/attention/mechanism.h"
#include "fovea/attention/mechanisms/differential.h"
#include "fovea/attention/mechanisms/selector.h"
#include "fovea/attention/pipeline.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

RowRange with_rows_before(RowRange rows, int64_t count) {
  return {std::max<int64_t>(0, rows.begin - count), rows.end};
}

// Rows on their way through the table. In every stage the formulas of the mechanisms act first;
// then close() does what the stage itself is.
class StageWalk {
 public:
  StageWalk(const AttentionCall& call, const Places& places, RowRange wanted,
            bool only_visible_keys)
      : wanted_(wanted.size()),
        earlier_(earlier_rows(call.spec)),
        rows_(stage_rows(call, places, with_rows_before(wanted, earlier_.all))) {
    rows_.results = with_rows_before(wanted, earlier_.after).size();
    if (only_visible_keys) rows_.keep_visible_keys();
  }

  RowWeights run(bool want_lse) {
    const AttentionCall& call = rows_.call;
    x_ = rows_.scores(call.q, call.k);
    for (const Stage& stage : attention_stages()) {
      if (stage.id == StageId::keys) continue;  // checked_call()
      if (stage.id == StageId::values) break;   // attend_rows()
      rows_.stage = stage.id;
      x_ = with_formulas(std::move(x_), rows_);
      close(want_lse);
    }
    return {.softmax_bhts = std::move(softmax_),
            .weights_bhts = std::move(x_),
            .lse_bht = std::move(lse_),
            .rows = std::move(rows_)};
  }

 private:
  void close(bool want_lse) {
    switch (rows_.stage) {
      case StageId::scale:
        // NaN and infinity of pairs that are not seen pass through no stage.
        if (!rows_.finite)
          x_ = x_.masked_fill((~rows_.allowed).logical_and(x_.isfinite().logical_not()), 0.0);
        break;
      case StageId::convolution_before:
        keep_last_rows(rows_.results);
        rows_.results = wanted_;
        break;
      case StageId::allowed:
        select();
        x_ = x_.masked_fill(~seen_, -kInfinity);
        break;
      case StageId::softmax:
        weigh(want_lse);
        break;
      case StageId::convolution_after:
        keep_last_rows(wanted_);
        break;
      default:
        break;
    }
  }

  void keep_last_rows(int64_t count) {
    x_ = last_rows(x_, count);
    rows_.keep_last_rows(count);
  }

  // What each row sees: the allowed keys, or those that a selector chooses among them.
  void select() {
    seen_ = rows_.allowed;
    selection_ = select_keys(rows_);
    if (!selection_.chosen_bhts.defined()) return;
    seen_ = selection_.chosen_bhts;
    if (selection_.log_weights_bhts.defined()) x_ = x_ + selection_.log_weights_bhts;
  }

  void weigh(bool want_lse) {
    Softmax softmax = softmax_rows(x_, rows_.call.tensors.sink_logit_h, want_lse);
    x_ = std::move(softmax.weights_bhts);
    // A row of NaN weighs what it does not see, too.
    if (!rows_.finite) x_ = x_.masked_fill(~seen_, 0.0);
    if (selection_.alpha_bht.defined()) x_ = reallocated(x_, selection_.alpha_bht, rows_.allowed);
    softmax_ = last_rows(x_, wanted_);
    if (want_lse) lse_ = last_rows(softmax.lse_bht, wanted_);
  }

  int64_t wanted_;
  EarlierRows earlier_;
  StageRows rows_;
  at::Tensor x_;     // logits, then weights
  at::Tensor seen_;  // since stage 6
  Selection selection_;
  at::Tensor softmax_, lse_;
};

}  // namespace

RowWeights weights_of_rows(const AttentionCall& call, const Places& places, RowRange rows,
                           bool want_lse, bool only_visible_keys) {
  return StageWalk(call, places, rows, only_visible_keys).run(want_lse);
}

namespace {

// The call with q and k in accumulate_type(), for maps and telemetry.
AttentionCall widened(AttentionCall call) {
  const at::ScalarType wide = accumulate_type(call.q.scalar_type());
  call.q = call.q.to(wide);
  call.k = call.k.to(wide);
  return call;
}

// Rows of a map that are computed together.
constexpr int64_t kRowsOfBlock = 32;

at::Tensor rows_of_call(const AttentionCall& given, std::span<const int64_t> heads,
                        std::span<const int64_t> queries) {
  const AttentionCall call = widened(given);
  const at::Tensor& q = call.q;
  const Places& places = call.places();
  const at::Tensor chosen =
      at::tensor(at::IntArrayRef(heads.data(), heads.size()), at::kLong).to(q.device());
  std::vector<at::Tensor> parts;
  // Whole blocks, so that the bits of a row do not depend on the others that are wanted.
  for (size_t n = 0; n < queries.size();) {
    const int64_t begin = queries[n] / kRowsOfBlock * kRowsOfBlock,
                  end = std::min(begin + kRowsOfBlock, q.size(2));
    std::vector<int64_t> places_in_block;
    for (; n < queries.size() && queries[n] >= begin && queries[n] < end; ++n)
      places_in_block.push_back(queries[n] - begin);
    const at::Tensor in_block = at::tensor(places_in_block, at::kLong).to(q.device());
    parts.push_back(weights_of_rows(call, places, {begin, end}, false, false)
                        .weights_bhts.index_select(1, chosen)
                        .index_select(2, in_block)
                        .to(at::kFloat));
  }
  if (parts.empty())
    return at::zeros({q.size(0), std::ssize(heads), 0, call.k.size(2)},
                     q.options().dtype(at::kFloat));
  return at::cat(parts, 2);
}

}  // namespace

at::Tensor attention_rows(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& k,
                          const AttentionTensors& tensors, const AttentionContext& context,
                          std::span<const int64_t> heads, std::span<const int64_t> queries) {
  const at::NoGradGuard no_gradient;
  const AttentionCall call = checked_call_without_values(spec, q, k, tensors, context);
  for (const int64_t head : heads) {
    require<ShapeError>(head >= 0 && head < spec.output_heads(), "attention_rows",
                        "heads must be below {}; got {}", spec.output_heads(), head);
  }
  for (const int64_t row : queries) {
    require<ShapeError>(row >= 0 && row < q.size(2), "attention_rows",
                        "queries must be below {}; got {}", q.size(2), row);
  }
  if (!spec.differential) return rows_of_call(call, heads, queries);
  const at::Tensor first = rows_of_call(differential_map(call, 0), heads, queries),
                   second = rows_of_call(differential_map(call, 1), heads, queries);
  return first - differential_lambda(spec, tensors).to(at::kFloat) * second;
}

AttentionStats stats_of(const AttentionCall& given) {
  const at::NoGradGuard no_gradient;
  const AttentionCall call = widened(given);
  const int64_t queries = call.q.size(2);
  const Places& places = call.places();
  const at::Tensor first = (places.key_positions_bs == 0).unsqueeze(1).unsqueeze(2);  // [b,1,1,s]
  const int64_t fitting = reference_block_rows(call.q.size(0) * call.q.size(1), queries,
                                               call.k.size(2), call.q.element_size());
  const int64_t block = fitting > 0 ? fitting : std::max<int64_t>(queries, 1);
  std::vector<at::Tensor> entropy, largest, sink;
  for (int64_t begin = 0; begin == 0 || begin < queries; begin += block) {
    const RowRange rows{begin, std::min(begin + block, queries)};
    const at::Tensor p = weights_of_rows(call, places, rows, false, false).softmax_bhts;
    entropy.push_back(-at::xlogy(p, p).sum(-1));
    largest.push_back(p.numel() > 0 ? at::amax(p, -1) : p.sum(-1));
    sink.push_back((p * first.to(p.scalar_type())).sum(-1));
  }
  const auto mean = [](const std::vector<at::Tensor>& x_bht) {
    return at::cat(x_bht, 2).mean(at::IntArrayRef{0, 2}).to(at::kFloat);
  };
  return {.entropy_h = mean(entropy), .largest_weight_h = mean(largest), .sink_mass_h = mean(sink)};
}

AttentionStats attention_stats(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& k,
                               const AttentionTensors& tensors, const AttentionContext& context) {
  const at::NoGradGuard no_gradient;
  const AttentionCall call = checked_call_without_values(spec, q, k, tensors, context);
  if (!spec.differential) return stats_of(call);
  return both_maps(stats_of(differential_map(call, 0)), stats_of(differential_map(call, 1)));
}

}  // namespace fovea
