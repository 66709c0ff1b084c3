// Worker of the training-step benchmark: takes whole training steps on command and says how long
// each took.
//
//   train_step_worker MODEL DTYPE THREADS [KEY=VALUE...]
//
// MODEL: 30m, 30m-2048, 124m, or a recipe file with keys that replace its own; DTYPE: float32,
// bfloat16. train.device=cuda goes with every model.
//
// Lines of stdin and their answers, one line each:
//   about   JSON: sizes, versions, the path taken
//   step    "<milliseconds> <loss>" of one step on the next batch
//   memory  peak resident memory of this process in bytes (VmHWM), or of its tensors on the GPU
//   quit
//
// benchmarks/train_step_peer.py speaks the same protocol. benchmarks/train_step.py drives both,
// benchmarks/train_systems.py several of this program.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <sys/prctl.h>

#include <chrono>
#include <csignal>
#include <iostream>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/kernels/common/isa.h"
#include "fovea/nn/transformer.h"
#include "fovea/runtime/machine.h"
#include "fovea/train/optimizer.h"
#include "fovea/train/recipe.h"

namespace fovea {
namespace {

constexpr int64_t kByteVocabulary = 259;

/// 8 layers of width 512, 30.5M parameters, on 4096 bytes in rows of `length`.
Recipe thirty_million(int64_t length) {
  Recipe recipe;
  recipe.model.layers = 8;
  recipe.model.width = 512;
  recipe.model.heads = 8;
  recipe.model.ffn_width = 1792;
  recipe.model.context = length;
  recipe.model.qk_norm = QkNorm::head_rms;
  recipe.train.batch_rows = 4096 / length;
  return recipe;
}

/// 12 layers of width 768, 85M parameters beside few embeddings, on 16 rows of 1024.
Recipe gpt2_small() {
  Recipe recipe = thirty_million(1024);
  recipe.model.layers = 12;
  recipe.model.width = 768;
  recipe.model.heads = 12;
  recipe.model.ffn_width = 2048;
  recipe.train.batch_rows = 16;
  return recipe;
}

Recipe recipe_of(const std::string& model, const std::vector<std::string>& overrides) {
  const bool named = model == "30m" || model == "30m-2048" || model == "124m";
  if (!named) return load_recipe(model, overrides).recipe;
  Recipe recipe = model == "124m" ? gpt2_small() : thirty_million(model == "30m" ? 1024 : 2048);
  recipe.train.device = DeviceChoice::cpu;
  for (const std::string& key : overrides) {
    require<ConfigError>(key == "train.device=cuda", "train_step_worker",
                         "expected train.device=cuda; got '{}'", key);
    recipe.train.device = DeviceChoice::cuda;
  }
  return recipe;
}

/// Bytes of a linear congruential generator, the same in the peer.
class TokenStream {
 public:
  int64_t next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int64_t>(state_ >> 56);
  }

 private:
  uint64_t state_ = 1;
};

class Worker {
 public:
  Worker(const std::string& model, const std::string& dtype,
         const std::vector<std::string>& overrides)
      : recipe_(recipe_of(model, overrides)),
        config_(recipe_.model.resolved(kByteVocabulary)),
        device_(recipe_.train.device == DeviceChoice::cuda ? choose_device(DeviceChoice::cuda)
                                                           : at::Device(at::kCPU)),
        model_(config_, /*seed=*/0, device_),
        optimizer_(model_.parameters(), recipe_.train.optimizer) {
    require<ConfigError>(dtype == "float32" || dtype == "bfloat16", "train_step_worker",
                         "expected float32 or bfloat16; got '{}'", dtype);
    model_.compute().dtype = dtype == "float32" ? at::kFloat : at::kBFloat16;
    rows_ = recipe_.train.batch_rows;
    length_ = recipe_.train.sequence_length > 0 ? recipe_.train.sequence_length : config_.context;
  }

  nlohmann::ordered_json about() {
    step();  // the path is known after a step
    return {{"layers", config_.layers},
            {"width", config_.width},
            {"heads", config_.heads},
            {"kv_heads", config_.kv_heads},
            {"head_dim", config_.head_dim},
            {"ffn_width", config_.ffn_width},
            {"vocabulary", config_.vocab_size},
            {"qk_norm", config_.qk_norm == QkNorm::head_rms},
            {"tied", config_.tied},
            {"norm_eps", config_.norm_eps},
            {"theta", config_.rope.theta},
            {"rows", rows_},
            {"length", length_},
            {"learning_rate", recipe_.train.optimizer.learning_rate},
            {"betas", {recipe_.train.optimizer.beta1, recipe_.train.optimizer.beta2}},
            {"weight_decay", recipe_.train.optimizer.weight_decay},
            {"clip", recipe_.train.optimizer.clip},
            {"parameters", model_.parameters().count()},
            {"path", enum_name(info_.path.name)},
            {"plan", info_.path.plan_text()},
            {"isa", enum_name(chosen_isa())},
            {"threads", at::get_num_threads()},
            {"machine", machine_summary(device_)}};
  }

  /// One training step on the next batch: {milliseconds, loss}.
  std::pair<double, double> step() {
    const at::Tensor tokens_bt = at::empty({rows_, length_}, at::kLong),
                     targets_bt = at::empty({rows_, length_}, at::kLong);
    fill(tokens_bt, targets_bt);
    const auto start = std::chrono::steady_clock::now();
    optimizer_.clear_gradients();
    ModelInput input;
    input.tokens_bt = tokens_bt.to(device_);
    input.training = true;
    const LossResult result = model_.loss(input, targets_bt.to(device_), 0.0, &info_);
    result.loss.backward();
    optimizer_.clip_gradients();
    optimizer_.step(recipe_.train.optimizer.learning_rate);
    const double loss = result.loss.item<double>();
    const std::chrono::duration<double, std::milli> elapsed =
        std::chrono::steady_clock::now() - start;
    return {elapsed.count(), loss};
  }

  int64_t memory() const { return peak_memory_bytes(device_); }

 private:
  /// Rows of length_ + 1 tokens: the targets are the tokens one place on.
  void fill(const at::Tensor& tokens_bt, const at::Tensor& targets_bt) {
    int64_t* const tokens = tokens_bt.mutable_data_ptr<int64_t>();
    int64_t* const targets = targets_bt.mutable_data_ptr<int64_t>();
    for (int64_t row = 0; row < rows_; ++row) {
      int64_t token = stream_.next();
      for (int64_t t = row * length_; t < (row + 1) * length_; ++t) {
        tokens[t] = token;
        targets[t] = token = stream_.next();
      }
    }
  }

  Recipe recipe_;
  ModelConfig config_;
  at::Device device_;
  Transformer model_;
  AdamW optimizer_;
  ForwardInfo info_;
  TokenStream stream_;
  int64_t rows_ = 0, length_ = 0;
};

void serve(Worker& worker) {
  for (std::string command; std::getline(std::cin, command) && command != "quit";) {
    if (command == "about") {
      std::cout << worker.about().dump() << std::endl;
    } else if (command == "step") {
      const auto [milliseconds, loss] = worker.step();
      std::cout << milliseconds << ' ' << loss << std::endl;
    } else if (command == "memory") {
      std::cout << worker.memory() << std::endl;
    } else {
      fail<ConfigError>("train_step_worker", "expected about, step, memory or quit; got '{}'",
                        command);
    }
  }
}

}  // namespace
}  // namespace fovea

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a killed driver leaves no worker behind
  if (argc < 4) {
    std::cerr << "usage: train_step_worker 30m|30m-2048|124m|RECIPE float32|bfloat16 THREADS "
                 "[KEY=VALUE...]\n";
    return 2;
  }
  try {
    fovea::keep_freed_memory();  // as the program does
    at::set_num_threads(std::stoi(argv[3]));
    const std::vector<std::string> overrides(argv + 4, argv + argc);
    fovea::Worker worker(argv[1], argv[2], overrides);
    fovea::serve(worker);
  } catch (const std::exception& error) {
    std::cerr << "train_step_worker: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
