// The objectives that train the groups of Focus over a frozen base (spec 11.7): kept mass and
// distillation. Private to fovea/nn.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "fovea/nn/mechanisms/mechanism.h"

namespace fovea {

/// z, assignments and memberships of the tokens of a layer in the walk. The layer has Focus,
/// whatever its spec in force says.
LayerGroups groups_of(const LayerStep& step, const PassContext& pass, FocusMode mode);

/// `kept_mass`: -mean over heads and rows of ln of the full attention's mass that the gate keeps,
/// summed over the layers with Focus, times targets / `normaliser` as in Transformer::loss().
/// Gradients reach the groups alone; the model runs once, without them.
///
/// `distillation`: KL divergence of the hard model (straight-through) from the model without Focus,
/// at the positions that have a target. Gradients reach the groups alone where the base is frozen.
std::span<const MechanismObjective> focus_objectives();

}  // namespace fovea
