// Worker of the decode benchmark: a model of 135M parameters' shape writes tokens, one at
// a time, and the machine's read bandwidth is measured beside it.
//
//   decode_worker THREADS POSITION [KV_HEADS [DTYPE [ATTENTION]]]
//
// Tokens are written from POSITION on; 9, 3 (the model's) or 1 key/value heads; bfloat16 or
// float32; ATTENTION: JSON with the keys of model.attention.
//
// Lines of stdin and their answers, one line each (train_step.cpp has the same protocol):
//   about      JSON: sizes, bytes that a token must read, versions
//   step       "<milliseconds>" of kTokens tokens, sampling not included
//   together   the same of 8 sequences: kTokens tokens each
//   bandwidth  GB/s of reading memory, all threads, the best of several passes
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <sys/prctl.h>

#include <chrono>
#include <csignal>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "benchmarks/read_bandwidth.h"
#include "fovea/attention/stages.h"
#include "fovea/base/error.h"
#include "fovea/config/reader.h"
#include "fovea/kernels/common/isa.h"
#include "fovea/nn/transformer.h"
#include "fovea/runtime/machine.h"

namespace fovea {
namespace {

constexpr int64_t kTokens = 16;

ModelConfig shape_of_135m(int64_t kv_heads, const std::string& attention) {
  ModelConfig config{
      .layers = 30, .width = 576, .heads = 9, .kv_heads = kv_heads, .ffn_width = 1536};
  config.context = 2048;
  if (!attention.empty())
    read_fields(parse_json(attention, "decode_worker"), config.attention, "model.attention");
  return config.resolved(49152);
}

class Worker {
 public:
  Worker(int64_t position, int64_t kv_heads, at::ScalarType dtype, const std::string& attention)
      : position_(position), config_(shape_of_135m(kv_heads, attention)), model_(config_, 0) {
    model_.compute().dtype = dtype;
    model_.hold_matrices_in(dtype);
    state_.emplace(model_.make_decode_state(1, position + kTokens + 1));
    const at::Tensor prompt = at::arange(position).unsqueeze(0) % config_.vocab_size;
    for (int64_t i = 0; i < position; i += 256)
      model_.decode(prompt.narrow(1, i, std::min<int64_t>(256, position - i)), *state_);
    together_ = DecodeState::join(std::vector<const DecodeState*>(kTogether, &*state_));
  }

  nlohmann::ordered_json about() const {
    int64_t weights = 0;  // matrices; the embedding is the head, and is read as that
    for (const Parameter& p : model_.parameters().all())
      if (p.value.dim() == 2) weights += static_cast<int64_t>(p.value.nbytes());
    const int64_t cache = state_->bytes() * position_ / state_->capacity();
    return {{"layers", config_.layers},
            {"width", config_.width},
            {"heads", config_.heads},
            {"kv_heads", config_.kv_heads},
            {"ffn_width", config_.ffn_width},
            {"vocabulary", config_.vocab_size},
            {"context", config_.context},
            {"parameters", model_.parameters().count()},
            {"position", position_},
            {"attention", attention_of_layers()},
            {"tokens", kTokens},
            {"weight_bytes", weights},
            {"cache_bytes", cache},
            {"isa", enum_name(chosen_isa())},
            {"threads", at::get_num_threads()},
            {"machine", machine_summary(at::kCPU)}};
  }

  /// What differs from plain attention in the first layer.
  std::string attention_of_layers() const { return describe_pipeline(config_.layer_attention(0)); }

  /// The likeliest token each time, from the same position on.
  double step() { return step(*state_); }
  double step_together() { return step(together_); }

 private:
  static constexpr int64_t kTogether = 8;

  double step(DecodeState& state) {
    // Convolutions keep few queries: their states have no way back.
    if (config_.attention.spec.multi_token.earlier_queries() > 0) {
      DecodeState copy = state.fork();
      model_.decode(at::full({state.sequences(), 1}, 1, at::kLong), copy);  // compiles the decoder
      return write(copy);
    }
    const double taken = write(state);
    state.truncate(position_);
    return taken;
  }

  double write(DecodeState& state) {
    at::Tensor token = at::full({state.sequences(), 1}, 1, at::kLong);
    const auto start = Clock::now();
    for (int64_t i = 0; i < kTokens; ++i) token = model_.decode(token, state).argmax(-1, true);
    return milliseconds_since(start);
  }

  int64_t position_;
  ModelConfig config_;
  Transformer model_;
  std::optional<DecodeState> state_;
  DecodeState together_;
};

int run(const std::vector<std::string>& arguments) {
  require<UsageError>(arguments.size() >= 2 && arguments.size() <= 5, "decode_worker",
                      "expected THREADS POSITION [KV_HEADS [DTYPE [ATTENTION]]]");
  const std::string dtype = arguments.size() > 3 ? arguments[3] : "bfloat16";
  require<UsageError>(dtype == "bfloat16" || dtype == "float32", "decode_worker",
                      "expected bfloat16 or float32; got {}", dtype);
  at::set_num_threads(std::stoi(arguments[0]));
  Worker worker(std::stoll(arguments[1]), arguments.size() > 2 ? std::stoll(arguments[2]) : 3,
                dtype == "bfloat16" ? at::kBFloat16 : at::kFloat,
                arguments.size() > 4 ? arguments[4] : "");
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "about") std::cout << worker.about().dump() << std::endl;
    if (line == "step") std::cout << worker.step() << std::endl;
    if (line == "together") std::cout << worker.step_together() << std::endl;
    if (line == "bandwidth") std::cout << read_bandwidth() << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace fovea

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  try {
    return fovea::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
