// Focus inside the decoder: the parameters and state of one layer's groups, and the telemetry of a
// forward pass (spec 11, 11.3, 11.7).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/attention/attention.h"
#include "fovea/attention/mechanisms/focus.h"
#include "fovea/nn/host_copy.h"
#include "fovea/nn/model_config.h"
#include "fovea/nn/parameters.h"
#include "fovea/runtime/communicator.h"

namespace fovea {

/// The behaviour of layers with Focus, whatever gate they train. The last three are baselines
/// (U-26).
/// - `configured`: as the config says
/// - `straight_through`: the hard rule, with the gradient of the soft one
/// - `hard`: the hard rule
/// - `off`: as if the layers had no Focus
/// - `random`: the hard rule with as many groups a token, but random ones
/// - `window`: the local pairs alone, a window and the sinks
/// - `hash`: groups by a hash of the token, always the same for the same token
enum class FocusMode { configured, straight_through, hard, off, random, window, hash };
std::span<const std::string_view> enum_names(FocusMode);

/// Whether layers attend by the hard rule alone, so that pairs are dropped.
bool prunes_pairs(FocusMode mode);
/// Whether tokens have groups in this mode, whose number may be chosen.
inline bool has_hard_groups(FocusMode mode) {
  return prunes_pairs(mode) && mode != FocusMode::window;
}
/// Whether the mode is a baseline: it serves scoring, not decoding.
inline bool is_baseline(FocusMode mode) { return prunes_pairs(mode) && mode != FocusMode::hard; }

/// Changes of the rule of all layers with Focus, for scoring and inference.
struct FocusChange {
  int64_t top_k = 0;   ///< groups of a token; 0 = the layer's own
  int64_t window = 0;  ///< 0 = the layer's own
  int64_t sinks = -1;  ///< below 0 = the layer's own
  int64_t stride = 0;  ///< > 0, under FocusMode::window: also every so many-th key (spec 4.7)

  bool operator==(const FocusChange&) const = default;
};

/// The report of one layer's forward pass to observe() and telemetry. Empty for layers without
/// Focus; no gradients.
struct FocusObservation {
  at::Tensor scores_nk;          ///< S / tau of these tokens, for their `batch` potentials (11.3)
  at::Tensor sums_kg, masses_k;  ///< sum of g_ik z_i and of g_ik, where centroids follow
  at::Tensor sample_ng;          ///< z of some tokens, where centroids restart
  FocusSums group_sums;
  PairsKept pairs;  ///< of the hard rule; counted where the mode prunes_pairs()
  PathTaken path;   ///< of the layer's attention

  bool defined() const { return scores_nk.defined(); }
  FocusStatistics statistics() const { return group_sums.statistics(); }
  /// "grouped classes": the path and its plan.
  std::string plan() const { return path.text(); }
  /// Tiles that a grouped plan visits over those of a causal mask; 1 without one.
  double tiles_visited() const {
    return path.causal_tiles > 0.0 ? path.tiles / path.causal_tiles : 1.0;
  }
};

/// Registry values of one layer.
struct LayerFocus {
  at::Tensor weight, centroids, log_strength;   // learned (the last: or state, final_strength)
  at::Tensor potentials, mean, scale, updates;  // state
  HostCopy updates_here;                        // of `updates`

  bool defined() const { return weight.defined(); }
  /// W_g and C with the standardisation folded in; differentiable.
  FocusParameters parameters() const;
  /// lambda of a learned strength; differentiable.
  at::Tensor strength() const;
};

/// Registers them under "model.layers.<layer>.self_attn.focus.".
LayerFocus add_focus(ParameterRegistry& registry, const AttentionSpec& spec,
                     const FocusSettings& settings, int64_t layer, int64_t width);

/// The spec of a layer in a mode.
AttentionSpec spec_in_mode(AttentionSpec spec, FocusMode mode, const FocusChange& change);

/// z, assignments and memberships of the tokens of a call.
struct LayerGroups {
  at::Tensor scores_btk, features_btg;
  FocusGroups groups;
};

/// The stage tensors that `spec` reads, from the groups of a layer.
void set_groups(const AttentionSpec& spec, const LayerFocus& focus, const LayerGroups& groups,
                AttentionTensors& tensors);

/// The report of a pass; statistics cost a product of d_g x d_g.
FocusObservation observation_of(const AttentionSpec& spec, const FocusSettings& settings,
                                const LayerFocus& focus, const LayerGroups& groups,
                                const AttentionContext& context, FocusMode mode);

/// Entropy and balance losses of a layer, or undefined where both weights are 0 (Table 8).
at::Tensor group_losses(const FocusSettings& settings, const at::Tensor& groups_btk);

/// One observe() of a layer: potentials, centroids that follow, restarts. `parts` are the
/// micro-batches of the step; `ema_decay` is the settings' own where that is above 0; `progress`
/// is the share of the training that is done (final_strength). Each part is the tokens of all
/// ranks.
void observe_layer(const AttentionSpec& spec, const FocusSettings& settings, LayerFocus& focus,
                   std::span<const FocusObservation> parts, double ema_decay, double progress,
                   Communicator& ranks = alone());

/// 1 - 1 / max(5, steps / 30), at most 0.99 (11.7); 0.99 where the number of steps is unknown (0).
double potential_decay(int64_t steps);

}  // namespace fovea
