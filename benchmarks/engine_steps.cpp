// Benchmark of the engine: milliseconds of a step by the number of texts that share it, and of a
// prompt's chunk, for a model folder or .gguf file.
//
//   engine_steps MODEL [--sequences 1,2,4,8,16,32,64] [--prompt 64] [--tokens 48] [--threads 2]
//                [--dtype float32] [--activations exact]
//
// Every text has the same number of tokens, so that all are written in the same steps. The prompts
// differ from their first token on. A line is the mean of all steps of one round.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>

#include "fovea/base/error.h"
#include "fovea/engine/engine.h"

namespace fovea {
namespace {

struct Options {
  std::string model, dtype = "float32", activations = "exact";
  std::vector<int64_t> sequences{1, 2, 4, 8, 16, 32, 64};
  int64_t prompt = 64, tokens = 48;
  int threads = 2;
};

std::vector<EngineModel> one_model(const Options& options) {
  const bool low = options.dtype == "bfloat16";
  MatrixStorage storage;
  storage.as_stored = true;
  if (low) storage.plain = at::kBFloat16;
  LoadedModel loaded = load_model(options.model, at::kCPU, storage);
  if (low) loaded.model.compute().dtype = at::kBFloat16;
  const auto names = enum_names(kernels::Activations{});
  loaded.model.compute().activations = static_cast<kernels::Activations>(
      std::ranges::find(names, options.activations) - names.begin());
  std::vector<EngineModel> models;
  models.push_back({.name = "model", .loaded = std::move(loaded)});
  return models;
}

void run(const Options& options) {
  at::set_num_threads(options.threads);
  Engine engine(one_model(options), {.sequences = EngineOptions::kMostSequences});
  std::cout << "texts  ms a step  tokens/s  ms a chunk\n";
  int32_t first = 1000;
  for (const int64_t texts : options.sequences) {
    const EngineStatistics before = engine.statistics();
    for (int64_t n = 0; n < texts; ++n) {
      EngineRequest request{
          .generate = {.sampling = {.temperature = 0}, .max_tokens = options.tokens},
          .ignore_end = true};
      for (int64_t i = 0; i < options.prompt; ++i)
        request.tokens.push_back(first + static_cast<int32_t>(i * 7));
      ++first;
      engine.submit(std::move(request), [](const EngineEvent&) {});
    }
    engine.wait();
    const EngineStatistics after = engine.statistics();
    const double steps = static_cast<double>(after.steps - before.steps);
    const double seconds = after.step_seconds - before.step_seconds;
    const auto written = static_cast<double>(after.tokens - before.tokens - texts);
    std::cout << fmt::format("{:5}  {:9.2f}  {:8.1f}  {:10.2f}\n", texts, 1e3 * seconds / steps,
                             written / seconds,
                             1e3 * (after.chunk_seconds - before.chunk_seconds) /
                                 static_cast<double>(after.chunks - before.chunks));
  }
}

}  // namespace
}  // namespace fovea

int main(int argc, char** argv) {
  fovea::Options options;
  CLI::App app{"milliseconds of an engine's step by number of texts"};
  app.add_option("model", options.model)->required();
  app.add_option("--sequences", options.sequences)->delimiter(',');
  app.add_option("--prompt", options.prompt);
  app.add_option("--tokens", options.tokens);
  app.add_option("--threads", options.threads);
  app.add_option("--activations", options.activations)
      ->check(CLI::IsMember({"exact", "int16", "int8"}));
  app.add_option("--dtype", options.dtype)->check(CLI::IsMember({"float32", "bfloat16"}));
  CLI11_PARSE(app, argc, argv);
  try {
    fovea::run(options);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
