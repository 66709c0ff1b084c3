// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/compare/compare.h"

#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/checkpoint/model_file.h"
#include "fovea/checkpoint/run_folder.h"
#include "fovea/compare/baselines.h"
#include "fovea/compare/collect.h"
#include "fovea/compare/tasks.h"
#include "fovea/config/reader.h"
#include "fovea/infer/generate.h"
#include "fovea/kernels/common/isa.h"
#include "fovea/runtime/machine.h"

namespace fovea {
namespace {

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

/// Runs one planned run (or takes its stored result) and adds it to `result`.
class Runner {
 public:
  Runner(const CompareConfig& config, const CompareCallbacks& callbacks,
         std::shared_ptr<const Corpus> corpus, CompareResult& result)
      : config_(config), callbacks_(callbacks), corpus_(std::move(corpus)), result_(result) {}

  void run(const PlannedRun& planned, size_t index, size_t count) {
    CompareVariant& variant = variant_of(planned.variant);
    const std::string label =
        fmt::format("{}, seed {} ({} of {})", planned.variant, planned.seed, index + 1, count);
    const auto report = [&](const CompareProgress& p) {
      if (callbacks_.progress) callbacks_.progress(p);
    };
    TrainCallbacks train;
    train.stop = callbacks_.stop;
    train.message = callbacks_.message;
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
      CompareRun failed;
      failed.seed = planned.seed;
      failed.failure = error.what();
      variant.runs.push_back(failed);
    }
    summarise(result_);
    if (callbacks_.result) callbacks_.result(result_);
  }

 private:
  CompareVariant& variant_of(const std::string& name) {
    return *std::find_if(result_.variants.begin(), result_.variants.end(),
                         [&](const auto& v) { return v.name == name; });
  }

  void look_at(const Transformer& model, CompareVariant& variant) {
    const Tokenizer& tokenizer = corpus_->tokenizer();
    if (config_.sample.tokens > 0) {
      const GenerateOptions options{.sampling = {.temperature = config_.sample.temperature},
                                    .max_tokens = config_.sample.tokens};
      variant.sample = {
          .prompt = config_.sample.prompt,
          .text = generate_text(model, tokenizer, config_.sample.prompt, options).text};
    }
    if (config_.map.tokens > 0) {
      variant.attention_maps =
          collect_maps(model, tokenizer, map_text(config_.map, *corpus_), config_.map.tokens);
    }
  }

  const CompareConfig& config_;
  const CompareCallbacks& callbacks_;
  std::shared_ptr<const Corpus> corpus_;
  CompareResult& result_;
};

double budget_amount(const CompareConfig& config, const Recipe& recipe) {
  if (config.budget == BudgetKind::time) return recipe.train.seconds;
  if (recipe.train.tokens > 0) return static_cast<double>(recipe.train.tokens);
  return static_cast<double>(recipe.train.steps * recipe.train.batch_rows *
                             recipe.train.accumulation * recipe.train.sequence_length);
}

}  // namespace

CompareResult run_compare(const LoadedRecipe& loaded, const CompareConfig& config,
                          const CompareCallbacks& callbacks) {
  const Recipe base = loaded.recipe.resolved();
  const auto tokenizer = open_named_tokenizer(base.tokenizer);
  // Every variant's recipe is read and checked before the first minute of training is spent.
  plan_runs(loaded, config, "", tokenizer->vocab_size());
  check_tasks(config.tasks, *tokenizer);
  const auto corpus = prepare_corpus(base.data, tokenizer, callbacks.data);
  const std::vector<PlannedRun> runs =
      plan_runs(loaded, config, corpus->fingerprint(), tokenizer->vocab_size());

  std::vector<ValidationSet> sets;
  const int64_t rows =
      base.train.evaluation_rows > 0 ? base.train.evaluation_rows : base.train.batch_rows;
  for (size_t i = 0; i < corpus->sources().size(); ++i) {
    sets.push_back(validation_batches(*corpus, i, base.train.sequence_length, rows,
                                      base.train.evaluation_tokens));
  }
  CompareResult result;
  result.title = config.title.empty() ? base.name : config.title;
  result.budget = config.budget;
  result.budget_amount = budget_amount(config, base);
  result.created = utc_now();
  result.machine = machine_info(choose_device(base.train.device));
  result.code_version = code_version();
  result.torch_version = TORCH_VERSION;
  result.data = data_info(*corpus, sets);
  result.reference = config.reference;
  result.baselines = score_baselines(config.baselines, base, config.seeds.front(), corpus, sets);
  for (const VariantConfig& v : config.variants) {
    CompareVariant& variant = result.variants.emplace_back();
    variant.name = v.name;
    variant.description = v.description;
    variant.family = v.family;
    flatten(v.set, "", variant.config);
  }
  Runner runner(config, callbacks, corpus, result);
  for (size_t i = 0; i < runs.size(); ++i) runner.run(runs[i], i, runs.size());
  return result;
}

}  // namespace fovea
