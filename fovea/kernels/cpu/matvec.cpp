// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/matvec.h"

#include <omp.h>

#include <algorithm>

#include "fovea/kernels/cpu/isa.h"
#include "fovea/kernels/cpu/team.h"

namespace fovea::kernels {
namespace {

// Below this many weights starting threads costs more than it saves (5 us; 10 GB/s).
constexpr int64_t kParallelWeights = 32768;
}  // namespace

template <class W>
MatVecFunction<W> mat_vec_function() {
  static const MatVecFunction<W> function = pick_by_isa<MatVecFunction<W>()>(
      {mat_vec_scalar<W>, FOVEA_X86(mat_vec_avx2<W>), FOVEA_X86(mat_vec_avx512<W>)})();
  return function;
}

template <class W>
void run_share(std::span<const MatVec<W>> products, int64_t n, int64_t shares) {
  const MatVecFunction<W> function = mat_vec_function<W>();
  int64_t outputs = 0;
  for (const MatVec<W>& p : products) outputs += p.outputs;
  // The products' outputs, numbered through: each share is one stretch of them.
  int64_t begin = outputs * n / shares, end = outputs * (n + 1) / shares;
  for (const MatVec<W>& p : products) {
    const int64_t last = std::min(end, p.outputs);
    if (begin < last) function(p, begin, last);
    begin = std::max<int64_t>(begin - p.outputs, 0);
    end -= p.outputs;
    if (end <= 0) return;
  }
}

template <class W>
void run(std::span<const MatVec<W>> products) {
  int64_t weights = 0;
  for (const MatVec<W>& p : products) weights += p.outputs * p.inputs;
  const bool parallel = weights > kParallelWeights;
  const int64_t shares = parallel ? omp_get_max_threads() : 1;
  Team::run(parallel, [&](Team::Member& member) {
    member.each(
        shares, [&](int64_t n) { run_share(products, n, shares); }, Meet::no);
  });
}

template MatVecFunction<float> mat_vec_function();
template MatVecFunction<BFloat16> mat_vec_function();
template void run_share(std::span<const MatVec<float>>, int64_t, int64_t);
template void run_share(std::span<const MatVec<BFloat16>>, int64_t, int64_t);
template void run(std::span<const MatVec<float>>);
template void run(std::span<const MatVec<BFloat16>>);

}  // namespace fovea::kernels
