// MagicPIG: keys, checks, the reference of its choice.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/specs/magic_pig.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "fovea/attention/backend.h"
#include "fovea/attention/call.h"
#include "fovea/attention/isolation.h"
#include "fovea/attention/mechanism.h"
#include "fovea/attention/mechanisms/magic_pig_choice.h"
#include "fovea/attention/places.h"
#include "fovea/attention/stream_spec.h"
#include "fovea/base/error.h"
#include "fovea/base/rng.h"

namespace fovea {
namespace {

constexpr int64_t kMostBits = 30, kMostTables = 4096;
static_assert(kMostBits <= kernels::kMostHashBits);
constexpr double kPi = std::numbers::pi, kSqrt2 = std::numbers::sqrt2;
constexpr double kSmallest = 1e-30;  // of squares that are divided by
// Cosines stay this far from 1, where the angle has no derivative.
constexpr double kCosineMargin = 1e-7;

}  // namespace

void MagicPigSpec::describe(FieldVisitor& v) {
  v.integer({"bits", "K: bits of a hash; 0 = off (spec 4.5)", {0, kMostBits}}, bits);
  v.integer({"tables", "L: hashes of a key", {2, kMostTables}}, tables);
  v.integer({"start", "first positions of the document, always read", ranges::kPositionCounts},
            start);
  v.integer({"recent", "last keys of the prompt, always read", ranges::kPositionCounts}, recent);
  v.integer({"seed", "of the random projections", ranges::kSteps}, seed);
}

void MagicPigSpec::check() const {
  require<ConfigError>(bits >= 0 && bits <= kMostBits, kSpecPlace,
                       "magic_pig.bits must be 0 (off) to {}; got {}", kMostBits, bits);
  require<ConfigError>(tables >= 2 && tables <= kMostTables, kSpecPlace,
                       "magic_pig.tables must be 2 (a key is read where two collide) to {}; got {}",
                       kMostTables, tables);
  require<ConfigError>(start >= 0 && recent >= 0, kSpecPlace,
                       "magic_pig.start and magic_pig.recent must be 0 or larger; got {} and {}",
                       start, recent);
}

at::Tensor hash_directions(const MagicPigSpec& spec, int64_t head_dim) {
  at::Tensor directions = at::empty({spec.tables * spec.bits, head_dim}, at::kDouble);
  Rng rng(mix_seed(static_cast<uint64_t>(spec.seed), 0x4D50));
  double* const numbers = directions.mutable_data_ptr<double>();
  for (int64_t n = 0; n < directions.numel(); ++n) numbers[n] = rng.normal();
  return directions;
}

at::Tensor sampling_log_weights(const MagicPigSpec& spec, const at::Tensor& cosines) {
  const double tables = static_cast<double>(spec.tables);
  const at::Tensor same_side =
      1.0 - at::acos(cosines.clamp(kCosineMargin - 1.0, 1.0 - kCosineMargin)) / kPi;
  const at::Tensor collides = same_side.pow(spec.bits), misses = 1.0 - collides;
  const at::Tensor once = tables * collides * misses.pow(spec.tables - 1);
  const at::Tensor sampled = 1.0 - misses.pow(spec.tables) - once;
  return -at::log(sampled.clamp_min(0.0) + kSampledFloor);
}

double sampling_log_weight(const MagicPigSpec& spec, double angle) {
  const double collides = std::pow(1.0 - angle / kPi, static_cast<double>(spec.bits));
  const double none_of_others = std::pow(1.0 - collides, static_cast<double>(spec.tables - 1));
  const double sampled = 1.0 - (1.0 - collides) * none_of_others -
                         static_cast<double>(spec.tables) * collides * none_of_others;
  return -std::log(std::max(sampled, 0.0) + kSampledFloor);
}

// The angle to the nearer end is 2 asin(w^2 / sqrt(2)).
std::vector<float> sampling_weight_curve(const MagicPigSpec& spec) {
  constexpr double kStep = 1e-6;  // of the central differences
  constexpr auto kCells = static_cast<double>(kernels::kWeightCells);
  std::vector<float> nodes;
  for (const bool opposite : {false, true}) {
    const auto at = [&](double w) {
      const double angle = 2.0 * std::asin(w * w / kSqrt2);
      return sampling_log_weight(spec, opposite ? kPi - angle : angle);
    };
    for (int64_t n = 0; n <= kernels::kWeightCells; ++n) {
      const double w = static_cast<double>(n) / kCells;
      const double low = std::max(w - kStep, 0.0), high = std::min(w + kStep, 1.0);
      nodes.push_back(static_cast<float>(at(w)));
      nodes.push_back(static_cast<float>((at(high) - at(low)) / (high - low) / kCells));
    }
  }
  return nodes;
}

at::Tensor key_side_products(const at::Tensor& directions, const at::Tensor& k) {
  const int64_t s = k.size(2);
  const int64_t pitch = (s + kernels::kHashPanel - 1) / kernels::kHashPanel * kernels::kHashPanel;
  const at::Tensor filled_up = at::constant_pad_nd(k, {0, 0, 0, pitch - s});
  return at::matmul(directions, filled_up.transpose(2, 3)).contiguous();
}

at::Tensor collision_words(const MagicPigSpec& spec, const at::Tensor& directions,
                           const at::Tensor& q, const at::Tensor& keys, const at::Tensor& centre,
                           const at::Tensor& ends) {
  const int64_t b = q.size(0), g = q.size(1), heads = q.size(2), t = q.size(3),
                pitch = keys.size(3);
  const at::Tensor of_centres = at::matmul(centre, directions.t()).contiguous(),
                   of_queries =
                       at::matmul(q, directions.t()).gt(0).to(at::kInt).neg_().contiguous();
  at::Tensor words =
      at::empty({b, g, heads, t, pitch / kernels::kHashPanel}, q.options().dtype(at::kInt));
  for (int64_t n = 0; n < b * g; ++n) {
    const auto part = [&](const at::Tensor& x) { return x.flatten(0, 1)[n]; };
    int32_t* const twice = part(words).mutable_data_ptr<int32_t>();
    backend_for(q).run(
        kernels::CentredHashes{.tables = spec.tables,
                               .bits = spec.bits,
                               .heads = heads,
                               .rows = t,
                               .of_keys = part(keys).const_data_ptr<float>(),
                               .pitch = pitch,
                               .of_centres = part(of_centres).const_data_ptr<float>(),
                               .of_queries = part(of_queries).const_data_ptr<int32_t>(),
                               .ends = ends[n / g].const_data_ptr<int64_t>(),
                               .twice = reinterpret_cast<uint32_t*>(twice)});
  }
  return words;
}

namespace {

// The prompt's keys that no rule makes a row read: [b or 1, 1, t, s]. One alone is read as well:
// its centred key has no direction.
at::Tensor sampled_region(const MagicPigSpec& spec, const SelectorRows& rows) {
  at::Tensor end_bt = rows.places.query_positions_bt;
  if (rows.prompts_b.defined())
    end_bt = at::minimum(end_bt, rows.prompts_b.to(end_bt.device()).unsqueeze(1));
  const at::Tensor keys = rows.places.key_positions_bs.unsqueeze(1);
  const at::Tensor region = keys.ge(spec.start)
                                .logical_and(keys.lt((end_bt - spec.recent).unsqueeze(2)))
                                .unsqueeze(1)
                                .logical_and(rows.allowed_b1ts);
  return region.logical_and(region.sum(-1, true).ge(2));
}

// The mean key of every row's region, [b, g, t, d]; 0 where that is empty.
at::Tensor mean_keys(const at::Tensor& region, const at::Tensor& k_bgsd) {
  const at::Tensor count = region.sum(-1, true).clamp_min(1).to(k_bgsd.scalar_type());
  const at::Tensor share = region.to(k_bgsd.scalar_type()) / count;
  return weigh_values(share.expand({k_bgsd.size(0), k_bgsd.size(1), share.size(2), share.size(3)}),
                      k_bgsd);
}

// Cosines of queries and centred keys, [b, g, n, t, s].
at::Tensor centred_cosines(const at::Tensor& q_bgntd, const at::Tensor& k_bgsd,
                           const at::Tensor& centre_bgtd) {
  const int64_t b = q_bgntd.size(0), g = q_bgntd.size(1), n = q_bgntd.size(2), t = q_bgntd.size(3),
                d = q_bgntd.size(4), s = k_bgsd.size(2);
  const at::Tensor with_keys =
      pair_scores(q_bgntd.reshape({b, g, n * t, d}), k_bgsd).reshape({b, g, n, t, s});
  const at::Tensor with_centre = (q_bgntd * centre_bgtd.unsqueeze(2)).sum(-1, true);
  const at::Tensor length = k_bgsd.square().sum(-1).unsqueeze(2) -
                            2.0 * pair_scores(centre_bgtd, k_bgsd) +
                            centre_bgtd.square().sum(-1, true);  // [b, g, t, s], squared
  const at::Tensor lengths = length.clamp_min(kSmallest).sqrt().unsqueeze(2) *
                             q_bgntd.square().sum(-1, true).clamp_min(kSmallest).sqrt();
  return (with_keys - with_centre) / lengths;
}

// Behind the last key of every row's region, [b, t].
at::Tensor ends_of(const at::Tensor& region) {
  const at::Tensor places = at::arange(1, region.size(3) + 1, region.options().dtype(at::kLong));
  return (region.to(at::kLong) * places).amax(-1).squeeze(1);
}

// collides_twice() by kernels, for keys of the region alone.
at::Tensor collisions_by_kernels(const MagicPigSpec& spec, const at::Tensor& q_bgntd,
                                 const at::Tensor& k_bgsd, const at::Tensor& centre_bgtd,
                                 const at::Tensor& region) {
  const at::Tensor directions = hash_directions(spec, k_bgsd.size(3)).to(k_bgsd.options());
  const at::Tensor words =
      collision_words(spec, directions, q_bgntd, key_side_products(directions, k_bgsd), centre_bgtd,
                      ends_of(region).expand({q_bgntd.size(0), q_bgntd.size(3)}).contiguous());
  const at::Tensor bits = at::arange(kernels::kHashPanel, words.options());
  return words.unsqueeze(-1)
      .bitwise_right_shift(bits)
      .bitwise_and(1)
      .to(at::kBool)
      .flatten(4, 5)
      .narrow(4, 0, k_bgsd.size(2));
}

// Whether at least two hashes of a query and a centred key are the same, [b, g, n, t, s].
at::Tensor collides_twice(const MagicPigSpec& spec, const at::Tensor& q_bgntd,
                          const at::Tensor& k_bgsd, const at::Tensor& centre_bgtd) {
  const at::Tensor directions =
      hash_directions(spec, k_bgsd.size(3)).to(k_bgsd.options()).transpose(0, 1);
  const at::Tensor of_keys = at::matmul(k_bgsd, directions).unsqueeze(2),
                   of_centres = at::matmul(centre_bgtd, directions).unsqueeze(3),
                   of_queries = (at::matmul(q_bgntd, directions) > 0).unsqueeze(4);
  std::vector<int64_t> sizes = q_bgntd.sizes().vec();
  sizes.back() = k_bgsd.size(2);
  at::Tensor count = at::zeros(sizes, k_bgsd.options().dtype(at::kShort));
  for (int64_t table = 0; table < spec.tables; ++table) {
    at::Tensor same;
    for (int64_t bit = 0; bit < spec.bits; ++bit) {
      const int64_t n = table * spec.bits + bit;
      const at::Tensor sides = of_keys.select(-1, n) > of_centres.select(-1, n);  // [b, g, t, s]
      const at::Tensor equal = sides.unsqueeze(2).eq(of_queries.select(-1, n));
      same = same.defined() ? same.logical_and(equal) : equal;
    }
    count.add_(same);
  }
  return count.ge(2);
}

}  // namespace

Selection magic_pig_selection(const SelectorRows& rows) {
  const MagicPigSpec& spec = rows.spec.magic_pig;
  const at::Tensor &q = rows.q_bhtd, &k = rows.k_bgsd;
  const int64_t b = q.size(0), h = q.size(1), t = q.size(2), g = k.size(1), s = k.size(2);
  const at::Tensor region = sampled_region(spec, rows);
  Selection selection{.chosen_bhts = rows.allowed_b1ts.expand({b, h, t, s})};
  if (region.is_cpu() && !region.any().item<bool>()) return selection;
  const at::Tensor grouped = q.reshape({b, g, h / g, t, q.size(3)});
  const at::Tensor centre = mean_keys(region, k);
  at::Tensor found;
  {
    const at::NoGradGuard no_gradient;
    const bool kernels = k.is_cpu() && k.scalar_type() == at::kFloat;
    found = (kernels ? collisions_by_kernels(spec, grouped, k, centre, region)
                     : collides_twice(spec, grouped, k, centre))
                .reshape({b, h, t, s});
  }
  selection.chosen_bhts = region.logical_not().logical_or(found).logical_and(rows.allowed_b1ts);
  const at::Tensor outside = region.logical_not();
  const at::Tensor cosines = centred_cosines(grouped, k, centre).reshape({b, h, t, s});
  selection.log_weights_bhts =
      sampling_log_weights(spec, cosines.masked_fill(outside, 0.0)).masked_fill(outside, 0.0);
  return selection;
}

namespace {

std::vector<StageUse> magic_pig_uses(const AttentionSpec& spec) {
  const MagicPigSpec& m = spec.magic_pig;
  if (!m.active()) return {};
  return {{.stage = StageId::allowed,
           .setting = fmt::format("magic_pig {} x {} bits", m.tables, m.bits),
           .why_not_sdpa = "the query samples its keys"}};
}

// The prompt's length, one number a token.
constexpr const char* kPrompt = "prompt";

// The prompt of a sequence: the tokens of its first call, as far as they are still there.
at::Tensor prompt_before(const CachedStreams& cache, int64_t b, int64_t coming,
                         const at::TensorOptions& options) {
  const int64_t length = cache.stream_length(kPrompt, b);
  if (length == 0) return at::full({}, coming, options);
  return cache.rows(kPrompt, b).select(1, -1).squeeze().clamp_max(length);
}

at::Tensor prompt_rows(const AttentionCall& call, const CachedStreams& cache) {
  const int64_t b = call.k.size(0), t = call.k.size(2);
  const at::Tensor rows = at::empty({b, t, 1}, call.k.options().dtype(at::kLong));
  for (int64_t n = 0; n < b; ++n)
    rows.select(0, n).fill_(prompt_before(cache, n, t, rows.options()));
  return rows;
}

void set_prompt(AttentionCall& call, const at::Tensor& rows) {
  if (rows.size(1) > 0) call.selector.prompts_b = rows.select(1, -1).squeeze(-1);
}

void add_streams_magic_pig(const AttentionSpec& spec, const StreamSpec& /*keys*/,
                           std::vector<StreamSpec>& all) {
  if (spec.magic_pig.active())
    all.push_back({.name = kPrompt,
                   .row_shape = {1},
                   .dtype = at::kLong,
                   .new_rows = prompt_rows,
                   .set_rows = set_prompt});
}

constexpr MechanismSetting kMagicPigSettings[] = {
    {"MagicPIG", [](AttentionSpec& s) { s.magic_pig.bits = 10; }},
};

}  // namespace

const Mechanism& magic_pig_mechanism() {
  static constexpr Mechanism mechanism{
      .name = "magic_pig",
      .describe =
          [](AttentionSpec& spec, FieldVisitor& v) {
            v.nested({"magic_pig", "stage 6: keys sampled by their hashes (spec 4.5)"},
                     spec.magic_pig);
          },
      .check = [](const AttentionSpec& spec) { spec.magic_pig.check(); },
      .uses = magic_pig_uses,
      .select = magic_pig_selection,
      .add_streams = add_streams_magic_pig,
      .settings = kMagicPigSettings,
      .remove = [](AttentionSpec& spec) { spec.magic_pig = {}; },
      .key_rule = [](const AttentionSpec& spec) -> std::optional<KeyRule> {
        return spec.magic_pig.active() ? std::optional(KeyRule::selected) : std::nullopt;
      },
  };
  return mechanism;
}

}  // namespace fovea
