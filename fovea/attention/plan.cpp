// Building plans: the cheapest exact description of a batch's mask.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/plan.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>

#include "fovea/attention/pipeline.h"
#include "fovea/attention/places.h"
#include "fovea/attention/positions/bias.h"

namespace fovea {
namespace {

bool all_true(const at::Tensor& condition) {
  return condition.numel() == 0 || condition.all().item<bool>();
}

// Whether the rule restricts nothing beyond causality for documents of at most `longest` tokens.
bool reaches_everything(const MaskRule& rule, int64_t longest) {
  switch (rule.sparsity) {
    case MaskRule::Sparsity::full:
      return rule.window == 0 || rule.window >= longest;
    case MaskRule::Sparsity::strided:
      return rule.window >= longest || rule.stride == 1;
    case MaskRule::Sparsity::fixed:
      return rule.block >= longest || rule.summary == rule.block;
  }
  return false;
}

bool same_ascending_positions(const Places& places) {
  const at::Tensor& q = places.query_positions_bt;
  const at::Tensor& k = places.key_positions_bs;
  if (q.size(0) != k.size(0) || q.size(1) != k.size(1)) return false;
  if (!all_true(q == k)) return false;
  return q.size(1) < 2 || all_true(k.narrow(1, 1, k.size(1) - 1) > k.narrow(1, 0, k.size(1) - 1));
}

bool one_document(const at::Tensor& documents_bs) {
  return documents_bs.size(1) == 0 || all_true(documents_bs == documents_bs.narrow(1, 0, 1));
}

// Runs of equal labels as segments; neighbouring batch rows with equal runs share one. False where
// a label returns after another one, so that runs are not documents, or where positions do not
// ascend inside a run.
bool find_segments(const Places& places, int64_t batch, std::vector<Segment>& segments) {
  const at::Tensor documents =
      places.key_documents_bs.expand({batch, places.key_documents_bs.size(1)}).cpu().contiguous();
  const at::Tensor positions =
      places.key_positions_bs.expand({batch, documents.size(1)}).cpu().contiguous();
  const int64_t s = documents.size(1);
  std::vector<int64_t> previous_borders;
  size_t previous_first = 0;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t* label = documents.const_data_ptr<int64_t>() + b * s;
    const int64_t* position = positions.const_data_ptr<int64_t>() + b * s;
    std::vector<int64_t> borders{0}, labels{label[0]};
    for (int64_t i = 1; i < s; ++i) {
      if (label[i] != label[i - 1]) {
        if (std::ranges::find(labels, label[i]) != labels.end()) return false;
        borders.push_back(i);
        labels.push_back(label[i]);
      } else if (position[i] <= position[i - 1]) {
        return false;
      }
    }
    borders.push_back(s);
    if (b > 0 && borders == previous_borders) {
      for (size_t n = previous_first; n < segments.size(); ++n) segments[n].row_end = b + 1;
      continue;
    }
    previous_first = segments.size();
    for (size_t n = 0; n + 1 < borders.size(); ++n) {
      segments.push_back(
          {.row_begin = b, .row_end = b + 1, .begin = borders[n], .end = borders[n + 1]});
    }
    previous_borders = std::move(borders);
  }
  return true;
}

// Shorter segments than this on average cost more calls than a masked product costs time (measured:
// a call costs about as much as a 32-token segment).
constexpr int64_t kShortestSegment = 32;

bool segments_pay(const std::vector<Segment>& segments, int64_t tokens) {
  return tokens / std::max<int64_t>(1, std::ssize(segments)) >= kShortestSegment;
}

PlanName restriction_names(const MaskRule& rule, bool documents, BiasSpec::Kind bias) {
  PlanName names;
  if (documents) names.add(PlanWord::documents);
  if (rule.sparsity == MaskRule::Sparsity::strided) names.add(PlanWord::strided);
  if (rule.sparsity == MaskRule::Sparsity::fixed) names.add(PlanWord::fixed);
  if (rule.window > 0) names.add(PlanWord::window);
  if (bias == BiasSpec::Kind::alibi) names.add(PlanWord::alibi);
  if (names.empty()) names.add(rule.causal ? PlanWord::causal : PlanWord::full);
  return names;
}

at::Tensor additive_mask(const AttentionSpec& spec, const Places& places, const at::Tensor& seen,
                         at::ScalarType dtype) {
  const at::Tensor nothing =
      at::full({}, -std::numeric_limits<double>::infinity(), seen.options().dtype(dtype));
  const at::Tensor bias = spec.bias.kind == BiasSpec::Kind::alibi
                              ? position_bias(spec, {}, places, dtype)
                              : at::zeros({}, nothing.options());
  return at::where(seen, bias, nothing);
}

// Whether some pairs belong to different documents.
bool has_documents(const Places& places) {
  return places.key_documents_bs.defined() &&
         !(one_document(places.key_documents_bs) && one_document(places.query_documents_bt) &&
           all_true(places.key_documents_bs.slice(1, 0, 1) ==
                    places.query_documents_bt.slice(1, 0, 1)));
}

bool is_plain(const AttentionSpec& spec, int64_t keys) {
  return spec.bias.kind == BiasSpec::Kind::none && reaches_everything(spec.mask, keys);
}

}  // namespace

PlanName plan_name(const AttentionSpec& spec, const Places& places, int64_t keys) {
  const bool documents = has_documents(places);
  if (is_plain(spec, keys) && !documents)
    return spec.mask.causal ? PlanWord::causal : PlanWord::full;
  return restriction_names(spec.mask, documents, spec.bias.kind);
}

std::shared_ptr<const MaskPlan> make_mask_plan(const AttentionSpec& spec,
                                               const AttentionContext& context,
                                               const CallShape& shape) {
  const at::NoGradGuard no_gradient;
  auto plan = std::make_shared<MaskPlan>();
  const Places places = host_places(context, shape.queries, shape.keys);
  const bool documents = has_documents(places);
  plan->name = restriction_names(spec.mask, documents, spec.bias.kind);
  const bool plain = is_plain(spec, shape.keys);
  const bool square = shape.queries == shape.keys && shape.keys > 0;
  const bool default_positions =
      !context.query_positions_bt.defined() && !context.key_positions_bs.defined();
  if (plain && !documents && !spec.mask.causal) {
    plan->kind = MaskPlan::Kind::full;
    plan->name = PlanWord::full;
    plan->empty_rows = shape.keys == 0;
    return plan;
  }
  if (plain && !documents && default_positions && shape.queries == 1 && shape.keys > 0) {
    plan->kind = MaskPlan::Kind::full;  // the last token sees everything
    return plan;
  }
  if (plain && !documents && square && same_ascending_positions(places)) {
    plan->kind = MaskPlan::Kind::causal;
    plan->name = PlanWord::causal;
    return plan;
  }
  if (plain && documents && spec.mask.causal && square &&
      places.key_documents_bs.equal(places.query_documents_bt) &&
      places.key_positions_bs.equal(places.query_positions_bt) &&
      find_segments(places, shape.batch, plan->segments) &&
      segments_pay(plan->segments, shape.batch * shape.keys)) {
    plan->kind = MaskPlan::Kind::segments;
    return plan;
  }
  plan->segments.clear();
  const Places there = shape.device.is_cpu()
                           ? places
                           : resolve_places(context, shape.queries, shape.keys, shape.device);
  const at::Tensor seen = allowed_mask(spec.mask, there);
  // Under every rule a token sees itself.
  plan->empty_rows = shape.keys == 0 || (!are_last_keys(places) && !all_true(seen.any(-1)));
  plan->additive = additive_mask(spec, there, seen, accumulate_type(shape.dtype));
  return plan;
}

std::shared_ptr<const BatchVisits> make_batch_visits(const AttentionSpec& spec,
                                                     const AttentionContext& context,
                                                     const CallShape& shape,
                                                     const TileSizes& sizes) {
  const at::NoGradGuard no_gradient;
  const Places places = host_places(context, shape.queries, shape.keys);
  auto out = std::make_shared<BatchVisits>();
  out->name = plan_name(spec, places, shape.keys);
  bool one = true;  // the same places in every row of the batch
  for (const at::Tensor* x : {&places.query_positions_bt, &places.key_positions_bs,
                              &places.query_documents_bt, &places.key_documents_bs})
    one &= !x->defined() || x->size(0) == 1;
  for (int64_t b = 0; b < (one ? 1 : shape.batch); ++b) {
    out->visits.push_back(make_visits(
        spec.mask, token_places(places.query_positions_bt, places.query_documents_bt, b),
        token_places(places.key_positions_bs, places.key_documents_bs, b), sizes));
  }
  return out;
}

PlanCache::Entry& PlanCache::entry_of(const AttentionSpec& spec, const CallShape& shape) {
  for (Entry& entry : entries_) {
    if (entry.rule == spec.mask && entry.bias == spec.bias && entry.heads == spec.heads &&
        entry.shape == shape)
      return entry;
  }
  entries_.push_back({spec.mask, spec.bias, spec.heads, shape, nullptr, nullptr});
  return entries_.back();
}

std::shared_ptr<const MaskPlan> PlanCache::get(const AttentionSpec& spec,
                                               const AttentionContext& context,
                                               const CallShape& shape) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entry_of(spec, shape);
  if (!entry.plan) entry.plan = make_mask_plan(spec, context, shape);
  return entry.plan;
}

std::shared_ptr<const BatchVisits> PlanCache::visits(const AttentionSpec& spec,
                                                     const AttentionContext& context,
                                                     const CallShape& shape,
                                                     const TileSizes& sizes) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entry_of(spec, shape);
  if (!entry.visits || entry.sizes != sizes) {
    entry.visits = make_batch_visits(spec, context, shape, sizes);
    entry.sizes = sizes;
  }
  return entry.visits;
}

}  // namespace fovea
