// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/engine/look.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "fovea/attention/mechanism.h"
#include "fovea/attention/mechanisms/focus.h"
#include "fovea/base/error.h"
#include "fovea/compare/inspect.h"
#include "fovea/kernels/common/visits.h"

namespace fovea {
namespace {

// Whole maps exist while the layers are looked at.
constexpr int64_t kMostMapBytes = int64_t{1} << 30;

int64_t most_tokens(const TextModel& model) {
  const ModelConfig& config = model.transformer().config();
  const auto numbers = static_cast<double>(kMostMapBytes) / sizeof(float);
  const auto maps = static_cast<double>(config.layers * config.heads);
  return std::min(model.context(), static_cast<int64_t>(std::sqrt(numbers / maps)));
}

void require_below(const std::vector<int64_t>& values, int64_t end, const char* what) {
  for (const int64_t value : values)
    require<ConfigError>(value >= 0 && value < end, "attention", "expected {} from 0 to {}; got {}",
                         what, end - 1, value);
}

/// The list, or all numbers below `end`.
std::vector<int64_t> or_all(std::vector<int64_t> list, int64_t end) {
  if (!list.empty()) return list;
  list.resize(static_cast<size_t>(end));
  std::iota(list.begin(), list.end(), int64_t{0});
  return list;
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

void add_rows(const LayerView& view, int64_t layer, const std::vector<int64_t>& queries,
              const AttentionRowsRequest& request, AttentionRows& out) {
  const at::Tensor weights = view.weights_htt.to(at::kCPU, at::kFloat).contiguous();
  for (const int64_t head : or_all(request.heads, weights.size(0))) {
    for (const int64_t query : queries) {
      AttentionRow row =
          sparse_row(weights[head][query].const_data_ptr<float>(), query + 1, request.keys);
      row.layer = layer;
      row.head = head;
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
  const int64_t most = most_tokens(model), count = std::ssize(tokens);
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

AttentionRows attention_rows_of(const TextModel& model, const std::vector<int32_t>& tokens,
                                const AttentionRowsRequest& request) {
  const Transformer& transformer = model.transformer();
  const Tokenizer& tokenizer = *model.tokenizer();
  const auto count = std::ssize(tokens);
  ModelInput input;
  const at::Tensor ids = at::empty({1, count}, at::kLong);
  std::ranges::copy(tokens, ids.mutable_data_ptr<int64_t>());
  input.tokens_bt = ids.to(transformer.device());
  std::vector<std::string> pieces;
  for (const int32_t token : tokens) pieces.push_back(tokenizer.decode({&token, 1}));
  const std::vector<LayerView> views = transformer.look(input);
  AttentionRows out{
      .inspected = inspect_views(model.served().name, transformer, std::move(pieces), views, {}),
      .tokens = tokens};
  const std::vector<int64_t> queries = queries_of(request, count);
  for (const int64_t layer : or_all(request.layers, std::ssize(views))) {
    const LayerView& view = views[static_cast<size_t>(layer)];
    add_rows(view, layer, queries, request, out);
    add_pruned(view, layer, queries, out);
  }
  return out;
}

}  // namespace fovea
