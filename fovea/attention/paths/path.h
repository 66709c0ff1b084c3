// The paths of attention(), as a list in order of preference (internal to attention/).
//
// A path is one way to compute a call: `why_not` says why it cannot, `run` computes it. A new
// backend adds entries to the list and nothing else to attention/.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>

#include "fovea/attention/call.h"
#include "fovea/kernels/backend.h"

namespace fovea {

struct AttentionPath {
  PathName name = PathName::none;
  /// Whether a device's kernels are those that the path runs; null: it runs tensor operations.
  bool (*runs_on)(const kernels::Backend& backend) = nullptr;
  std::optional<KeyRule> key_rule = {};  ///< nothing: any
  /// Why the path cannot run a call of its rule on a device that it runs on.
  std::optional<std::string> (*why_not)(const AttentionCall& call) = nullptr;
  /// Output before stage 10's norm, factor and gate; lse, telemetry and reason if the path gives
  /// them.
  AttentionResult (*run)(const AttentionCall& call) = nullptr;

  bool serves(const AttentionCall& call) const { return !key_rule || *key_rule == call.key_rule(); }
  /// `why_not`, after the device.
  std::optional<std::string> reason_against(const AttentionCall& call) const;
};

/// `runs_on` of a path whose kernels solve problems of these kinds.
template <template <class> class... Problems>
bool has_kernels(const kernels::Backend& backend) {
  return (!backend.isa<Problems<BFloat16>>().empty() && ...);
}

/// A checked call by the first path that can run it, with stage 10.
AttentionResult run_call(const AttentionCall& call, Path wanted);
/// attention() of a checked call: its mask in the simplest terms, both maps of Differential.
AttentionResult run_checked(AttentionCall call, Path wanted);

/// In order of preference; the last one runs every call.
std::span<const AttentionPath> attention_paths();

// One entry a file of paths/; the reference's is in reference_blocks.cpp.
AttentionPath fused_decode_path();
AttentionPath fused_path();
AttentionPath grouped_decode_path();
AttentionPath grouped_path();
AttentionPath listed_path();
AttentionPath mixing_decode_path();
AttentionPath mixing_path();
AttentionPath parts_path();
AttentionPath planned_there_path();
AttentionPath selected_path();
AttentionPath sums_path();
AttentionPath torch_sdpa_path();
AttentionPath reference_path();

}  // namespace fovea
