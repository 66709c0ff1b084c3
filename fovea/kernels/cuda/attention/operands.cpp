// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cuda/attention/operands.h"

#include <algorithm>

#include "fovea/kernels/cuda/attention/attention.h"
#include "fovea/kernels/cuda/machine.h"

namespace fovea::kernels::cuda {
namespace {

// Indices of rows are 32 bits wide.
constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max() / 4;

}  // namespace

std::optional<Generation> generation_of(const Machine& machine) {
  const auto built = [](Generation wanted) {
    return std::ranges::any_of(units(), [=](const Unit& u) { return u.generation == wanted; });
  };
  if (machine.major == 9 && machine.minor == 0 && built(Generation::wgmma))
    return Generation::wgmma;
  if (machine.major >= 8 && built(Generation::mma)) return Generation::mma;
  return std::nullopt;
}

Reason why_not_machine(const Machine& machine) {
  if (generation_of(machine)) return std::nullopt;
  return fmt::format("this build has no CUDA kernels for compute capability {}.{}", machine.major,
                     machine.minor);
}

Reason why_not_sizes(const AttentionSizes& sizes) {
  if (sizes.head_dim != sizes.value_dim) return "CUDA kernels take heads and values of one width";
  if (sizes.head_dim != 64 && sizes.head_dim != 128)
    return "CUDA kernels have head sizes 64 and 128";
  if (sizes.queries >= kMostRows || sizes.keys >= kMostRows)
    return "CUDA kernels take texts of fewer than 2^29 tokens";
  return std::nullopt;
}

Reason why_not_rule(const ScoreParameters& rule) {
  if (rule.dropout > 0.0f) return "CUDA kernels have no dropout";
  if (rule.distance_bias != nullptr) return "CUDA kernels have no T5 bias";
  return std::nullopt;
}

bool serves(const Unit& unit, const Machine& machine, int64_t head_dim) {
  return unit.generation == generation_of(machine) && unit.head_dim == head_dim &&
         unit.forward_shared_bytes <= machine.shared_bytes &&
         unit.backward_shared_bytes <= machine.shared_bytes;
}

std::string_view attention_isa() {
  const std::optional<Generation> generation = generation_of(this_machine());
  if (!generation) return {};
  return *generation == Generation::wgmma ? "sm_90a wgmma" : "sm_80 mma";
}

}  // namespace fovea::kernels::cuda
