// A walk through the layers that its owner advances, one layer a call, with other work between two
// of them. The results have the bits of the same call in one piece.
//
//   LayerWalk walk = model.decode_layers(tokens_bt, state);
//   while (!walk.done()) walk.next();
//   const at::Tensor logits = model.logits(walk.hidden());
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "fovea/nn/transformer.h"

namespace fovea {

/// One thread at a time. The model must outlive it, and nobody else uses its DecodeState meanwhile.
class LayerWalk {
 public:
  LayerWalk(LayerWalk&&) noexcept;
  LayerWalk& operator=(LayerWalk&&) noexcept;
  ~LayerWalk();

  /// Whether all layers are done.
  bool done() const;
  /// One more layer; with the last one the final norm.
  void next();
  /// Final-normed hidden states [b, t, c]; undefined before done().
  const at::Tensor& hidden() const;
  /// look_layers(): the layer of the last next(). Once a layer.
  LayerView take_view();

  struct Work;  // private to fovea/nn

 private:
  friend class Transformer;
  explicit LayerWalk(std::unique_ptr<Work> work);

  std::unique_ptr<Work> work_;
};

}  // namespace fovea
