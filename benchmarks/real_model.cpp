// Worker of the benchmarks with a real model: reads a prompt, then writes tokens one at a time.
//
//   real_model_worker MODEL THREADS POSITION DTYPE WEIGHTS
//
// DTYPE float32 or bfloat16; WEIGHTS as `fovea generate --weights`: stored, f32, bf16, q8_0, ...
//
// Lines of stdin and their answers, one line each:
//   about      JSON: sizes, bytes that a token must read
//   prompt     "<milliseconds>" of reading POSITION tokens into an empty cache, logits of the last
//   step       "<milliseconds>" of kTokens tokens from POSITION on, with their logits
//   together N "<milliseconds>" of kTokens tokens of N texts at once, a cache each
//   activations NAME  as `--activations`: auto, exact, int16, int8, for all that follows; answers
//   NAME bandwidth  GB/s of reading memory, all threads, the best of several passes
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <sys/prctl.h>

#include <csignal>
#include <deque>
#include <iostream>
#include <nlohmann/json.hpp>

#include "benchmarks/read_bandwidth.h"
#include "cli/options.h"
#include "fovea/checkpoint/model_folder.h"
#include "fovea/infer/generate.h"
#include "fovea/kernels/common/isa.h"
#include "fovea/runtime/machine.h"

namespace fovea {
namespace {

constexpr int64_t kTokens = 32;

class Worker {
 public:
  Worker(const std::string& model, int64_t position, at::ScalarType dtype,
         const std::string& weights)
      : loaded_(opened(model, dtype, weights)),
        position_(position),
        tokens_(at::arange(position).mul(17).add(5).remainder(1000).add(100).unsqueeze(0)),
        state_(loaded_.model.make_decode_state(1, position + kTokens)) {
    prompt();
  }

  nlohmann::ordered_json about() const {
    int64_t weights = 0;  // the embedding is the head, and is read as that
    for (const Parameter& p : loaded_.model.parameters().all())
      if (p.value.dim() >= 2) weights += static_cast<int64_t>(p.value.nbytes());
    return {{"parameters", loaded_.model.parameters().count()},
            {"position", position_},
            {"tokens", kTokens},
            {"weight_bytes", weights},
            {"cache_bytes", state_.bytes() * position_ / state_.capacity()},
            {"isa", enum_name(chosen_isa())},
            {"threads", at::get_num_threads()},
            {"machine", machine_summary(at::kCPU)}};
  }

  double prompt() {
    state_.truncate(0);
    const auto start = Clock::now();
    read_prompt(state_);
    return milliseconds_since(start);
  }

  double step() {
    at::Tensor token = at::full({1, 1}, 100, at::kLong);
    const auto start = Clock::now();
    for (int64_t i = 0; i < kTokens; ++i)
      token = loaded_.model.decode(token, state_).argmax(-1, true);
    const double taken = milliseconds_since(start);
    state_.truncate(position_);
    return taken;
  }

  void choose_activations(const std::string& name) { cli::choose_activations(loaded_.model, name); }

  double together(int64_t texts) {
    while (std::ssize(texts_) < texts) {
      texts_.push_back(loaded_.model.make_decode_state(1, position_ + kTokens));
      read_prompt(texts_.back());
    }
    std::vector<DecodeState*> states;
    for (int64_t n = 0; n < texts; ++n) states.push_back(&texts_[static_cast<size_t>(n)]);
    at::Tensor tokens = at::full({texts, 1}, 100, at::kLong);
    const auto start = Clock::now();
    for (int64_t i = 0; i < kTokens; ++i)
      tokens = loaded_.model.decode_together(tokens, states).argmax(-1, true);
    const double taken = milliseconds_since(start);
    for (DecodeState* state : states) state->truncate(position_);
    return taken;
  }

 private:
  static constexpr int64_t kChunk = 512;

  void read_prompt(DecodeState& state) const {
    for (int64_t begin = 0; begin < position_; begin += kChunk)
      loaded_.model.decode(tokens_.narrow(1, begin, std::min(kChunk, position_ - begin)), state);
  }

  static LoadedModel opened(const std::string& model, at::ScalarType dtype,
                            const std::string& weights) {
    LoadedModel loaded = load_model(model, at::kCPU, cli::matrix_storage(weights, dtype, at::kCPU));
    loaded.model.compute().dtype = dtype;
    cli::choose_activations(loaded.model, "auto");
    return loaded;
  }

  LoadedModel loaded_;
  int64_t position_;
  at::Tensor tokens_;
  DecodeState state_;
  std::deque<DecodeState> texts_;  // of together()
};

int run(const std::vector<std::string>& arguments) {
  require<UsageError>(arguments.size() == 5, "real_model_worker",
                      "expected MODEL THREADS POSITION DTYPE WEIGHTS");
  keep_freed_memory();  // as the program does
  at::set_num_threads(std::stoi(arguments[1]));
  Worker worker(arguments[0], std::stoll(arguments[2]),
                arguments[3] == "bfloat16" ? at::kBFloat16 : at::kFloat, arguments[4]);
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "about") std::cout << worker.about().dump() << std::endl;
    if (line == "prompt") std::cout << worker.prompt() << std::endl;
    if (line == "step") std::cout << worker.step() << std::endl;
    if (line.starts_with("together "))
      std::cout << worker.together(std::stoll(line.substr(9))) << std::endl;
    if (line.starts_with("activations ")) {
      worker.choose_activations(line.substr(12));
      std::cout << line.substr(12) << std::endl;
    }
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
