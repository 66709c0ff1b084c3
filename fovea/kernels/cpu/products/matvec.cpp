// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/products/matvec.h"

#include <omp.h>

#include <algorithm>

#include "fovea/kernels/cpu/float_buffer.h"
#include "fovea/kernels/cpu/isa.h"
#include "fovea/kernels/cpu/team.h"

namespace fovea::kernels {
namespace {

/// Whether b, right behind a on the same thread, reads the rounded rows that a left.
bool reads_same_rounded(const MatVec& a, const MatVec& b) {
  return a.activations != Activations::exact && a.activations == b.activations &&
         is_packed(a.w.format) && a.w.format == b.w.format && a.x == b.x &&
         a.x_stride == b.x_stride && a.rows == b.rows && a.inputs == b.inputs &&
         a.rows <= kMatVecRows;
}

// Below this many weights starting threads costs more than it saves (5 us; 10 GB/s).
constexpr int64_t kParallelWeights = 32768;

// Weights that stay in a second-level cache until all rows have read them.
constexpr int64_t kStripeBytes = 128 << 10;
constexpr int64_t kLeastStripe = 32;  // outputs

}  // namespace

MatVecFunction* mat_vec_function() {
  static MatVecFunction* const function = pick_by_isa<MatVecFunction>(
      {mat_vec_scalar, FOVEA_AVX2(mat_vec_avx2), FOVEA_AVX512(mat_vec_avx512),
       FOVEA_AVX512_BF16(mat_vec_avx512_bf16)});
  return function;
}

void round_to_int8(const float* x, int64_t n, float* y) {
  static RoundFunction* const function = pick_by_isa<RoundFunction>(
      {round_to_int8_scalar, FOVEA_AVX2(round_to_int8_avx2), FOVEA_AVX512(round_to_int8_avx512),
       FOVEA_AVX512_BF16(round_to_int8_avx512_bf16)});
  function(x, n, y);
}

float* mat_vec_scratch(int64_t floats) {
  thread_local FloatBuffer scratch(0);
  thread_local int64_t size = 0;
  if (size < floats) {
    scratch = FloatBuffer(floats);
    size = floats;
  }
  return scratch.data();
}

void run_range(const MatVec& p, int64_t begin, int64_t end) {
  MatVecFunction* const function = mat_vec_function();
  if (p.rows <= kMatVecRows) return function(p, begin, end);
  const int64_t blocks = (p.rows + kMatVecRows - 1) / kMatVecRows;
  const int64_t outputs =
      std::max(kStripeBytes / row_bytes(p.w.format, p.inputs) / kLeastStripe, int64_t{1}) *
      kLeastStripe;
  for (int64_t o = begin; o < end; o += outputs) {
    for (int64_t n = 0; n < blocks; ++n) {
      const int64_t first = p.rows * n / blocks;
      MatVec some = p;
      some.x += first * p.x_stride;
      some.y += first * p.y_stride;
      some.rows = p.rows * (n + 1) / blocks - first;
      some.same_x = false;
      function(some, o, std::min(o + outputs, end));
    }
  }
}

void run_slice(std::span<const MatVec> products, int64_t n, int64_t slices) {
  int64_t outputs = 0;
  for (const MatVec& p : products) outputs += p.outputs;
  // The products' outputs, numbered through: each slice is one stretch of them.
  int64_t begin = outputs * n / slices, end = outputs * (n + 1) / slices;
  const MatVec* done = nullptr;
  for (const MatVec& p : products) {
    const int64_t last = std::min(end, p.outputs);
    if (begin < last) {
      MatVec product = p;
      product.same_x = done != nullptr && reads_same_rounded(*done, p);
      run_range(product, begin, last);
      done = &p;
    }
    begin = std::max<int64_t>(begin - p.outputs, 0);
    end -= p.outputs;
    if (end <= 0) return;
  }
}

void run(std::span<const MatVec> products) {
  int64_t weights = 0;
  for (const MatVec& p : products) weights += p.outputs * p.inputs;
  const bool parallel = weights > kParallelWeights;
  const int64_t slices = parallel ? omp_get_max_threads() : 1;
  Team::run(parallel, [&](Team::Member& member) {
    member.each(
        slices, [&](int64_t n) { run_slice(products, n, slices); }, Meet::no);
  });
}

}  // namespace fovea::kernels
