// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/compare/compare.h"

#include <ATen/Parallel.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "fovea/base/error.h"
#include "fovea/checkpoint/model_file.h"
#include "fovea/checkpoint/run_folder.h"
#include "fovea/compare/baselines.h"
#include "fovea/compare/collect.h"
#include "fovea/compare/earlier.h"
#include "fovea/compare/shared_runs.h"
#include "fovea/compare/speeds.h"
#include "fovea/compare/tasks.h"
#include "fovea/compare/tuning.h"
#include "fovea/compare/worker_choice.h"
#include "fovea/compare/workers.h"
#include "fovea/config/reader.h"
#include "fovea/infer/generate.h"
#include "fovea/kernels/common/isa.h"
#include "fovea/runtime/machine.h"

namespace fovea {
namespace {

constexpr int64_t kMostPromptTokens = 48;  // of a validation document, where no prompt is given

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

/// The dotted keys of a variant's `set`, for the report.
void flatten(const ConfigNode& node, const std::string& prefix,
             std::vector<std::pair<std::string, std::string>>& out) {
  if (node.kind == ConfigNode::Kind::map) {
    for (const auto& [key, value] : node.fields)
      flatten(value, prefix.empty() ? key : prefix + "." + key, out);
    return;
  }
  std::vector<std::string> items;
  for (const ConfigNode& item : node.items) items.push_back(item.scalar);
  out.emplace_back(prefix, node.kind == ConfigNode::Kind::list
                               ? fmt::format("[{}]", fmt::join(items, ", "))
                               : node.scalar);
}

MachineInfo machine_info(at::Device device) {
  const nlohmann::ordered_json m = machine_summary(device);
  MachineInfo info;
  info.cpu = m.value("cpu", "");
  info.cores = m.value("cores", int64_t{0});
  info.memory_bytes = m.value("memory_bytes", int64_t{0});
  info.device = m.value("device", "cpu");
  info.isa = std::string(enum_name(chosen_isa()));
  return info;
}

DataInfo data_info(const Corpus& corpus, const std::vector<ValidationSet>& sets) {
  DataInfo info;
  for (const CorpusSource& source : corpus.sources()) {
    info.sources.push_back(source.name);
    info.documents += static_cast<int64_t>(source.train.size() + source.validation.size());
    for (const auto* side : {&source.train, &source.validation}) {
      for (const DocumentSpan& span : *side) info.bytes += span.length;
    }
  }
  for (const ValidationSet& set : sets) info.validation_bytes += set.bytes;
  info.fingerprint = corpus.fingerprint();
  return info;
}

/// Runs planned runs (or takes their stored results) and adds them to `result`.
class Runner {
 public:
  Runner(const CompareConfig& config, const CompareCallbacks& callbacks,
         std::shared_ptr<const Corpus> corpus, std::span<const PlannedRun> runs,
         CompareResult& result)
      : config_(config),
        callbacks_(callbacks),
        corpus_(std::move(corpus)),
        runs_(runs),
        result_(result) {}

  void run_in_turn() {
    for (size_t i = 0; i < runs_.size(); ++i) run(i, callbacks_.message);
  }

  /// Trains `workers` runs at a time; results are added in the order of the plan.
  void run_side_by_side(int64_t workers) {
    const int threads = at::get_num_threads();
    std::vector<std::optional<std::string>> ended(runs_.size());
    size_t next = 0;
    train_side_by_side(runs_, config_.tasks, workers, callbacks_,
                       [&](size_t index, const std::string& failure) {
                         ended[index] = failure;
                         for (; next < runs_.size() && ended[next]; ++next) add(next, *ended[next]);
                       });
    at::set_num_threads(threads);  // a run's recipe says one
  }

  /// Trains with the other processes of a launcher; takes the results.
  void run_with_others(bool collects) {
    train_with_others(runs_, config_.tasks, corpus_, callbacks_);
    for (size_t n = 0; collects && n < runs_.size(); ++n)
      wait_for_lock(callbacks_.stop, [&] { add(n, failure_of(runs_[n]).value_or("")); });
  }

 private:
  /// A run that a worker has trained: one line about it, and what run() adds.
  void add(size_t index, const std::string& failure) {
    if (failure.empty()) {
      run(index, {});
    } else {
      add_failure(index, failure);
      tell();
    }
    const CompareRun& added = variant_of(runs_[index].variant).runs.back();
    const std::string result = added.finished()
                                   ? fmt::format("{:.4f} bits per byte, {:.0f} s",
                                                 added.validation_bits_per_byte, added.seconds)
                                   : added.failure;
    if (callbacks_.message) callbacks_.message(fmt::format("{}: {}", label_of(index), result));
  }

  std::string label_of(size_t index) const {
    return fmt::format("{}, seed {} ({} of {})", runs_[index].variant, runs_[index].seed, index + 1,
                       runs_.size());
  }

  void add_failure(size_t index, const std::string& why) {
    CompareRun failed;
    failed.seed = runs_[index].seed;
    failed.failure = why;
    variant_of(runs_[index].variant).runs.push_back(failed);
  }

  void tell() {
    summarise(result_);
    if (callbacks_.result) callbacks_.result(result_);
  }

  void run(size_t index, const std::function<void(std::string_view)>& message) {
    const PlannedRun& planned = runs_[index];
    const size_t count = runs_.size();
    CompareVariant& variant = variant_of(planned.variant);
    const std::string label = label_of(index);
    const auto report = [&](const CompareProgress& p) {
      if (callbacks_.progress) callbacks_.progress(p);
    };
    TrainCallbacks train;
    train.stop = callbacks_.stop;
    train.message = message;
    train.warning = callbacks_.warning;
    train.step = [&](const TrainProgress& p) {
      report({.label = label,
              .fraction = (static_cast<double>(index) + p.fraction) / static_cast<double>(count),
              .loss = p.loss,
              .tokens_per_second = p.tokens_per_second});
    };
    try {
      Trainer trainer(planned.recipe, train, corpus_);
      const TrainResult done = trainer.run();
      const RunPaths paths{planned.recipe.run_folder};
      const bool learned = trainer.model().config().attention.spec.temperature.kind ==
                           TemperatureSpec::Kind::learned;
      CompareRun finished = collect_run(planned.seed, done, paths.metrics(), learned);
      if (config_.tasks.active()) {
        const auto told = [&](std::string_view task, int64_t answered, int64_t total) {
          report({.label = fmt::format("{}: {}, {} of {}", label, task, answered, total),
                  .fraction = static_cast<double>(index + 1) / static_cast<double>(count),
                  .loss = finished.validation_loss,
                  .tokens_per_second = finished.tokens_per_second});
        };
        finished.tasks =
            answer_tasks(config_.tasks, trainer.model(), corpus_->tokenizer(), done.steps,
                         planned.recipe.run_folder, {.progress = told, .stop = callbacks_.stop});
      }
      variant.runs.push_back(std::move(finished));
      variant.parameters = done.parameters;
      result_.dtype = done.dtype;
      if (planned.seed == config_.seeds.front()) look_at(trainer.model(), variant);
    } catch (const NumericalError& error) {
      add_failure(index, error.what());
    }
    tell();
  }

  CompareVariant& variant_of(const std::string& name) {
    return *std::find_if(result_.variants.begin(), result_.variants.end(),
                         [&](const auto& v) { return v.name == name; });
  }

  void look_at(const Transformer& model, CompareVariant& variant) {
    const Tokenizer& tokenizer = corpus_->tokenizer();
    if (config_.sample.tokens > 0) {
      const GenerateOptions options{.sampling = {.temperature = config_.sample.temperature},
                                    .max_tokens = config_.sample.tokens};
      const int64_t most = std::min(kMostPromptTokens, model.config().context / 2);
      const std::string prompt = config_.sample.prompt.empty()
                                     ? map_text({.tokens = most}, *corpus_)
                                     : config_.sample.prompt;
      variant.sample = {.prompt = prompt,
                        .text = generate_text(model, tokenizer, prompt, options).text};
    }
    if (config_.map.tokens > 0) {
      variant.attention_maps =
          collect_maps(model, tokenizer, map_text(config_.map, *corpus_), config_.map.tokens);
    }
  }

  const CompareConfig& config_;
  const CompareCallbacks& callbacks_;
  std::shared_ptr<const Corpus> corpus_;
  std::span<const PlannedRun> runs_;
  CompareResult& result_;
};

double budget_amount(const CompareConfig& config, const Recipe& recipe) {
  if (config.budget == BudgetKind::time) return recipe.train.seconds;
  if (recipe.train.tokens > 0) return static_cast<double>(recipe.train.tokens);
  return static_cast<double>(recipe.train.steps * recipe.train.batch_rows *
                             recipe.train.accumulation * recipe.train.sequence_length);
}

/// Trains what `config` compares into `result`, which has no variants yet, or takes it from
/// `earlier`.
void train_all(const LoadedRecipe& loaded, const CompareConfig& config,
               const CompareCallbacks& callbacks, const std::shared_ptr<const Corpus>& corpus,
               bool speeds, std::span<const CompareResult> earlier, CompareResult& result) {
  const int64_t vocabulary = corpus->tokenizer().vocab_size();
  std::vector<PlannedRun> runs = plan_runs(loaded, config, corpus->fingerprint(), vocabulary);
  for (const VariantConfig& v : config.variants) {
    CompareVariant& variant = result.variants.emplace_back();
    variant.name = v.name;
    variant.description = v.description;
    variant.family = v.family;
    flatten(v.set, "", variant.config);
  }
  if (!earlier.empty()) {
    const size_t planned = runs.size();
    for (const CompareResult& one : earlier) take_earlier_runs(one, runs, vocabulary, result);
    summarise(result);
    if (callbacks.message)
      callbacks.message(fmt::format("{} of {} runs are those of {}", planned - runs.size(), planned,
                                    fmt::join(config.earlier, ", ")));
    if (runs.empty()) return;
  }
  const int64_t ranks = callbacks.sharing.ranks;
  const WorkerChoice choice = callbacks.worker.empty() || ranks > 1
                                  ? WorkerChoice{}
                                  : choose_workers(config, runs, vocabulary);
  if (callbacks.message && ranks > 1)
    callbacks.message(fmt::format("{} runs, shared by {} processes", runs.size(), ranks));
  else if (callbacks.message && !callbacks.worker.empty())
    callbacks.message(choice.sentence(std::ssize(runs)));
  if (ranks > 1) {
    result.workers = ranks;
    // Values that tuning chooses must be known to all.
    const bool collects = callbacks.sharing.rank == 0 || !speeds;
    Runner(config, callbacks, corpus, runs, result).run_with_others(collects);
    if (speeds && collects) measure_speeds_alone(runs, corpus, callbacks, result);
    return;
  }
  if (choice.workers == 1) return Runner(config, callbacks, corpus, runs, result).run_in_turn();
  for (PlannedRun& run : runs)
    if (run.recipe.train.threads == 0) run.recipe.train.threads = 1;
  result.workers = choice.workers;
  Runner(config, callbacks, corpus, runs, result).run_side_by_side(choice.workers);
  if (speeds) measure_speeds_alone(runs, corpus, callbacks, result);
}

/// Trains the trials of compare.tuning that `earlier` lacks; `config` gets the chosen values,
/// `result` what was tried.
void tune(const LoadedRecipe& loaded, const CompareCallbacks& callbacks,
          const std::shared_ptr<const Corpus>& corpus, std::span<const CompareResult> earlier,
          CompareConfig& config, CompareResult& result) {
  CompareCallbacks silent = callbacks;
  silent.result = nullptr;  // compare.json is of the comparison
  CompareResult tried;
  CompareConfig trials = tuning_trials(config);
  std::vector<CompareVariant> taken;
  for (const CompareResult& one : earlier) take_earlier_trials(one, config, trials, taken);
  tried.reference = trials.reference;
  if (!trials.variants.empty()) train_all(loaded, trials, silent, corpus, false, {}, tried);
  std::ranges::move(taken, std::back_inserter(tried.variants));
  result.tuned_key = config.tuning.key;
  result.tuning_seed = config.tuning.seed;
  result.tuning = choose_values(tried, config);
}

}  // namespace

CompareResult run_compare(const LoadedRecipe& loaded, const CompareConfig& config,
                          const CompareCallbacks& callbacks) {
  const Recipe base = loaded.recipe.resolved();
  const std::vector<CompareResult> earlier = load_earlier(config);
  const auto tokenizer = open_named_tokenizer(base.tokenizer);
  // Every variant's recipe is read and checked before the first minute of training is spent.
  plan_runs(loaded, config, "", tokenizer->vocab_size());
  if (config.tuning.active()) plan_runs(loaded, tuning_trials(config), "", tokenizer->vocab_size());
  check_tasks(config.tasks, *tokenizer);
  const auto corpus = prepare_corpus(base.data, tokenizer, callbacks.data);
  CompareResult result;
  std::vector<ValidationSet> sets;
  const int64_t rows =
      base.train.evaluation_rows > 0 ? base.train.evaluation_rows : base.train.batch_rows;
  for (size_t i = 0; i < corpus->sources().size(); ++i) {
    sets.push_back(validation_batches(*corpus, i, base.train.sequence_length, rows,
                                      base.train.evaluation_tokens));
  }
  result.title = config.title.empty() ? base.name : config.title;
  result.budget = config.budget;
  result.budget_amount = budget_amount(config, base);
  result.created = utc_now();
  result.machine = machine_info(choose_device(base.train.device));
  result.code_version = code_version();
  result.torch_version = TORCH_VERSION;
  result.data = data_info(*corpus, sets);
  result.reference = config.reference;
  result.equivalence_margin = config.equivalence_margin;
  check_same_study(earlier, result, base, config);
  CompareConfig chosen = config;
  if (config.tuning.active()) tune(loaded, callbacks, corpus, earlier, chosen, result);
  if (callbacks.sharing.rank == 0)
    result.baselines = score_baselines(config.baselines, base, config.seeds.front(), corpus, sets);
  train_all(loaded, chosen, callbacks, corpus, true, earlier, result);
  for (CompareVariant& variant : result.variants)
    std::ranges::stable_sort(variant.runs, {}, [&](const CompareRun& run) {
      return std::ranges::find(config.seeds, run.seed) - config.seeds.begin();
    });
  return result;
}

}  // namespace fovea
