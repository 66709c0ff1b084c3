// Benchmark of generation after a long prompt: a small model with hard Focus by the grouped kernels
// against the same model with Focus off, in turn in one process (docs/kernels/grouped.md).
//
//   long_prompt [--lengths 16384,65536] [--layers 6] [--width 384] [--heads 6] [--kv-heads 2]
//               [--groups 8] [--top-k 1] [--tokens 32] [--pairs 3] [--threads 2] [--output FILE]
//
// Both sides are what `fovea generate` runs: the prompt in chunks, then token by token. Weights are
// random, the text is random bytes, groups are balanced by one observe(). Tokens are drawn, not the
// likeliest: repetition would stand in one group. --output merges the cases
// into FILE (JSON), replacing those of equal names.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "benchmarks/pairs.h"
#include "fovea/base/error.h"
#include "fovea/infer/generate.h"
#include "fovea/nn/transformer.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::vector<int64_t> lengths{16384, 65536};
  int64_t layers = 6, width = 384, heads = 6, kv_heads = 2, groups = 8, top_k = 1, tokens = 32;
  std::string output;
  int pairs = 3, threads = 2;
};

ModelConfig config_of(const Options& o, int64_t vocabulary) {
  ModelConfig config{
      .layers = o.layers, .width = o.width, .heads = o.heads, .kv_heads = o.kv_heads};
  config.context = 2048;
  config.attention.spec.focus.gate = FocusSpec::Gate::hard;
  config.attention.spec.focus.groups = o.groups;
  config.attention.spec.focus.top_k = o.top_k;
  return config.resolved(vocabulary);
}

std::string random_text(int64_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string text;
  for (int64_t n = 0; n < bytes; ++n) text += static_cast<char>(' ' + random() % 95);
  return text;
}

// Milliseconds of the prompt and of a token.
struct Times {
  double prompt = 0.0, token = 0.0;
};

class Benchmark {
 public:
  explicit Benchmark(Options options)
      : options_(std::move(options)),
        tokenizer_(byte_tokenizer()),
        model_(config_of(options_, tokenizer_->vocab_size()), 0) {
    at::set_num_threads(options_.threads);
    balance_groups();
    model_.compute().dtype = at::kBFloat16;
    model_.hold_matrices_in(at::kBFloat16);
  }

  void run() {
    for (const int64_t length : options_.lengths) {
      const std::string prompt = random_text(length, 3);
      count_pairs(prompt);
      generate(random_text(1024, 4), FocusMode::hard);  // first calls are slower
      PairedTimes of_prompt, of_token;
      for (int n = 0; n < options_.pairs; ++n) {
        const Times hard = generate(prompt, FocusMode::hard);
        const Times off = generate(prompt, FocusMode::off);
        of_prompt.add(hard.prompt, off.prompt);
        of_token.add(hard.token, off.token);
      }
      add(length, of_prompt, of_token);
    }
  }

  void write(int argc, char** argv) const {
    merge_results(options_.output, "long_prompt",
                  "Focus off / hard, above 1 hard Focus is faster; medians of the pairs' ratios",
                  argc, argv, results_);
  }

 private:
  // As after training: the first update copies the potentials of these tokens (spec 11.3).
  void balance_groups() {
    const at::NoGradGuard no_gradient;
    ForwardInfo info;
    model_.compute().focus = FocusMode::hard;
    const at::Tensor tokens = at::randint(32, 127, {1, 4096}, at::kLong);
    model_.hidden({.tokens_bt = tokens}, &info);
    model_.observe({&info, 1}, 0.99);
  }

  // What the hard rule keeps of this prompt, layer by layer.
  void count_pairs(const std::string& prompt) {
    const at::NoGradGuard no_gradient;
    std::vector<int32_t> ids = tokenizer_->encode(prompt);
    const at::Tensor tokens =
        at::tensor(std::vector<int64_t>(ids.begin(), ids.end()), at::kLong).unsqueeze(0);
    ForwardInfo info;
    model_.compute().focus = FocusMode::hard;
    model_.hidden({.tokens_bt = tokens}, &info);
    pairs_kept_.clear();
    largest_group_.clear();
    for (const FocusObservation& layer : info.focus) {
      largest_group_.push_back(layer.statistics().largest_hard);
      pairs_kept_.push_back(layer.pairs.all);
    }
  }

  Times generate(const std::string& prompt, FocusMode mode) {
    model_.compute().focus = mode;
    const GenerateResult result =
        generate_text(model_, *tokenizer_, prompt,
                      {.sampling = {.temperature = 1.0}, .max_tokens = options_.tokens}, {},
                      {.context = static_cast<int64_t>(prompt.size()) + options_.tokens + 1});
    require<NumericalError>(result.tokens > 1, "long_prompt", "the text ended at once");
    return {1e3 * result.prompt_seconds, 1e3 / result.tokens_per_second()};
  }

  void add(int64_t length, const PairedTimes& of_prompt, const PairedTimes& of_token) {
    const ModelConfig& c = model_.config();
    Json named{{"name", fmt::format("prompt of {}, {} layers, width {}, {}/{} heads, K={} k={}",
                                    length, c.layers, c.width, c.heads, c.kv_heads, options_.groups,
                                    options_.top_k)},
               {"parameters", model_.parameters().count()},
               {"pairs", of_prompt.ours.size()},
               {"prompt", of_prompt.quartiles_as("hard_ms", "off_ms")},
               {"token", of_token.quartiles_as("hard_ms", "off_ms")},
               {"pairs_kept", pairs_kept_},
               {"largest_group", largest_group_},
               {"threads", options_.threads}};
    const auto median = [&](const char* what, const char* key) {
      return named[what][key]["median"].get<double>();
    };
    std::cout << fmt::format(
                     "{}: prompt {:.0f} ms, off {:.0f}: {:.2f}x; token {:.2f} ms, off {:.2f}: "
                     "{:.2f}x",
                     named["name"].get<std::string>(), median("prompt", "hard_ms"),
                     median("prompt", "off_ms"), median("prompt", "ratio"),
                     median("token", "hard_ms"), median("token", "off_ms"),
                     median("token", "ratio"))
              << std::endl;
    results_.push_back(named);
  }

  Options options_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  Transformer model_;
  std::vector<double> pairs_kept_, largest_group_;
  std::vector<Json> results_;
};

}  // namespace
}  // namespace fovea

int main(int argc, char** argv) {
  fovea::Options options;
  CLI::App app("generation after a long prompt: hard focus against focus off");
  app.add_option("--lengths", options.lengths)->delimiter(',');
  app.add_option("--layers", options.layers);
  app.add_option("--width", options.width);
  app.add_option("--heads", options.heads);
  app.add_option("--kv-heads", options.kv_heads);
  app.add_option("--groups", options.groups);
  app.add_option("--top-k", options.top_k);
  app.add_option("--tokens", options.tokens);
  app.add_option("--pairs", options.pairs);
  app.add_option("--threads", options.threads);
  app.add_option("--output", options.output);
  CLI11_PARSE(app, argc, argv);
  fovea::Benchmark benchmark(options);
  benchmark.run();
  benchmark.write(argc, argv);
}
