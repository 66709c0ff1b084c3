// The settings of a model around MagicPIG, which learns nothing.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/mechanisms/model_mechanism.h"

namespace fovea {

void MagicPigSettings::describe(FieldVisitor& v) {
  v.integer({"dense_every",
             "layer 0 and every so many see everything; 0 = none (spec 4.5)",
             {0, ranges::kMostLayers}},
            dense_every);
}

void MagicPigSettings::apply(int64_t layer, AttentionSpec& spec) const {
  if (dense_every > 0 && layer % dense_every == 0) spec.magic_pig = {};
}

ModelMechanism model_magic_pig() {
  return model_mechanism<&AttentionSpec::magic_pig, &AttentionSettings::magic_pig>(
      magic_pig_mechanism, "MagicPIG: keys sampled by their hashes");
}

}  // namespace fovea
