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

constexpr int64_t kWarmUp = 3;    // steps that allocate, and fill caches
constexpr double kWindow = 0.25;  // seconds

/// A folder that is gone before and after.
struct ThrownAway {
  const fs::path& folder;
  explicit ThrownAway(const fs::path& path) : folder(path) { fs::remove_all(folder); }
  ~ThrownAway() {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  }
};

/// The speed of the fastest of successive windows: other programs make windows slower, never
/// faster.
class FastestWindow {
 public:
  void step(const TrainProgress& p) {
    if (p.step <= kWarmUp) begin_ = p;
    if (p.step <= kWarmUp || p.seconds - begin_.seconds < kWindow) return;
    best_ = std::max(best_, rate(begin_, p));
    begin_ = p;
  }
  /// Of the whole run, where it is shorter than a window.
  double speed(const TrainProgress& last) const { return best_ > 0 ? best_ : rate({}, last); }

 private:
  static double rate(const TrainProgress& from, const TrainProgress& to) {
    return static_cast<double>(to.tokens - from.tokens) / std::max(to.seconds - from.seconds, 1e-9);
  }

  TrainProgress begin_;
  double best_ = 0;
};

/// The run's own recipe in a folder that is thrown away, stopped after some seconds.
double train_for_a_while(Recipe recipe, const fs::path& folder,
                         std::shared_ptr<const Corpus> corpus, const std::atomic<bool>* stop) {
  const ThrownAway thrown_away(folder);
  recipe.run_folder = folder.string();
  recipe.train.evaluation_interval = recipe.train.checkpoint_interval = 0;
  recipe.train.evaluation_tokens = recipe.train.sequence_length;
  std::atomic<bool> enough = false;
  FastestWindow window;
  TrainProgress last;
  TrainCallbacks callbacks;
  callbacks.stop = &enough;
  callbacks.step = [&](const TrainProgress& p) {
    window.step(p);
    last = p;
    enough = p.seconds >= kSpeedSeconds || (stop != nullptr && stop->load());
  };
  try {
    Trainer(recipe, callbacks, std::move(corpus)).run();
  } catch (const Interrupted&) {
    require<Interrupted>(stop == nullptr || !stop->load(), "compare",
                         "stopped while speeds were measured; all runs are done: the same command "
                         "measures again");
  }
  return window.speed(last);
}

double speed_alone(const PlannedRun& run, std::shared_ptr<const Corpus> corpus,
                   const std::atomic<bool>* stop) {
  const int64_t threads = run.recipe.train.threads;
  const fs::path folder = run.recipe.run_folder, kept = folder / "speed.json";
  if (fs::exists(kept)) {
    const Json json = Json::parse(read_file(kept), nullptr, false);
    if (json.is_object() && json.value("threads", int64_t{0}) == threads)
      return json.value("tokens_per_second", kNotANumber);
  }
  const double speed = train_for_a_while(run.recipe, folder / "speed", std::move(corpus), stop);
  write_file(kept, Json{{"threads", threads}, {"tokens_per_second", speed}}.dump(2) + "\n");
  return speed;
}

}  // namespace

void measure_speeds_alone(std::span<const PlannedRun> runs, std::shared_ptr<const Corpus> corpus,
                          const CompareCallbacks& callbacks, CompareResult& result) {
  const int before = at::get_num_threads();
  size_t done = 0;
  for (CompareVariant& variant : result.variants) {
    if (callbacks.progress)
      callbacks.progress({.label = fmt::format("speed of {} alone ({} of {})", variant.name, ++done,
                                               result.variants.size()),
                          .fraction = 1.0});
    const auto finished = [&](int64_t seed) {
      return std::ranges::any_of(
          variant.runs, [&](const CompareRun& run) { return run.seed == seed && run.finished(); });
    };
    const auto planned = std::ranges::find_if(runs, [&](const PlannedRun& run) {
      return run.variant == variant.name && finished(run.seed);
    });
    if (planned == runs.end()) continue;
    const double speed = speed_alone(*planned, corpus, callbacks.stop);
    result.speeds_alone = {.seconds = kSpeedSeconds, .threads = planned->recipe.train.threads};
    for (CompareRun& run : variant.runs)
      if (run.finished()) run.tokens_per_second = speed;
  }
  at::set_num_threads(before);
  summarise(result);
}

}  // namespace fovea
