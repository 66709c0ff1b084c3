// The settings of a model around Focus.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/base/error.h"
#include "fovea/nn/mechanisms/model_mechanism.h"

namespace fovea {

void FocusSettings::describe(FieldVisitor& v) {
  v.integers({"layers", "layers with Focus, counted from 0; empty: all", ranges::kLayerIndices},
             layers);
  v.boolean({"windowed_layers", "also in layers with mask.window: both must allow a pair (U-22)"},
            windowed_layers);
  v.boolean({"standardise", "give the input mean 0 and size 1 before the first step (U-24)"},
            standardise);
  v.real({"final_strength",
          "above 0: lambda of logsig moves from strength to this over the run instead of learning",
          ranges::kNotNegative},
         final_strength);
  v.real({"ema_decay", "of the potentials; 0 = 1 - 1/max(5, steps/30), at most 0.99",
          ranges::kBelowOne},
         ema_decay);
  v.boolean({"stop_gradient", "no gradient from the gate into the residual stream"}, stop_gradient);
  v.real({"entropy_weight", "of the entropy of each token's groups, added to the loss",
          ranges::kNotNegative},
         entropy_weight);
  v.real({"balance_weight", "of ln K minus the entropy of the groups' sizes, added to the loss",
          ranges::kNotNegative},
         balance_weight);
  v.real({"centroid_decay", "above 0: centroids follow the mean of their tokens, no gradient",
          ranges::kBelowOne},
         centroid_decay);
  v.integer({"recluster_interval", "steps between k-means restarts of the centroids; 0 = never",
             ranges::kSteps},
            recluster_interval);
}

void FocusSettings::check(const FocusSpec& groups, int64_t model_layers) const {
  constexpr const char* where = "model";
  for (const int64_t layer : layers)
    check_range("attention.focus.layers", layer, 0, model_layers - 1);
  require<ConfigError>(
      final_strength == 0.0 ||
          (final_strength > 0.0 && final_strength <= kMostFocusStrength && groups.reads_strength()),
      where,
      "'model.attention.focus.final_strength' must be above 0 and at most {}, for gate logsig with "
      "learned_strength: true; got {} with gate {}",
      kMostFocusStrength, final_strength, enum_name(groups.gate));
}

void FocusSettings::apply(int64_t layer, AttentionSpec& spec) const {
  const bool may_focus = spec.mask.window == 0 || windowed_layers;
  if (!may_focus || !in_layers(layers, layer)) spec.focus = {};
}

ModelMechanism model_focus() {
  return model_mechanism<&AttentionSpec::focus, &AttentionSettings::focus>(
      focus_mechanism, "Focus: learned groups of tokens decide which distant pairs attend");
}

}  // namespace fovea
