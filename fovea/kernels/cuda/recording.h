// Launches that are made again and again with the same parameters, recorded once.
//
// recording.cpp makes CUDA graphs. Tests without a GPU link one that launches them one by one.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "fovea/kernels/cuda/machine.h"

namespace fovea::kernels::cuda {

class Recording {
 public:
  virtual ~Recording() = default;
  virtual void replay(Stream stream) = 0;
};

/// `launches` launches kernels in the stream that it is given, and nothing else; it may be called
/// once, or at every replay.
std::unique_ptr<Recording> record(std::function<void(Stream)> launches);

}  // namespace fovea::kernels::cuda
