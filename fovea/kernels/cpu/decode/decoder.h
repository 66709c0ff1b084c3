// The fused decoder on the CPU: one token of each sequence through all layers
// (kernels/common/decoder.h).
//
// Its time is that of reading the weights once. All threads walk through the layers together and
// meet seven times a layer. Each thread recomputes values as small as one residual row: that costs
// less than a barrier. Results have the same bits for any number of threads and for any neighbours.
// The instruction set is chosen_isa().
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "fovea/kernels/common/decoder.h"

namespace fovea::kernels {

/// A model and the buffers of its steps, which grow with the sequences of a step. T = float and
/// BFloat16. Not thread-safe.
template <class T>
class Decoder {
 public:
  /// UnsupportedError for head sizes without an attention kernel, ShapeError for impossible sizes.
  explicit Decoder(DecoderModel model);
  ~Decoder();

  /// ShapeError where the step does not fit the model.
  void run(const DecoderStep<T>& step);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fovea::kernels
