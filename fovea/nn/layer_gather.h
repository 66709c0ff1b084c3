// LayerGather: brings the weights of a layer before the walk reads them (sharded training).
//
// It is in force for the passes of one thread, as torch's NoGradGuard. Layers are then recomputed
// in the backward pass, so that no graph holds weights between the two passes.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fovea {

class LayerGather {
 public:
  virtual ~LayerGather() = default;

  /// Returns when the weights of `layer` are there. Those of `next` (-1: none), the layer that will
  /// be read after it, may come meanwhile; those of all others go.
  virtual void gather(int64_t layer, int64_t next) = 0;
  /// The parameters of `layer` have their gradients of one backward pass.
  virtual void reduce(int64_t layer) = 0;

  /// The one in force on this thread; null where the weights of all layers are there.
  static LayerGather* current();

  /// Puts one (or null: none) in force while it lives.
  class Scope {
   public:
    explicit Scope(LayerGather* gather);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    LayerGather* before_;
  };
};

}  // namespace fovea
