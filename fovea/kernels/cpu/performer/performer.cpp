// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/performer/performer.h"

#include <algorithm>
#include <memory>

#include "fovea/kernels/cpu/kernel_levels.h"
#include "fovea/kernels/cpu/team.h"

namespace fovea::kernels {
namespace {

// Below this many multiplications starting threads costs more than it saves.
constexpr int64_t kParallelProducts = 1 << 18;
constexpr size_t kAlignment = 64;

const PerformerTable& chosen() { return chosen_kernels<PerformerTable>(); }

template <class F>
void each_key_head(const PerformerInputs& in, const F& work) {
  const int64_t units = in.batch * in.kv_heads;
  const int64_t products =
      in.batch * in.heads * in.tokens * in.features * (2 * in.key_width + 2 * in.value_width);
  const auto floats = static_cast<size_t>(chosen().scratch(in));
  Team::run(units > 1 && products > kParallelProducts, [&](Team::Member& member) {
    struct Free {
      void operator()(float* memory) const {
        ::operator delete[](memory, std::align_val_t(kAlignment));
      }
    };
    const std::unique_ptr<float[], Free> scratch(static_cast<float*>(
        ::operator new[](floats * sizeof(float), std::align_val_t(kAlignment))));
    std::fill_n(scratch.get(), floats, 0.0f);
    member.each(units, [&](int64_t n) {
      const std::span<const PerformerChunk> chunks = in.chunks_of(n / in.kv_heads);
      work({.b = n / in.kv_heads,
            .g = n % in.kv_heads,
            .chunks = chunks.data(),
            .count = static_cast<int64_t>(chunks.size()),
            .first_state = n * in.most_chunks() * in.state_size(),
            .scratch = scratch.get()});
    });
  });
}

}  // namespace

void run(const PerformerForward& problem) {
  each_key_head(problem.in, [&](const PerformerUnit& unit) { chosen().forward(problem, unit); });
}

void run(const PerformerBackward& problem) {
  each_key_head(problem.in, [&](const PerformerUnit& unit) { chosen().backward(problem, unit); });
}

std::string_view performer_isa() {
  return kIsaNames[static_cast<size_t>(
      serving_level(kernel_levels<PerformerTable>(), chosen_isa()).isa)];
}

}  // namespace fovea::kernels
