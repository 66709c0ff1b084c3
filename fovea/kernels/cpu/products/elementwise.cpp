// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/products/elementwise.h"

#include <vector>

#include "fovea/kernels/cpu/kernel_levels.h"
#include "fovea/kernels/cpu/team.h"

namespace fovea::kernels {
namespace {

// Sums over rows are split into this many fixed blocks: enough for the threads of a workstation,
// independent of their number.
constexpr int64_t kRowBlocks = 32;
// Below this many elements starting threads costs more than it saves (about 5 us against some
// GB/s).
constexpr int64_t kParallelElements = 32768;

/// Calls work(begin, end, block) for fixed row blocks in parallel.
template <class Work>
void for_row_blocks(int64_t rows, int64_t elements, const Work& work) {
  Team::run(elements > kParallelElements, [&](Team::Member& team) {
    team.each(
        kRowBlocks,
        [&](int64_t block) {
          const int64_t begin = rows * block / kRowBlocks, end = rows * (block + 1) / kRowBlocks;
          if (begin < end) work(begin, end, block);
        },
        Meet::no);
  });
}

/// Adds the blocks' partial sums [kRowBlocks, n] in order.
void sum_blocks(const std::vector<float>& partial, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = 0;
  for (int64_t b = 0; b < kRowBlocks; ++b) {
    for (int64_t i = 0; i < n; ++i) out[i] += partial[static_cast<size_t>(b * n + i)];
  }
}

}  // namespace

template <class T>
const ElementwiseTable<T>& elementwise_table() {
  return chosen_kernels<ElementwiseTable<T>>();
}

template <class T>
void run(const RmsNormForward<T>& p) {
  for_row_blocks(p.rows, p.rows * p.n, [&](int64_t begin, int64_t end, int64_t) {
    elementwise_table<T>().rms_norm_forward(p, begin, end);
  });
}

template <class T>
void run(const RmsNormBackward<T>& p) {
  std::vector<float> partial(static_cast<size_t>(kRowBlocks * p.n), 0.0f);
  for_row_blocks(p.rows, p.rows * p.n, [&](int64_t begin, int64_t end, int64_t block) {
    elementwise_table<T>().rms_norm_backward(p, begin, end, partial.data() + block * p.n);
  });
  sum_blocks(partial, p.n, p.dw);
}

template <class T>
void run(const SwigluForward<T>& p) {
  for_row_blocks(p.rows, p.rows * p.f, [&](int64_t begin, int64_t end, int64_t) {
    elementwise_table<T>().swiglu_forward(p, begin, end);
  });
}

template <class T>
void run(const SwigluBackward<T>& p) {
  for_row_blocks(p.rows, p.rows * p.f, [&](int64_t begin, int64_t end, int64_t) {
    elementwise_table<T>().swiglu_backward(p, begin, end);
  });
}

template <class T>
void run(const HeadRotation<T>& p) {
  const int64_t elements = p.rows * p.heads * p.d;
  if (p.out != nullptr) {
    for_row_blocks(p.rows, elements, [&](int64_t begin, int64_t end, int64_t) {
      elementwise_table<T>().rotate_forward(p, begin, end);
    });
    return;
  }
  std::vector<float> partial(static_cast<size_t>(kRowBlocks * p.d * 2),
                             0.0f);  // gain sums, then scratch of each block
  for_row_blocks(p.rows, elements, [&](int64_t begin, int64_t end, int64_t block) {
    elementwise_table<T>().rotate_backward(p, begin, end, partial.data() + block * p.d,
                                           partial.data() + (kRowBlocks + block) * p.d);
  });
  if (p.dgain != nullptr) sum_blocks(partial, p.d, p.dgain);
}

template <class T>
void run(const CrossEntropy<T>& p) {
  for_row_blocks(p.rows, p.rows * p.v, [&](int64_t begin, int64_t end, int64_t) {
    elementwise_table<T>().cross_entropy(p, begin, end);
  });
}

#define FOVEA_INSTANTIATE(T)                                  \
  template const ElementwiseTable<T>& elementwise_table<T>(); \
  template void run(const RmsNormForward<T>&);                \
  template void run(const RmsNormBackward<T>&);               \
  template void run(const SwigluForward<T>&);                 \
  template void run(const SwigluBackward<T>&);                \
  template void run(const HeadRotation<T>&);                  \
  template void run(const CrossEntropy<T>&);
FOVEA_INSTANTIATE(float)
FOVEA_INSTANTIATE(BFloat16)
#undef FOVEA_INSTANTIATE

}  // namespace fovea::kernels
