// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cuda/recording.h"

#include <cuda_runtime_api.h>

#include <utility>

namespace fovea::kernels::cuda {
namespace {

class Graph final : public Recording {
 public:
  explicit Graph(const std::function<void(Stream)>& launches) {
    // The program's stream may be the default one, which cannot be recorded.
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "a recording");
    try {
      launches(stream_);
    } catch (...) {
      cudaStreamEndCapture(stream_, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      cudaStreamDestroy(stream_);
      throw;
    }
    check(cudaStreamEndCapture(stream_, &graph), "a recording");
    const cudaError_t error = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream_);
    check(error, "a recorded graph");
  }
  ~Graph() override { cudaGraphExecDestroy(graph_); }

  void replay(Stream stream) override {
    check(cudaGraphLaunch(graph_, static_cast<cudaStream_t>(stream)), "a recorded graph");
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace

std::unique_ptr<Recording> record(std::function<void(Stream)> launches) {
  return std::make_unique<Graph>(launches);
}

}  // namespace fovea::kernels::cuda
