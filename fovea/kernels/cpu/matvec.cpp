// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/matvec.h"

#include <algorithm>

#include "fovea/kernels/cpu/isa.h"
#include "fovea/kernels/cpu/team.h"

namespace fovea::kernels {
namespace {

// Below this many weights starting threads costs more than it saves (5 us; 10 GB/s).
constexpr int64_t kParallelWeights = 32768;
// Outputs that a thread takes at a time.
constexpr int64_t kBlock = 16;

template <class W>
MatVecFunction<W> chosen() {
#if defined(__x86_64__)
  static const MatVecFunction<W> function = chosen_isa() >= Isa::avx512 ? mat_vec_avx512<W>()
                                            : chosen_isa() == Isa::avx2 ? mat_vec_avx2<W>()
                                                                        : mat_vec_scalar<W>();
  return function;
#else
  return mat_vec_scalar<W>();
#endif
}

template <class W>
int64_t blocks_of(const MatVec<W>& p) {
  return (p.outputs + kBlock - 1) / kBlock;
}

}  // namespace

template <class W>
void run(std::span<const MatVec<W>> products) {
  const MatVecFunction<W> function = chosen<W>();
  int64_t blocks = 0, weights = 0;
  for (const MatVec<W>& p : products) {
    blocks += blocks_of(p);
    weights += p.outputs * p.inputs;
  }
  Team::run(weights > kParallelWeights, [&](Team::Member& member) {
    const auto work = [&](int64_t b) {
      size_t i = 0;
      for (; b >= blocks_of(products[i]); ++i) b -= blocks_of(products[i]);
      const int64_t begin = b * kBlock;
      function(products[i], begin, std::min(begin + kBlock, products[i].outputs));
    };
    member.each(blocks, work, Meet::no);
  });
}

template void run(std::span<const MatVec<float>>);
template void run(std::span<const MatVec<BFloat16>>);

}  // namespace fovea::kernels
