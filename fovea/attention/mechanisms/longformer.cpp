// Longformer: keys, checks, the reference of stage 6.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/specs/longformer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "fovea/attention/call.h"
#include "fovea/attention/mechanism.h"
#include "fovea/attention/mechanisms/longformer_rule.h"
#include "fovea/attention/stage_rows.h"
#include "fovea/attention/stream_rows.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

// The last global position, or -1.
int64_t last_global(const LongformerSpec& spec) {
  int64_t last = spec.globals - 1;
  for (const int64_t position : spec.global_positions) last = std::max(last, position);
  return last;
}

}  // namespace

void LongformerSpec::describe(FieldVisitor& v) {
  v.integer({"window", "w: keys before the token that it sees (times dilation); 0 = off (spec 4.1)",
             ranges::kPositionCounts},
            window);
  v.integers(
      {"dilation", "of every query head, or one number for all; empty: 1", ranges::kPositionCounts},
      dilation);
  v.integer({"globals", "the first positions of a document see all and are seen by all",
             ranges::kPositionCounts},
            globals);
  v.integers({"global_positions", "and so do these positions", ranges::kPositionCounts},
             global_positions);
  v.boolean({"projections", "global queries have projections of their own"}, projections);
}

void LongformerSpec::check() const {
  require<ConfigError>(window >= 0 && globals >= 0, kSpecPlace,
                       "longformer.window and longformer.globals must not be negative; got {} and "
                       "{}",
                       window, globals);
  require<ConfigError>(active() || *this == LongformerSpec{}, kSpecPlace,
                       "longformer needs longformer.window above 0");
  for (const int64_t d : dilation)
    require<ConfigError>(d >= 1, kSpecPlace,
                         "longformer.dilation must be at least 1 (1 = neighbouring keys); got {}",
                         d);
  for (const int64_t position : global_positions)
    require<ConfigError>(position >= 0 && ranges::kPositionCounts.contains(position), kSpecPlace,
                         "longformer.global_positions must be positions of a document, 0 to {}; "
                         "got {}",
                         static_cast<int64_t>(ranges::kMostPositions), position);
  require<ConfigError>(!projections || last_global(*this) >= 0, kSpecPlace,
                       "longformer.projections act in global rows; set longformer.globals or "
                       "longformer.global_positions");
}

int64_t dilation_of(const LongformerSpec& spec, int64_t head) {
  if (spec.dilation.empty()) return 1;
  return spec.dilation.size() == 1 ? spec.dilation[0] : spec.dilation[static_cast<size_t>(head)];
}

int64_t largest_dilation(const LongformerSpec& spec) {
  return spec.dilation.empty() ? 1 : *std::ranges::max_element(spec.dilation);
}

bool one_dilation(const LongformerSpec& spec) {
  return std::ranges::all_of(spec.dilation, [&](int64_t d) { return d == spec.dilation[0]; });
}

bool is_global(const LongformerSpec& spec, int64_t position) {
  return position < spec.globals ||
         std::ranges::find(spec.global_positions, position) != spec.global_positions.end();
}

std::optional<int64_t> only_first_globals(const LongformerSpec& spec) {
  std::vector<int64_t> others = spec.global_positions;
  std::ranges::sort(others);
  int64_t count = spec.globals;
  for (const int64_t position : others) {
    if (position > count) return std::nullopt;
    count = std::max(count, position + 1);
  }
  return count;
}

std::optional<MaskRule> mask_rule_of(const LongformerSpec& spec) {
  const std::optional<int64_t> first = only_first_globals(spec);
  if (!first || spec.projections || largest_dilation(spec) > 1) return std::nullopt;
  return MaskRule{.window = spec.window + 1, .sinks = *first};
}

at::Tensor global_tokens(const LongformerSpec& spec, const at::Tensor& positions) {
  at::Tensor global = positions < spec.globals;
  for (const int64_t position : spec.global_positions)
    global = global.logical_or_(positions == position);
  return global;
}

namespace {

// Keys i - dilation * t, t = 0 ... window, of the heads of one dilation.
at::Tensor in_window(const at::Tensor& distance_b1ts, int64_t window, int64_t dilation) {
  const at::Tensor near = distance_b1ts <= window * dilation;
  return dilation == 1 ? near : near.logical_and(distance_b1ts.remainder(dilation) == 0);
}

}  // namespace

KeptKeys kept_keys(const LongformerSpec& spec) {
  const int64_t last = spec.window * largest_dilation(spec) + 1, globals = last_global(spec) + 1;
  // A global query reads the whole text before it: rows may go once none comes any more. Where that
  // is soon, the rows up to there stay.
  if (globals > std::max(last, only_first_globals(spec).value_or(0))) return {};
  return {.first = globals, .last = last};
}

namespace {

void check_longformer(const AttentionSpec& spec) {
  const LongformerSpec& l = spec.longformer;
  l.check();
  if (!l.active()) return;
  const auto listed = std::ssize(l.dilation);
  require<ConfigError>(listed <= 1 || listed == spec.heads, kSpecPlace,
                       "longformer.dilation needs one number, or one for each of {} heads; got {}",
                       spec.heads, listed);
}

std::vector<StageUse> longformer_uses(const AttentionSpec& spec) {
  const LongformerSpec& l = spec.longformer;
  if (!l.active()) return {};
  std::string setting = fmt::format("longformer {}", l.window);
  if (largest_dilation(l) > 1) setting += fmt::format(" dilated {}", fmt::join(l.dilation, " "));
  const int64_t globals = l.globals + std::ssize(l.global_positions);
  if (globals > 0) setting += fmt::format(" globals {}", globals);
  return {{.stage = StageId::allowed,
           .setting = std::move(setting),
           .why_not_sdpa = "the pattern of longformer is no mask of torch's"}};
}

at::Tensor longformer_visible(const at::Tensor& allowed, const StageRows& rows_of_call) {
  const AttentionSpec& attention = rows_of_call.call.spec;
  const LongformerSpec& spec = attention.longformer;
  if (!spec.active()) return allowed;
  const Places& places = rows_of_call.places;
  const at::Tensor distance = distances(places).unsqueeze(1);
  std::vector<at::Tensor> by_head;
  for (int64_t h = 0; h < (one_dilation(spec) ? 1 : attention.heads); ++h)
    by_head.push_back(in_window(distance, spec.window, dilation_of(spec, h)));
  const at::Tensor window = by_head.size() == 1 ? by_head[0] : at::cat(by_head, 1);
  const at::Tensor rows = global_tokens(spec, places.query_positions_bt).unsqueeze(1).unsqueeze(3),
                   keys = global_tokens(spec, places.key_positions_bs).unsqueeze(1).unsqueeze(2);
  return window.logical_or(rows).logical_or(keys).logical_and(allowed);
}

// Whether rows are global, [b or 1, 1, t, 1].
at::Tensor global_rows(const StageRows& rows) {
  return global_tokens(rows.call.spec.longformer, rows.places.query_positions_bt)
      .unsqueeze(1)
      .unsqueeze(3);
}

// Global rows with projections of their own: stage 1, and the values that they read.
at::Tensor with_global_scores(const at::Tensor& logits, const StageRows& rows) {
  const AttentionTensors& x = rows.call.tensors;
  if (!x.global_q_bhtd.defined()) return logits;
  const at::Tensor global = global_rows(rows);
  return at::where(global, rows.scores(x.global_q_bhtd, x.global_k_bgsd), logits);
}

at::Tensor with_global_values(const at::Tensor& out, const at::Tensor& weights,
                              const StageRows& rows) {
  const at::Tensor& values = rows.call.tensors.global_v_bgse;
  if (!values.defined()) return out;
  const at::Tensor global = global_rows(rows);
  return at::where(global, rows.weigh(weights, values.to(weights.scalar_type())), out);
}

int64_t longformer_keys(const LongformerSpec& spec, int64_t dilation, int64_t query) {
  if (is_global(spec, query)) return query + 1;
  const int64_t near = std::min(spec.window, query / dilation);
  const auto beside_window = [&](int64_t j) {
    return j <= query && ((query - j) % dilation != 0 || (query - j) / dilation > near);
  };
  int64_t globals = 0;
  for (int64_t j = 0; j < std::min(spec.globals, query + 1); ++j) globals += beside_window(j);
  for (const int64_t j : spec.global_positions) globals += j >= spec.globals && beside_window(j);
  return near + 1 + globals;
}

double visible_keys_longformer(const AttentionSpec& spec, int64_t query, int64_t /*length*/) {
  double sum = 0.0;
  for (int64_t h = 0; h < spec.heads; ++h)
    sum += static_cast<double>(
        longformer_keys(spec.longformer, dilation_of(spec.longformer, h), query));
  return sum / static_cast<double>(spec.heads);
}

constexpr KeyPattern kLongformerPattern = {
    .to_mask =
        [](AttentionSpec& spec, bool /*plain*/) {
          const std::optional<MaskRule> rule = mask_rule_of(spec.longformer);
          if (!rule) return;
          spec.mask = *rule;
          spec.longformer = {};
        },
    .visible_keys = visible_keys_longformer,
    .window_reach =
        [](const AttentionSpec& spec) {
          return spec.longformer.window * largest_dilation(spec.longformer);
        },
    .kept_keys = [](const AttentionSpec& spec) { return kept_keys(spec.longformer); }};

constexpr StageFormula kLongformerFormulas[] = {
    {.stage = StageId::scale, .apply = with_global_scores}};

std::string projections_of(const AttentionSpec& spec) {
  return fmt::format("longformer.projections {}", spec.longformer.projections);
}

constexpr TensorSlot kLongformerTensors[] = {
    {.name = "global_queries",
     .member = &AttentionTensors::global_q_bhtd,
     .sizes = [](const AttentionSpec& spec, const CallShape& shape) -> Sizes {
       if (!spec.longformer.projections) return std::nullopt;
       return std::vector<int64_t>{shape.batch, spec.heads, shape.queries, spec.head_dim};
     },
     .setting = projections_of,
     .token_axis = 2},
    {.name = "global_keys",
     .member = &AttentionTensors::global_k_bgsd,
     .sizes = [](const AttentionSpec& spec, const CallShape& shape) -> Sizes {
       if (!spec.longformer.projections) return std::nullopt;
       return std::vector<int64_t>{shape.batch, spec.kv_heads, shape.keys, spec.head_dim};
     },
     .setting = projections_of,
     .token_axis = 2},
    {.name = "global_values",
     .member = &AttentionTensors::global_v_bgse,
     .sizes = [](const AttentionSpec& spec, const CallShape& shape) -> Sizes {
       if (!spec.longformer.projections) return std::nullopt;
       return std::vector<int64_t>{shape.batch, spec.value_heads(), shape.keys, spec.value_width()};
     },
     .setting = projections_of,
     .token_axis = 2},
};

// Global rows read these of the same tokens that are kept for the others.
void add_streams_longformer(const AttentionSpec& spec, const StreamSpec& keys,
                            std::vector<StreamSpec>& all) {
  if (!spec.longformer.projections) return;
  StreamSpec rows = keys;
  rows.name = "global_keys";
  rows.new_rows = new_rows_of<&AttentionTensors::global_k_bgsd, TokenAxis::third>;
  rows.set_rows = set_rows_of<&AttentionTensors::global_k_bgsd, TokenAxis::third>;
  all.push_back(rows);
  rows.name = "global_values";
  rows.new_rows = new_rows_of<&AttentionTensors::global_v_bgse, TokenAxis::third>;
  rows.set_rows = set_rows_of<&AttentionTensors::global_v_bgse, TokenAxis::third>;
  rows.row_shape = {spec.value_heads(), spec.value_width()};
  all.push_back(rows);
}

constexpr MechanismSetting kLongformerSettings[] = {
    {"Longformer",
     [](AttentionSpec& s) { s.longformer = {.window = 127, .dilation = {2}, .globals = 4}; }},
};

}  // namespace

const Mechanism& longformer_mechanism() {
  static constexpr Mechanism mechanism{
      .name = "longformer",
      .describe =
          [](AttentionSpec& spec, FieldVisitor& v) {
            v.nested({"longformer", "stage 6: window, dilation, global tokens (spec 4.1)"},
                     spec.longformer);
          },
      .check = check_longformer,
      .uses = longformer_uses,
      .formulas = kLongformerFormulas,
      .visible = longformer_visible,
      .output = with_global_values,
      .tensors = kLongformerTensors,
      .add_streams = add_streams_longformer,
      .settings = kLongformerSettings,
      .remove = [](AttentionSpec& spec) { spec.longformer = {}; },
      .key_rule = [](const AttentionSpec& spec) -> std::optional<KeyRule> {
        return spec.longformer.active() ? std::optional(KeyRule::parts) : std::nullopt;
      },
      .pattern = &kLongformerPattern,
      .without_values =
          [](AttentionCall& call) {
            AttentionTensors& x = call.tensors;
            if (x.global_v_bgse.defined())
              x.global_v_bgse = x.global_k_bgsd.narrow(1, 0, call.spec.value_heads());
          },
  };
  return mechanism;
}

}  // namespace fovea
