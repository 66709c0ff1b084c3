// Focus: keys, checks, groups of tokens, gates on pairs.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/focus.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "fovea/attention/call.h"
#include "fovea/attention/mechanism.h"
#include "fovea/attention/mechanisms/sinkhorn.h"
#include "fovea/attention/pipeline.h"
#include "fovea/attention/places.h"
#include "fovea/attention/stage_rows.h"
#include "fovea/attention/stream_rows.h"
#include "fovea/base/error.h"
#include "fovea/base/rng.h"
#include "fovea/kernels/common/grouped_pairs.h"

namespace fovea {
namespace {

constexpr int64_t kMostGroups = 64;  // memberships are the bits of a word

at::ScalarType wide_type(const at::Tensor& x) { return accumulate_type(x.scalar_type()); }

at::Tensor part(const at::Tensor& x_bs, RowRange tokens) {
  const bool whole = !x_bs.defined() || tokens.size() == x_bs.size(1);
  return whole ? x_bs : x_bs.narrow(1, tokens.begin, tokens.size());
}

// The groups of rows and keys of a call.
struct FocusPairs {
  at::Tensor query_groups_btk, key_groups_bsk;
  at::Tensor query_members_bt, key_members_bs;

  explicit FocusPairs(const StageRows& rows) {
    const AttentionTensors& x = rows.call.tensors;
    const RowRange queries{rows.first_row(), rows.first_row() + rows.rows.size()};
    query_groups_btk = part(x.groups_bsk, queries);
    key_groups_bsk = part(x.groups_bsk, rows.keys);
    query_members_bt = part(x.members_bs, queries);
    key_members_bs = part(x.members_bs, rows.keys);
  }
};

}  // namespace

void FocusSpec::describe(FieldVisitor& v) {
  v.choice({"gate", "none, log, mul (faithful), logsig, identity, hard, straight_through (11.2)"},
           gate);
  v.integer({"groups", "K, at most 64", {1, kMostGroups}}, groups);
  v.integer({"top_k", "hard: groups of a token; 2k > K is full attention", {1, kMostGroups}},
            top_k);
  v.integer({"window", "w: pairs with i - j < w are always visible", {1, ranges::kMostPositions}},
            window);
  v.integer({"sinks", "first positions of a document that are always visible (U-23)",
             ranges::kPositionCounts},
            sinks);
  v.integer({"width", "d_g of the space where tokens meet centroids", {1, 1 << 17}}, width);
  v.real({"temperature", "tau of the scores", ranges::kPositive}, temperature);
  v.real({"strength", "lambda of mul and logsig", ranges::kPositive}, strength);
  v.boolean({"learned_strength", "logsig: lambda is learned, one a layer (U-2)"}, learned_strength);
  v.real({"threshold", "logsig: agreement at half weight", ranges::kShare}, threshold);
  v.real({"epsilon", "added to the agreement before its logarithm", ranges::kPositive}, epsilon);
  v.choice({"assignment", "sinkhorn (balanced) or softmax (may collapse)"}, assignment);
  v.choice({"potentials", "sinkhorn: ema, chunk, or sequence, batch (both see later tokens; U-4)"},
           potentials);
  v.integer({"rounds", "sinkhorn: rounds of columns then rows", {1, 10000}}, rounds);
  v.integer(
      {"chunk", "potentials chunk: tokens from the document's start", {1, ranges::kMostPositions}},
      chunk);
}

void FocusSpec::check() const {
  require<ConfigError>(groups >= 1 && groups <= kMostGroups, kSpecPlace,
                       "focus.groups must be 1 to {}; got {}", kMostGroups, groups);
  require<ConfigError>(top_k >= 1 && top_k <= groups, kSpecPlace,
                       "focus.top_k must be 1 to focus.groups ({}); got {}", groups, top_k);
  require<ConfigError>(window >= 1, kSpecPlace,
                       "focus.window must be at least 1 (a token sees itself); got {}", window);
  require<ConfigError>(sinks >= 0, kSpecPlace, "focus.sinks must be 0 or larger; got {}", sinks);
  require<ConfigError>(width >= 1, kSpecPlace, "focus.width must be at least 1; got {}", width);
  for (const auto& [name, value] :
       {std::pair{"temperature", temperature}, {"strength", strength}, {"epsilon", epsilon}}) {
    require<ConfigError>(std::isfinite(value) && value > 0.0, kSpecPlace,
                         "focus.{} must be a positive number; got {}", name, value);
  }
  require<ConfigError>(strength <= kMostFocusStrength, kSpecPlace,
                       "focus.strength must be at most {}; got {}", kMostFocusStrength, strength);
  require<ConfigError>(threshold >= 0.0 && threshold <= 1.0, kSpecPlace,
                       "focus.threshold must be in [0, 1]; got {}", threshold);
  require<ConfigError>(rounds >= 1, kSpecPlace, "focus.rounds must be at least 1; got {}", rounds);
  require<ConfigError>(chunk >= 1, kSpecPlace, "focus.chunk must be at least 1; got {}", chunk);
}

std::span<const std::string_view> enum_names(FocusSpec::Gate) {
  static constexpr std::string_view names[] = {
      "none", "mul", "log", "logsig", "identity", "hard", "straight_through"};
  return names;
}
std::span<const std::string_view> enum_names(FocusSpec::Assignment) {
  static constexpr std::string_view names[] = {"sinkhorn", "softmax"};
  return names;
}
std::span<const std::string_view> enum_names(FocusSpec::Potentials) {
  static constexpr std::string_view names[] = {"ema", "chunk", "sequence", "batch"};
  return names;
}

FocusParameters folded(const FocusParameters& parameters, const at::Tensor& mean_c,
                       const at::Tensor& scale) {
  FocusParameters out = parameters;
  if (scale.defined()) out.weight_gc = out.weight_gc * scale;
  if (!mean_c.defined()) return out;
  const at::Tensor shift = at::mv(out.weight_gc, mean_c);
  out.bias_g = out.bias_g.defined() ? out.bias_g - shift : -shift;
  return out;
}

InputStatistics input_statistics(const at::Tensor& h_nc) {
  const at::NoGradGuard no_gradient;
  const at::Tensor h = h_nc.to(at::kDouble);
  const at::Tensor mean = h.mean(0);
  const at::Tensor square = (h - mean).square().mean();
  return {mean.to(at::kFloat), square.clamp_min(1e-12).rsqrt().to(at::kFloat)};
}

at::Tensor focus_features(const FocusParameters& p, const at::Tensor& h_btc) {
  require<ShapeError>(p.weight_gc.dim() == 2 && p.weight_gc.size(1) == h_btc.size(-1), "focus",
                      "W_g must be [d_g, {}], the width of the layer's input; got {} columns",
                      h_btc.size(-1), p.weight_gc.size(-1));
  const at::ScalarType wide = wide_type(h_btc);
  const at::Tensor z = at::matmul(h_btc.to(wide), p.weight_gc.to(wide).t());
  return p.bias_g.defined() ? z + p.bias_g.to(wide) : z;
}

at::Tensor focus_scores(const FocusSpec& spec, const FocusParameters& p, const at::Tensor& z_btg) {
  require<ShapeError>(p.centroids_kg.sizes() == at::IntArrayRef({spec.groups, z_btg.size(-1)}),
                      "focus", "the centroids must be [{}, {}] as W_g has it; got [{}, {}]",
                      spec.groups, z_btg.size(-1), p.centroids_kg.size(0), p.centroids_kg.size(1));
  return at::matmul(z_btg, p.centroids_kg.to(z_btg.scalar_type()).t()) / spec.temperature;
}

FocusGroups group_tokens(const FocusSpec& spec, const at::Tensor& scores_btk,
                         const at::Tensor& potentials) {
  const at::Tensor scores =
      potentials.defined() ? scores_btk + potentials.to(scores_btk.scalar_type()) : scores_btk;
  return {at::softmax(scores, -1), top_members(scores.detach(), spec.top_k)};
}

at::Tensor top_members(const at::Tensor& scores, int64_t top_k) {
  // A stable sort keeps equal scores in the order of their indices.
  const at::Tensor order = std::get<1>(at::sort(scores, /*stable=*/true, -1, /*descending=*/true));
  const at::Tensor chosen = order.narrow(-1, 0, top_k);
  return at::bitwise_left_shift(at::ones_like(chosen), chosen).sum(-1);
}

at::Tensor random_members(at::IntArrayRef sizes, int64_t groups, int64_t top_k, uint64_t seed) {
  std::vector<int64_t> all = sizes.vec();
  all.push_back(groups);
  at::Tensor scores = at::empty(all, at::kDouble);
  Rng rng(seed);
  double* data = scores.mutable_data_ptr<double>();
  for (int64_t n = 0; n < scores.numel(); ++n) data[n] = rng.uniform();
  return top_members(scores, top_k);
}

at::Tensor hashed_members(const at::Tensor& tokens, int64_t groups, int64_t top_k, uint64_t seed) {
  const at::Tensor ids = tokens.cpu().contiguous();
  at::Tensor scores = at::empty({ids.numel(), groups}, at::kDouble);
  double* data = scores.mutable_data_ptr<double>();
  for (int64_t n = 0; n < ids.numel(); ++n) {
    Rng rng(mix_seed(seed, static_cast<uint64_t>(ids.const_data_ptr<int64_t>()[n])));
    for (int64_t k = 0; k < groups; ++k) *data++ = rng.uniform();
  }
  return top_members(scores, top_k).view(ids.sizes()).to(tokens.device());
}

at::Tensor focus_local(const FocusSpec& spec, const Places& places) {
  const at::Tensor near = distances(places) < spec.window;
  const at::Tensor sink = places.key_positions_bs.unsqueeze(1) < spec.sinks;
  return near.logical_or(sink).unsqueeze(1);
}

at::Tensor have_common_group(const at::Tensor& query_members_bt, const at::Tensor& key_members_bs) {
  return query_members_bt.unsqueeze(2).bitwise_and(key_members_bs.unsqueeze(1)).ne(0).unsqueeze(1);
}

bool focus_is_neutral(const FocusSpec& spec, const AttentionContext& context, int64_t keys) {
  if (!spec.active() || spec.keeps_every_pair()) return true;
  if (!context.query_positions_bt.defined())
    return keys <= spec.window && !context.key_positions_bs.defined();
  const at::Tensor positions = on_host(context).query_positions_bt;
  return positions.numel() == 0 || positions.max().item<int64_t>() < spec.window;
}

PairsKept pairs_kept(const FocusSpec& spec, const at::Tensor& members_bt,
                     const AttentionContext& context) {
  const at::NoGradGuard no_gradient;
  const int64_t batch = members_bt.size(0), tokens = members_bt.size(1);
  const at::Tensor members = members_bt.cpu().contiguous();
  const auto* bits = reinterpret_cast<const uint64_t*>(members.const_data_ptr<int64_t>());
  const Places places = host_places(context, tokens, tokens);
  PairCount count;
  for (int64_t b = 0; b < batch; ++b) {
    count += count_pairs(spec.window, spec.sinks,
                         token_places(places.key_positions_bs, places.key_documents_bs, b),
                         std::span(bits + b * tokens, static_cast<size_t>(tokens)));
  }
  const auto share = [](int64_t part, int64_t whole) {
    return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 1.0;
  };
  return {share(count.pairs - count.distant + count.distant_shared, count.pairs),
          share(count.distant_shared, count.distant)};
}

double expected_pairs(int64_t groups, int64_t top_k) {
  double none = 1.0;  // C(K-k, k) / C(K, k) as a product
  for (int64_t n = 0; n < top_k; ++n) {
    none *=
        std::max(0.0, static_cast<double>(groups - top_k - n)) / static_cast<double>(groups - n);
  }
  return 1.0 - none;
}

FocusSums::FocusSums(const FocusParameters& parameters, const at::Tensor& z_btg,
                     const at::Tensor& groups_btk) {
  const at::NoGradGuard no_gradient;
  const at::Tensor z = z_btg.detach().to(at::kDouble).flatten(0, 1),
                   g = groups_btk.detach().to(at::kDouble).flatten(0, 1),
                   c = parameters.centroids_kg.detach().to(at::kDouble);
  const auto unit = [](const at::Tensor& x) {
    return x / at::linalg_vector_norm(x, 2, at::IntArrayRef{-1}, true).clamp_min(1e-12);
  };
  tokens_ = z.size(0), groups_ = c.size(0), width_ = z.size(1);
  if (tokens_ == 0) return;
  const at::Tensor choice = g.argmax(-1), cosines = at::matmul(unit(c), unit(c).t());
  const at::Tensor sizes =
      at::zeros({groups_}, g.options()).scatter_add_(0, choice, at::ones({tokens_}, g.options()));
  const at::Tensor scalars = at::stack({cosines.sum() - cosines.trace(),
                                        (unit(z) * unit(c).index_select(0, choice)).sum(-1).mean(),
                                        g.mean(0).max(), std::get<0>(g.max(-1)).mean()});
  numbers_ = Reading(at::cat({scalars, sizes, at::matmul(z.t(), z).flatten()}));
}

FocusStatistics FocusSums::statistics() const {
  FocusStatistics s;
  if (tokens_ == 0) return s;
  const auto entropy = [](const at::Tensor& p) { return -at::xlogy(p, p).sum().item<double>(); };
  const auto of = [&](int64_t first, at::IntArrayRef sizes) {
    return at::from_blob(const_cast<double*>(numbers_.values().data()) + first, sizes,
                         at::TensorOptions(at::kDouble));
  };
  const auto k = static_cast<double>(groups_);
  if (groups_ > 1) s.centroid_cosine = numbers_.value(0) / (k * (k - 1.0));
  s.hidden_cosine = numbers_.value(1);
  const at::Tensor spectrum =
      at::linalg_eigvalsh(of(4 + groups_, {width_, width_})).clamp_min(0.0).sqrt();
  s.effective_rank = std::exp(entropy(spectrum / spectrum.sum().clamp_min(1e-300)));
  s.largest_soft = numbers_.value(2);
  const at::Tensor sizes = of(4, {groups_}) / static_cast<double>(tokens_);
  s.largest_hard = sizes.max().item<double>();
  s.hard_entropy = groups_ > 1 ? entropy(sizes) / std::log(k) : 1.0;
  s.confidence = numbers_.value(3);
  return s;
}

FocusStatistics focus_statistics(const FocusParameters& parameters, const at::Tensor& z_btg,
                                 const at::Tensor& groups_btk) {
  return FocusSums(parameters, z_btg, groups_btk).statistics();
}

namespace {

std::vector<StageUse> focus_uses(const AttentionSpec& spec) {
  const FocusSpec& f = spec.focus;
  std::vector<StageUse> all;
  if (f.reads_groups())
    all.push_back({.stage = StageId::gate_and_bias,
                   .setting = fmt::format("focus {} of {} groups, window {}, sinks {}",
                                          enum_name(f.gate), f.groups, f.window, f.sinks),
                   .why_not_sdpa = "the gate of focus learns"});
  if (f.gate == FocusSpec::Gate::hard)
    all.push_back({.stage = StageId::allowed,
                   .setting = fmt::format("focus top {} of {} groups, window {}, sinks {}", f.top_k,
                                          f.groups, f.window, f.sinks),
                   .why_not_sdpa = "the groups of focus are of this layer alone"});
  return all;
}

// Stage 6 of `hard`: local or sharing a group.
at::Tensor focus_visible(const at::Tensor& allowed, const StageRows& rows) {
  const FocusSpec& spec = rows.call.spec.focus;
  if (spec.gate != FocusSpec::Gate::hard) return allowed;
  const FocusPairs pairs(rows);
  const at::Tensor shared = have_common_group(pairs.query_members_bt, pairs.key_members_bs);
  return allowed.logical_and(focus_local(spec, rows.places).logical_or(shared));
}

// Stage 5 of the other gates.
at::Tensor focus_gate(const at::Tensor& logits, const StageRows& rows) {
  const FocusSpec& spec = rows.call.spec.focus;
  if (!spec.reads_groups()) return logits;
  const FocusPairs pairs(rows);
  const at::ScalarType dtype = logits.scalar_type();
  const at::Tensor local = focus_local(spec, rows.places);
  const at::Tensor agreement =
      at::matmul(pairs.query_groups_btk.to(dtype), pairs.key_groups_bsk.to(dtype).transpose(1, 2))
          .unsqueeze(1);
  const at::Tensor lambda = spec.reads_strength() ? rows.call.tensors.focus_strength.to(dtype)
                                                  : at::full({}, spec.strength, logits.options());
  const auto add = [&](const at::Tensor& bias) { return logits + bias.masked_fill(local, 0.0); };
  switch (spec.gate) {
    case FocusSpec::Gate::mul:
      return logits * at::sigmoid(lambda * agreement).masked_fill(local, 1.0);
    case FocusSpec::Gate::log:
      return add(at::log(agreement + spec.epsilon));
    case FocusSpec::Gate::logsig:
      return add(at::log_sigmoid(lambda * (agreement - spec.threshold)));
    case FocusSpec::Gate::identity:
      return add(at::log(agreement * static_cast<double>(spec.groups) + spec.epsilon));
    case FocusSpec::Gate::straight_through: {
      const at::Tensor rule =
          have_common_group(pairs.query_members_bt, pairs.key_members_bs).to(dtype);
      return add(at::log(rule + (agreement - agreement.detach()) + spec.epsilon));
    }
    case FocusSpec::Gate::none:
    case FocusSpec::Gate::hard:
      break;
  }
  return logits;
}

constexpr StageFormula kFocusFormulas[] = {{.stage = StageId::gate_and_bias, .apply = focus_gate}};

std::string gate_of_focus(const AttentionSpec& spec) {
  return fmt::format("focus.gate {}", enum_name(spec.focus.gate));
}

constexpr TensorSlot kFocusTensors[] = {
    {.name = "groups",
     .member = &AttentionTensors::groups_bsk,
     .sizes = [](const AttentionSpec& spec, const CallShape& shape) -> Sizes {
       if (!(spec.focus.reads_groups())) return std::nullopt;
       return std::vector<int64_t>{shape.batch, shape.keys, spec.focus.groups};
     },
     .setting = [](const AttentionSpec& spec) { return gate_of_focus(spec); },
     .token_axis = 1},
    {.name = "members",
     .member = &AttentionTensors::members_bs,
     .sizes = [](const AttentionSpec& spec, const CallShape& shape) -> Sizes {
       if (!(spec.focus.reads_members())) return std::nullopt;
       return std::vector<int64_t>{shape.batch, shape.keys};
     },
     .setting = [](const AttentionSpec& spec) { return gate_of_focus(spec); },
     .integers = true,
     .token_axis = 1},
    {.name = "focus_strength",
     .member = &AttentionTensors::focus_strength,
     .sizes = [](const AttentionSpec& spec, const CallShape&) -> Sizes {
       if (!(spec.focus.reads_strength())) return std::nullopt;
       return std::vector<int64_t>{};
     },
     .setting = [](const AttentionSpec& spec) { return gate_of_focus(spec); }},
};

// Memberships are sets of the spec's groups. Where any two choices of top_k groups meet (2k > K),
// no path compares them, so each must be such a choice.
void check_members(const AttentionCall& call) {
  const FocusSpec& focus = call.spec.focus;
  const at::Tensor members =
      focus.reads_members() ? readable_rows(call.tensors.members_bs) : at::Tensor();
  if (!members.defined()) return;
  const int64_t keys = members.size(1);
  const auto* bits = reinterpret_cast<const uint64_t*>(members.const_data_ptr<int64_t>());
  const uint64_t known = focus.groups < 64 ? (uint64_t{1} << focus.groups) - 1 : ~uint64_t{0};
  uint64_t all = 0;
  for (int64_t n = 0; n < members.numel(); ++n) all |= bits[n];
  if ((all & ~known) != 0) {
    int64_t n = 0;
    while ((bits[n] & ~known) == 0) ++n;
    fail<ShapeError>("attention",
                     "members are bits 0 to {}; token {} of row {} is in group {}; compute them "
                     "with the spec's number of groups",
                     focus.groups - 1, n % keys, n / keys, std::countr_zero(bits[n] & ~known));
  }
  if (!focus.keeps_every_pair()) return;
  const at::Tensor lengths = call.context.key_lengths_b.defined()
                                 ? checked_lengths(call.context, members.size(0), keys)
                                 : at::Tensor();
  for (int64_t n = 0; n < members.numel(); ++n) {
    const int64_t row = n / keys, token = n % keys;
    if (lengths.defined() && token >= lengths.const_data_ptr<int64_t>()[row]) continue;
    require<ShapeError>(std::popcount(bits[n]) >= focus.top_k, "attention",
                        "members must be {} groups a token (focus.top_k); token {} of row {} is in "
                        "{}",
                        focus.top_k, token, row, std::popcount(bits[n]));
  }
}

void check_call(const AttentionCall& call) {
  if (!call.spec.focus.active()) return;
  require<ShapeError>(call.q.size(2) <= call.k.size(2), "attention",
                      "focus needs queries that are the last of the keys; got {} queries and {} "
                      "keys",
                      call.q.size(2), call.k.size(2));
  check_members(call);
}

// Groups of the cached keys; the queries are the last of them.
void add_streams_focus(const AttentionSpec& spec, const StreamSpec& keys,
                       std::vector<StreamSpec>& all) {
  const FocusSpec& focus = spec.focus;
  const at::ScalarType wide = keys.dtype == at::kDouble ? at::kDouble : at::kFloat;
  const auto beside_keys = [&](StreamSpec stream) {
    stream.keep_first = keys.keep_first;
    stream.keep_last = keys.keep_last;
    all.push_back(std::move(stream));
  };
  if (focus.reads_groups())
    beside_keys({.name = stream::kGroups,
                 .row_shape = {focus.groups},
                 .dtype = wide,
                 .new_rows = new_rows_of<&AttentionTensors::groups_bsk, TokenAxis::second>,
                 .set_rows = set_rows_of<&AttentionTensors::groups_bsk, TokenAxis::second>});
  if (focus.reads_members())
    beside_keys({.name = stream::kMembers,
                 .row_shape = {1},
                 .dtype = at::kLong,
                 .new_rows = new_rows_of<&AttentionTensors::members_bs, TokenAxis::last>,
                 .set_rows = set_rows_of<&AttentionTensors::members_bs, TokenAxis::last>});
  if (focus.active() && focus.assignment == FocusSpec::Assignment::sinkhorn &&
      focus.potentials == FocusSpec::Potentials::chunk)
    all.push_back({.name = kGroupScoresStream, .row_shape = {focus.groups}, .dtype = wide});
}

// Potentials of the tokens so far would have to be found before the groups.
TokenUse token_focus(const AttentionSpec& spec) {
  const FocusSpec& focus = spec.focus;
  if (!focus.active()) return {};
  if (focus.assignment == FocusSpec::Assignment::sinkhorn &&
      focus.potentials != FocusSpec::Potentials::ema)
    return {TokenForm::operations, fmt::format("focus.potentials {}", enum_name(focus.potentials))};
  return {focus.gate == FocusSpec::Gate::hard ? TokenForm::decoder : TokenForm::kernels};
}

constexpr MechanismSetting kFocusSettings[] = {
    {"Focus, soft", [](AttentionSpec& s) { s.focus.gate = FocusSpec::Gate::log; }},
    {"Focus, hard", [](AttentionSpec& s) { s.focus.gate = FocusSpec::Gate::hard; }},
};

}  // namespace

namespace {

bool is_neutral_focus(const AttentionCall& call) {
  const FocusSpec& focus = call.spec.focus;
  return focus.active() && focus_is_neutral(focus, call.context, call.k.size(2));
}

}  // namespace

const Mechanism& focus_mechanism() {
  static constexpr Mechanism mechanism{
      .name = "focus",
      .describe =
          [](AttentionSpec& spec, FieldVisitor& v) {
            v.nested({"focus", "stages 5 and 6: Focus, learned groups of tokens (spec 11)"},
                     spec.focus);
          },
      .check = [](const AttentionSpec& spec) { spec.focus.check(); },
      .uses = focus_uses,
      .formulas = kFocusFormulas,
      .visible = focus_visible,
      .tensors = kFocusTensors,
      .check_call = check_call,
      .add_streams = add_streams_focus,
      .token_of = token_focus,
      .settings = kFocusSettings,
      .remove = [](AttentionSpec& spec) { spec.focus = {}; },
      .key_rule = [](const AttentionSpec& spec) -> std::optional<KeyRule> {
        return spec.focus.gate == FocusSpec::Gate::hard ? std::optional(KeyRule::groups)
                                                        : std::nullopt;
      },
      .is_neutral = is_neutral_focus,
  };
  return mechanism;
}

}  // namespace fovea
