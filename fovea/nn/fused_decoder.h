// The fused decoder of a model: its description, compiled once (kernels/common/decoder.h).
// Sequences join and leave between steps. Private to fovea/nn.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "fovea/nn/transformer.h"

namespace fovea {

/// Everything that a compiled model depends on: numbers may change behind these pointers, nothing
/// else.
struct FusedDecoderKey {
  std::vector<const void*> memory;  ///< of all parameters and of state beside them
  std::vector<int64_t> versions;    ///< of their numbers, where adapters are merged
  at::ScalarType matrices = at::kFloat;
  ComputeOptions compute;

  bool operator==(const FusedDecoderKey&) const = default;
};

class FusedDecoder {
 public:
  explicit FusedDecoder(FusedDecoderKey key) : key_(std::move(key)) {}
  virtual ~FusedDecoder() = default;

  const FusedDecoderKey& key() const { return key_; }
  /// Which layers attend by the walk's operations, and why; empty where none does.
  const std::string& note() const { return note_; }
  /// Appends one token of each sequence, x [b, 1, c] embedded, to the states, whose sequences
  /// follow one another; writes the head's products [b, v]. `model` is the one that was compiled.
  virtual void step(const Transformer::Impl& model, const at::Tensor& x_b1c,
                    std::span<DecodeState* const> states, const at::Tensor& z_bv) = 0;

 protected:
  std::string note_;

 private:
  FusedDecoderKey key_;
};

}  // namespace fovea
