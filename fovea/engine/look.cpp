// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/engine/look.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "fovea/attention/mechanism.h"
#include "fovea/attention/mechanisms/focus.h"
#include "fovea/base/error.h"
#include "fovea/compare/inspect.h"
#include "fovea/kernels/common/visits.h"
#include "fovea/runtime/memory_shortage.h"

namespace fovea {
namespace {

void require_below(const std::vector<int64_t>& values, int64_t end, const char* what) {
  for (const int64_t value : values)
    require<ConfigError>(value >= 0 && value < end, "attention", "expected {} from 0 to {}; got {}",
                         what, end - 1, value);
}

/// Number `n` of the list, or of all numbers.
int64_t nth(const std::vector<int64_t>& list, int64_t n) {
  return list.empty() ? n : list[static_cast<size_t>(n)];
}

std::vector<int64_t> queries_of(const AttentionRowsRequest& request, int64_t tokens) {
  return request.queries.empty() ? std::vector<int64_t>{tokens - 1} : request.queries;
}

/// The `most` largest weights of a row of `count`, and the sum of the others.
AttentionRow sparse_row(const float* weights, int64_t count, int64_t most) {
  AttentionRow row;
  for (int64_t key = 0; key < count; ++key)
    if (weights[key] != 0.0f) row.keys.push_back({key, weights[key]});
  const auto kept = std::min<int64_t>(most, std::ssize(row.keys));
  std::partial_sort(row.keys.begin(), row.keys.begin() + kept, row.keys.end(),
                    [](const KeyWeight& a, const KeyWeight& b) {
                      const double x = std::abs(a.weight), y = std::abs(b.weight);
                      return x > y || (x == y && a.key < b.key);
                    });
  for (auto key = row.keys.begin() + kept; key != row.keys.end(); ++key) row.rest += key->weight;
  row.keys.resize(static_cast<size_t>(kept));
  return row;
}

/// Rows of a layer from its weights of the wanted heads and queries.
void add_rows(const at::Tensor& weights_hqs, int64_t layer, const std::vector<int64_t>& queries,
              const AttentionRowsRequest& request, AttentionRows& out) {
  const at::Tensor weights = weights_hqs.to(at::kCPU, at::kFloat).contiguous();
  for (int64_t head = 0; head < weights.size(0); ++head) {
    for (int64_t n = 0; n < weights.size(1); ++n) {
      const int64_t query = queries[static_cast<size_t>(n)];
      AttentionRow row =
          sparse_row(weights[head][n].const_data_ptr<float>(), query + 1, request.keys);
      row.layer = layer;
      row.head = nth(request.heads, head);
      row.query = query;
      out.rows.push_back(std::move(row));
    }
  }
}

/// Keys of a query that have no group in common with it, beyond the window and the sinks.
void add_pruned(const LayerView& view, int64_t layer, const std::vector<int64_t>& queries,
                AttentionRows& out) {
  const AttentionSpec spec = in_mask_terms(view.spec);
  const FocusSpec& focus = spec.focus;
  if (!focus.active() || focus.gate != FocusSpec::Gate::hard || focus.keeps_every_pair()) return;
  const at::Tensor members = view.groups.groups.members_bt[0].to(at::kCPU).contiguous();
  const int64_t* const bits = members.const_data_ptr<int64_t>();
  for (const int64_t query : queries) {
    const KeyRange all{.begin = 0, .end = query + 1};
    const auto seen = row_visits(spec.mask, query, {&all, 1});
    if (!seen) continue;
    PrunedKeys pruned{.layer = layer, .query = query};
    for (const KeyRange& range : {seen->far, seen->near}) {
      for (int64_t key = range.begin; key < range.end; ++key) {
        ++pruned.visible;
        const bool local = query - key < focus.window || key < focus.sinks;
        if (!local && (bits[query] & bits[key]) == 0) pruned.keys.push_back(key);
      }
    }
    out.pruned.push_back(std::move(pruned));
  }
}

}  // namespace

void check_attention_rows(const TextModel& model, const std::vector<int32_t>& tokens,
                          const AttentionRowsRequest& request) {
  const ModelConfig& config = model.transformer().config();
  const int64_t most = model.context(), count = std::ssize(tokens);
  if (count > most)
    throw PromptTooLong(fmt::format("[attention] expected a text of at most {} tokens; got {}; "
                                    "shorten it",
                                    most, count),
                        count, most);
  require_below(request.queries, count, "places");
  require_below(request.layers, config.layers, "layers");
  require_below(request.heads, config.layer_attention(0).output_heads(), "heads");
  require<ConfigError>(std::ssize(request.queries) <= AttentionRowsRequest::kMostQueries,
                       "attention", "expected at most {} places; got {}",
                       AttentionRowsRequest::kMostQueries, request.queries.size());
  require<ConfigError>(request.keys >= 1 && request.keys <= AttentionRowsRequest::kMostKeys,
                       "attention", "expected 1 to {} keys of a row; got {}",
                       AttentionRowsRequest::kMostKeys, request.keys);
}

Look::Look(const TextModel& model, std::vector<int32_t> tokens, AttentionRowsRequest request,
           AttentionRowsDone done, std::function<bool()> cancelled)
    : model_(model),
      tokens_(std::move(tokens)),
      request_(std::move(request)),
      done_(std::move(done)),
      cancelled_(std::move(cancelled)) {}

void Look::begin() {
  const Transformer& transformer = model_.transformer();
  const at::Tensor ids = at::empty({1, std::ssize(tokens_)}, at::kLong);
  std::ranges::copy(tokens_, ids.mutable_data_ptr<int64_t>());
  ModelInput input;
  input.tokens_bt = ids.to(transformer.device());
  walk_.emplace(
      transformer.look_layers(input, {.layers = request_.layers,
                                      .heads = request_.heads,
                                      .queries = queries_of(request_, std::ssize(tokens_))}));
}

void Look::add_layer(LayerView view) {
  const std::vector<int64_t> queries = queries_of(request_, std::ssize(tokens_));
  const auto layer = std::ssize(views_);
  if (view.weights_hqs.defined()) {
    add_rows(view.weights_hqs, layer, queries, request_, out_);
    add_pruned(view, layer, queries, out_);
  }
  view.weights_hqs = at::Tensor();
  views_.push_back(std::move(view));
}

AttentionRows Look::finished() {
  std::vector<std::string> pieces;
  for (const int32_t token : tokens_) pieces.push_back(model_.tokenizer()->decode({&token, 1}));
  out_.inspected =
      inspect_views(model_.served().name, model_.transformer(), std::move(pieces), views_, {});
  out_.tokens = tokens_;
  return std::move(out_);
}

void Look::compute() {
  if (cancelled_()) fail<EngineClosed>("attention", "the request was cancelled");
  const bool late = request_.deadline.count() > 0 &&
                    std::chrono::steady_clock::now() - asked_ >= request_.deadline;
  if (late)
    fail<DeadlinePassed>("attention", "expected an answer within {} ms; {} layers are done",
                         request_.deadline.count(), views_.size());
  if (!walk_) begin();
  walk_->next();
  add_layer(walk_->take_view());
}

bool Look::next() {
  AttentionRows rows;
  std::exception_ptr error;
  try {
    compute();
    if (!walk_->done()) return false;
    rows = finished();
  } catch (...) {
    error =
        memory_shortage() ? std::make_exception_ptr(std::bad_alloc()) : std::current_exception();
  }
  try {
    done_(error, rows);
  } catch (...) {  // the caller's own failure; others go on
  }
  return true;
}

void Look::refuse(std::exception_ptr error) {
  try {
    done_(error, {});
  } catch (...) {  // as above
  }
}

}  // namespace fovea
