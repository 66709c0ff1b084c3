// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/products/matvec.h"

#include <omp.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "fovea/kernels/common/bfloat16.h"
#include "fovea/kernels/cpu/float_buffer.h"
#include "fovea/kernels/cpu/kernel_levels.h"
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

const MatVecTable& mat_vec_table() { return chosen_kernels<MatVecTable>(); }

void round_to_int8(const float* x, int64_t n, float* y) { mat_vec_table().round_to_int8(x, n, y); }

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
  const MatVecTable& table = mat_vec_table();
  if (p.rows <= kMatVecRows) return table.product(p, begin, end);
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
      table.product(some, o, std::min(o + outputs, end));
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

void run(const MatVecs& p) {
  int64_t weights = 0;
  for (const MatVec& product : p.products) weights += product.outputs * product.inputs;
  const bool parallel = weights > kParallelWeights;
  const int64_t slices = parallel ? omp_get_max_threads() : 1;
  Team::run(parallel, [&](Team::Member& member) {
    member.each(
        slices, [&](int64_t n) { run_slice(p.products, n, slices); }, Meet::no);
  });
}

void run(const Unpacking& p) {
  const MatVec of{.w = p.w, .inputs = p.inputs, .outputs = p.outputs};
  const bool parallel = p.outputs * p.inputs > kParallelWeights;
  const int64_t slices = parallel ? omp_get_max_threads() : 1;
  Team::run(parallel, [&](Team::Member& member) {
    member.each(
        slices,
        [&](int64_t n) {
          const int64_t begin = p.outputs * n / slices, end = p.outputs * (n + 1) / slices;
          mat_vec_table().unpack(of, begin, end, p.y + begin * p.inputs);
        },
        Meet::no);
  });
}

template <class T>
void run(const Int8Rounding<T>& p) {
  const auto round_row = [&](int64_t r) {
    const T* const x = p.x + r * p.inputs;
    T* const y = p.y + r * p.inputs;
    if constexpr (std::is_same_v<T, float>) {
      round_to_int8(x, p.inputs, y);
    } else {
      std::vector<float> wide(static_cast<size_t>(p.inputs));
      for (int64_t i = 0; i < p.inputs; ++i) wide[i] = to_float(x[i]);
      round_to_int8(wide.data(), p.inputs, wide.data());
      for (int64_t i = 0; i < p.inputs; ++i) from_float(wide[i], y[i]);
    }
  };
  Team::run(p.rows * p.inputs > kParallelWeights,
            [&](Team::Member& member) { member.each(p.rows, round_row, Meet::no); });
}
template void run(const Int8Rounding<float>&);
template void run(const Int8Rounding<BFloat16>&);

}  // namespace fovea::kernels
