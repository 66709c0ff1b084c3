// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/compare/speeds.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/train/trainer.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr double kSeconds = 2.0;
constexpr int64_t kWarmUp = 3;  // steps that allocate, and fill caches

/// The run's own recipe in a folder that is thrown away, stopped after some seconds.
double train_for_a_while(Recipe recipe, const fs::path& folder,
                         std::shared_ptr<const Corpus> corpus, const std::atomic<bool>* stop) {
  fs::remove_all(folder);
  recipe.run_folder = folder.string();
  recipe.train.threads = 0;  // as many as this process has
  recipe.train.evaluation_interval = recipe.train.checkpoint_interval = 0;
  recipe.train.evaluation_tokens = recipe.train.sequence_length;
  std::atomic<bool> enough = false;
  TrainProgress first, last;
  TrainCallbacks callbacks;
  callbacks.stop = &enough;
  callbacks.step = [&](const TrainProgress& p) {
    if (p.step <= kWarmUp) first = p;
    last = p;
    enough = last.seconds - first.seconds >= kSeconds || (stop != nullptr && stop->load());
  };
  try {
    Trainer(recipe, callbacks, std::move(corpus)).run();
  } catch (const Interrupted&) {
    require<Interrupted>(stop == nullptr || !stop->load(), "compare",
                         "stopped while speeds were measured; all runs are done: the same command "
                         "measures again");
  }
  fs::remove_all(folder);
  const double seconds = last.step > first.step ? last.seconds - first.seconds : last.seconds;
  const int64_t tokens = last.step > first.step ? last.tokens - first.tokens : last.tokens;
  return static_cast<double>(tokens) / std::max(seconds, 1e-9);
}

double speed_alone(const PlannedRun& run, std::shared_ptr<const Corpus> corpus,
                   const std::atomic<bool>* stop) {
  const fs::path folder = run.recipe.run_folder, kept = folder / "speed.json";
  const int threads = at::get_num_threads();
  if (fs::exists(kept)) {
    const Json json = Json::parse(read_file(kept), nullptr, false);
    if (json.is_object() && json.value("threads", 0) == threads)
      return json.value("tokens_per_second", kNotANumber);
  }
  const double speed = train_for_a_while(run.recipe, folder / "speed", std::move(corpus), stop);
  write_file(kept, Json{{"threads", threads}, {"tokens_per_second", speed}}.dump(2) + "\n");
  return speed;
}

}  // namespace

void measure_speeds_alone(std::span<const PlannedRun> runs, std::shared_ptr<const Corpus> corpus,
                          const CompareCallbacks& callbacks, CompareResult& result) {
  size_t done = 0;
  for (CompareVariant& variant : result.variants) {
    if (callbacks.progress)
      callbacks.progress({.label = fmt::format("speed of {} alone ({} of {})", variant.name, ++done,
                                               result.variants.size()),
                          .fraction = 1.0});
    const auto finished = std::ranges::find_if(variant.runs, &CompareRun::finished);
    if (finished == variant.runs.end()) continue;
    const auto planned = std::ranges::find_if(runs, [&](const PlannedRun& run) {
      return run.variant == variant.name && run.seed == finished->seed;
    });
    const double speed = speed_alone(*planned, corpus, callbacks.stop);
    for (CompareRun& run : variant.runs)
      if (run.finished()) run.tokens_per_second = speed;
  }
  summarise(result);
}

}  // namespace fovea
