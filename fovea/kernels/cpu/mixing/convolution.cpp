// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/mixing/convolution.h"

#include "fovea/kernels/cpu/kernel_levels.h"
#include "fovea/kernels/cpu/team.h"

namespace fovea::kernels {
namespace {

// Below this many multiplications starting threads costs more than it saves.
constexpr int64_t kParallelProducts = 1 << 18;

template <class T, class F>
void each_map(const Convolution<T>& c, const F& work) {
  const int64_t products = c.maps * c.results * c.keys * c.queries * c.taps;
  Team::run(c.maps > 1 && products > kParallelProducts, [&](Team::Member& member) {
    const ConvolutionWorkspace<T> workspace(c);
    member.each(c.maps, [&](int64_t map) { work(map, workspace.scratch()); });
  });
}

}  // namespace

template <class T>
ConvolutionWorkspace<T>::ConvolutionWorkspace(const Convolution<T>& c)
    : totals_(static_cast<size_t>(c.queries * c.taps)),
      pairs_(static_cast<size_t>(c.queries)),
      extents_(static_cast<size_t>(c.queries)) {
  const int64_t rows = (c.queries + 1) * c.padded_width();
  const int64_t sums = c.queries * (c.taps + c.kTaps) * c.kLanes;
  numbers_.resize(static_cast<size_t>(rows + sums + c.queries * c.taps));
  scratch_ = {.rows = numbers_.data(),
              .reversed = numbers_.data() + rows + sums,
              .sums = numbers_.data() + rows,
              .totals = totals_.data(),
              .pairs = pairs_.data(),
              .extents = extents_.data()};
}

template <class T>
void run(const ConvolutionForward<T>& p) {
  each_map(p.shape, [&](int64_t map, const auto& scratch) {
    chosen_kernels<ConvolutionTable<T>>().forward(p.shape, map, p.x, p.y, scratch);
  });
}

template <class T>
void run(const ConvolutionInputGradient<T>& p) {
  each_map(p.shape, [&](int64_t map, const auto& scratch) {
    chosen_kernels<ConvolutionTable<T>>().input_gradient(p.shape, map, p.dy, p.dx, scratch);
  });
}

template <class T>
void run(const ConvolutionKernelGradient<T>& p) {
  each_map(p.shape, [&](int64_t map, const auto& scratch) {
    chosen_kernels<ConvolutionTable<T>>().kernel_gradient(p.shape, map, p.x, p.dy, p.dkernel,
                                                          scratch);
  });
}

#define FOVEA_CONVOLUTION(T)                             \
  template class ConvolutionWorkspace<T>;                \
  template void run(const ConvolutionForward<T>&);       \
  template void run(const ConvolutionInputGradient<T>&); \
  template void run(const ConvolutionKernelGradient<T>&)
FOVEA_CONVOLUTION(float);
FOVEA_CONVOLUTION(double);
#undef FOVEA_CONVOLUTION

}  // namespace fovea::kernels
