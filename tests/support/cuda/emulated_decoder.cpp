// The decoder's kernels, compiled for the host, and recordings that launch them one by one.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cuda/decode/launches.cuh"
#include "fovea/kernels/cuda/recording.h"

namespace fovea::kernels::cuda {
namespace {

class Launches final : public Recording {
 public:
  explicit Launches(std::function<void(Stream)> launches) : launches_(std::move(launches)) {}
  void replay(Stream stream) override { launches_(stream); }

 private:
  const std::function<void(Stream)> launches_;
};

}  // namespace

std::unique_ptr<Recording> record(std::function<void(Stream)> launches) {
  return std::make_unique<Launches>(std::move(launches));
}

}  // namespace fovea::kernels::cuda
