// Parameters, state and observation of a layer's groups.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/mechanisms/focus_layer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "fovea/attention/mechanisms/sinkhorn.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

using Gate = FocusSpec::Gate;

constexpr int64_t kSampleTokens = 4096;  // enough for k-means of at most 64 centroids
constexpr int kMeansRounds = 5;

at::Tensor unit_rows(const at::Tensor& x) {
  return x / at::linalg_vector_norm(x, 2, at::IntArrayRef{-1}, true).clamp_min(1e-12);
}

// Centroids start as Gaussian directions of length 1 (11.1).
at::Tensor start_centroids(const AttentionSpec& spec, uint64_t seed, const std::string& name) {
  at::Tensor start = at::empty({spec.focus.groups, spec.focus.width}, at::kFloat);
  initialise(start, {.kind = Init::Kind::normal, .value = 1.0}, seed, name);
  return unit_rows(start);
}

// Lloyd's rounds from the centroids there are; a centroid without tokens moves to the token that
// lies worst (Table 8: reclustering). Rows have length 1 afterwards.
at::Tensor reclustered(const at::Tensor& centroids, const at::Tensor& sample_ng) {
  const at::Tensor z = unit_rows(sample_ng);
  at::Tensor c = unit_rows(centroids.clone());
  for (int round = 0; round < kMeansRounds; ++round) {
    const auto [best, choice] = at::matmul(z, c.t()).max(-1);
    at::Tensor remaining = best.clone();
    for (int64_t k = 0; k < c.size(0); ++k) {
      const at::Tensor own = choice.eq(k);
      if (own.any().item<bool>()) {
        c[k] = z.index({own}).mean(0);
      } else {
        const int64_t worst = remaining.argmin().item<int64_t>();
        c[k] = z[worst];
        remaining[worst] = 2.0;
      }
    }
    c = unit_rows(c);
  }
  return c;
}

}  // namespace

FocusParameters LayerFocus::parameters() const {
  return folded({weight, at::Tensor(), centroids}, mean, scale);
}

at::Tensor LayerFocus::strength() const {
  return log_strength.clamp_max(std::log(kMostFocusStrength)).exp();
}

LayerFocus add_focus(ParameterRegistry& registry, const AttentionSpec& spec,
                     const FocusSettings& settings, int64_t layer, int64_t width) {
  const auto add = [&](const char* name, std::vector<int64_t> shape, Init init, bool state) {
    Parameter p{.name = fmt::format("model.layers.{}.self_attn.focus.{}", layer, name),
                .origin = Parameter::Origin::added,
                .mechanism = "focus",
                .decay = false,
                .state = state,
                .init = std::move(init)};
    if (p.name.ends_with("centroids")) {
      p.init = {.kind = Init::Kind::given, .start = start_centroids(spec, registry.seed(), p.name)};
      p.trainable = settings.centroid_decay == 0.0;
    }
    return registry.add(std::move(p), shape).value;
  };
  const FocusSpec& f = spec.focus;
  LayerFocus focus;
  const double deviation = 1.0 / std::sqrt(static_cast<double>(width));
  focus.weight =
      add("weight", {f.width, width}, {.kind = Init::Kind::normal, .value = deviation}, false);
  focus.centroids = add("centroids", {f.groups, f.width}, {}, false);
  if (f.reads_strength()) {
    focus.log_strength =
        add("log_strength", {}, {.kind = Init::Kind::constant, .value = std::log(f.strength)},
            settings.final_strength > 0.0);
  }
  focus.potentials = add("potentials", {f.groups}, {}, true);
  focus.mean = add("mean", {width}, {}, true);
  focus.scale = add("scale", {}, {.kind = Init::Kind::ones}, true);
  focus.updates = add("updates", {}, {}, true);
  return focus;
}

std::span<const std::string_view> enum_names(FocusMode) {
  static constexpr std::string_view names[] = {"configured", "straight_through", "hard", "off",
                                               "random",     "window",           "hash"};
  return names;
}

bool prunes_pairs(FocusMode mode) {
  return mode == FocusMode::hard || mode == FocusMode::random || mode == FocusMode::window ||
         mode == FocusMode::hash;
}

AttentionSpec spec_in_mode(AttentionSpec spec, FocusMode mode, const FocusChange& change) {
  if (!spec.focus.active()) return spec;
  if (change.top_k > 0) spec.focus.top_k = change.top_k;
  if (change.window > 0) spec.focus.window = change.window;
  if (change.sinks >= 0) spec.focus.sinks = change.sinks;
  switch (mode) {
    case FocusMode::configured:
      break;
    case FocusMode::straight_through:
      spec.focus.gate = Gate::straight_through;
      break;
    case FocusMode::hard:
    case FocusMode::random:
    case FocusMode::hash:
      spec.focus.gate = Gate::hard;
      break;
    case FocusMode::window:
      if (change.stride > 0) {
        spec.mask.sparsity = MaskRule::Sparsity::strided;
        spec.mask.window = spec.focus.window;
        spec.mask.sinks = spec.focus.sinks;
        spec.mask.stride = change.stride;
        spec.focus = {};
        break;
      }
      // Nobody is a member of anything, so no rule about 2k > K applies.
      spec.focus.gate = Gate::hard;
      spec.focus.top_k = 1;
      spec.focus.groups = std::max<int64_t>(spec.focus.groups, 2);
      break;
    case FocusMode::off:
      spec.focus = {};
      break;
  }
  return spec;
}

void set_groups(const AttentionSpec& spec, const LayerFocus& focus, const LayerGroups& groups,
                AttentionTensors& tensors) {
  if (spec.focus.reads_groups()) tensors.groups_bsk = groups.groups.groups_btk;
  if (spec.focus.reads_members()) tensors.members_bs = groups.groups.members_bt;
  if (spec.focus.reads_strength()) tensors.focus_strength = focus.strength();
}

FocusObservation observation_of(const AttentionSpec& spec, const FocusSettings& settings,
                                const LayerFocus& focus, const LayerGroups& groups,
                                const AttentionContext& context, FocusMode mode) {
  const at::NoGradGuard no_gradient;
  FocusObservation seen;
  const at::Tensor z = groups.features_btg.detach().flatten(0, 1),
                   g = groups.groups.groups_btk.detach().flatten(0, 1);
  seen.scores_nk = groups.scores_btk.detach().flatten(0, 1);
  seen.group_sums = FocusSums(focus.parameters(), groups.features_btg, groups.groups.groups_btk);
  if (prunes_pairs(mode)) seen.pairs = pairs_kept(spec.focus, groups.groups.members_bt, context);
  if (settings.centroid_decay > 0.0) {
    seen.sums_kg = at::matmul(g.t(), z);
    seen.masses_k = g.sum(0);
  }
  if (settings.recluster_interval > 0) {
    const int64_t step = std::max<int64_t>(1, z.size(0) / kSampleTokens);
    seen.sample_ng = z.slice(0, 0, {}, step).clone();
  }
  return seen;
}

at::Tensor group_losses(const FocusSettings& settings, const at::Tensor& groups_btk) {
  if (settings.entropy_weight == 0.0 && settings.balance_weight == 0.0) return {};
  const auto entropy = [](const at::Tensor& p) { return -(p * (p + 1e-12).log()).sum(-1); };
  const at::Tensor g = groups_btk.flatten(0, 1);
  const double most = std::log(static_cast<double>(g.size(-1)));
  return settings.entropy_weight * entropy(g).mean() +
         settings.balance_weight * (most - entropy(g.mean(0)));
}

void observe_layer(const AttentionSpec& spec, const FocusSettings& settings, LayerFocus& focus,
                   std::span<const FocusObservation> parts, double ema_decay, double progress,
                   Communicator& ranks) {
  const at::NoGradGuard no_gradient;
  if (parts.empty()) return;
  std::vector<at::Tensor> potentials, samples;
  at::Tensor sums, masses;
  for (const FocusObservation& part : parts) {
    potentials.push_back(sinkhorn_potentials(part.scores_nk, spec.focus.rounds, ranks));
    if (part.sample_ng.defined()) samples.push_back(part.sample_ng);
    if (!part.sums_kg.defined()) continue;
    sums = sums.defined() ? sums + part.sums_kg : part.sums_kg;
    masses = masses.defined() ? masses + part.masses_k : part.masses_k;
  }
  const at::Tensor mean = at::stack(potentials).mean(0);
  const at::Tensor& before = focus.updates_here.of(focus.updates);
  const auto updates = static_cast<int64_t>(before.item<float>());
  const double decay = settings.ema_decay > 0.0 ? settings.ema_decay : ema_decay;
  if (updates == 0) {  // the first update copies (11.3)
    focus.potentials.copy_(mean);
  } else {
    focus.potentials.mul_(decay).add_(mean, 1.0 - decay);
  }
  if (sums.defined()) {
    const at::Tensor means = ranks.sum(sums) / ranks.sum(masses).clamp_min(1e-6).unsqueeze(1);
    const at::Tensor followed = settings.centroid_decay * focus.centroids +
                                (1.0 - settings.centroid_decay) * unit_rows(means);
    focus.centroids.copy_(followed);
  }
  if (settings.recluster_interval > 0 && !samples.empty() &&
      (updates + 1) % settings.recluster_interval == 0) {
    for (at::Tensor& part : samples) part = ranks.gather_rows(part);
    const at::Tensor sample = at::cat(samples);
    // On the host: each round asks where the centroids are.
    focus.centroids.copy_(reclustered(focus.centroids.cpu(), sample.cpu()));
    const at::Tensor scores = at::matmul(sample, focus.centroids.t()) / spec.focus.temperature;
    focus.potentials.copy_(sinkhorn_potentials(scores, spec.focus.rounds));
  }
  if (settings.final_strength > 0.0) {  // evenly in ln lambda
    const double from = std::log(spec.focus.strength), to = std::log(settings.final_strength);
    focus.log_strength.fill_(from + std::clamp(progress, 0.0, 1.0) * (to - from));
  }
  focus.updates_here.write(focus.updates, before + 1.0);
}

double potential_decay(int64_t steps) {
  constexpr double slowest = 0.99;
  if (steps <= 0) return slowest;
  return std::min(slowest, 1.0 - 1.0 / std::max(5.0, static_cast<double>(steps) / 30.0));
}

}  // namespace fovea
