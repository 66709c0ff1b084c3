// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/compare/earlier.h"

#include <algorithm>
#include <set>

#include "fovea/base/error.h"
#include "fovea/compare/tuning.h"

namespace fovea {
namespace {

using Settings = std::vector<std::pair<std::string, std::string>>;

std::string text_of(const Settings& settings) {
  std::string text;
  for (const auto& [key, value] : settings)
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", key, value);
  return text;
}

const CompareVariant* find_variant(const CompareResult& result, std::string_view name) {
  const auto found = std::ranges::find(result.variants, name, &CompareVariant::name);
  return found == result.variants.end() ? nullptr : &*found;
}

const CompareRun* finished_run(const CompareVariant& variant, int64_t seed) {
  const auto found = std::ranges::find_if(
      variant.runs, [&](const CompareRun& run) { return run.seed == seed && run.finished(); });
  return found == variant.runs.end() ? nullptr : &*found;
}

using Taken = std::set<std::pair<std::string, int64_t>>;  // variant, seed

/// Adds the origin of `runs`, with what `known` says of it.
void add_origin(RunOrigin known, const Taken& runs, CompareResult& result) {
  if (runs.empty()) return;
  std::set<int64_t> seeds;
  std::set<std::string> variants;
  for (const auto& [variant, seed] : runs) {
    variants.insert(variant);
    seeds.insert(seed);
  }
  known.seeds.assign(seeds.begin(), seeds.end());
  known.variants.assign(variants.begin(), variants.end());
  result.origins.push_back(std::move(known));
}

/// Of the machine that `earlier` was made on, and of those that it had taken runs from.
void add_origins(const CompareResult& earlier, Taken taken, CompareResult& result) {
  for (const RunOrigin& origin : earlier.origins) {
    Taken its;
    for (const auto& [variant, seed] : taken)
      if (std::ranges::find(origin.seeds, seed) != origin.seeds.end() &&
          std::ranges::find(origin.variants, variant) != origin.variants.end())
        its.emplace(variant, seed);
    add_origin(origin, its, result);
    for (const auto& run : its) taken.erase(run);
  }
  add_origin({.machine = earlier.machine,
              .code_version = earlier.code_version,
              .created = earlier.created},
             taken, result);
}

void check_same_study(const CompareResult& earlier, const std::string& file,
                      const CompareResult& now, const Recipe& base, const CompareConfig& config) {
  const auto require_same = [&](std::string_view what, const auto& here, const auto& there) {
    require<InputError>(here == there, "compare",
                        "expected 'compare.earlier' to name results of this comparison; its {} is "
                        "'{}', here it is '{}'; '{}' was made by: {}",
                        what, there, here, file, earlier.command);
  };
  require_same("budget", enum_name(now.budget), enum_name(earlier.budget));
  require_same("amount of the budget", now.budget_amount, earlier.budget_amount);
  require_same("fingerprint of the text", now.data.fingerprint, earlier.data.fingerprint);
  require_same("validation text in bytes", now.data.validation_bytes,
               earlier.data.validation_bytes);
  require_same("reference", now.reference, earlier.reference);
  require_same("train.dtype", enum_name(base.train.dtype), std::string_view(earlier.dtype));
  require_same("tuned key", config.tuning.key, earlier.tuned_key);
  if (config.tuning.active())
    require_same("seed of the tuning", config.tuning.seed, earlier.tuning_seed);
}

}  // namespace

std::vector<CompareResult> load_earlier(const CompareConfig& config) {
  std::vector<CompareResult> all;
  for (const std::string& file : config.earlier) all.push_back(load_compare_result(file));
  return all;
}

void check_same_study(const std::vector<CompareResult>& earlier, const CompareResult& now,
                      const Recipe& base, const CompareConfig& config) {
  for (size_t i = 0; i < earlier.size(); ++i)
    check_same_study(earlier[i], config.earlier[i], now, base, config);
}

void take_earlier_runs(const CompareResult& earlier, std::vector<PlannedRun>& runs,
                       int64_t tokenizer_vocab, CompareResult& result) {
  Taken taken;
  std::erase_if(runs, [&](const PlannedRun& planned) {
    const CompareVariant* const there = find_variant(earlier, planned.variant);
    const CompareRun* const run = there == nullptr ? nullptr : finished_run(*there, planned.seed);
    if (run == nullptr) return false;
    CompareVariant& variant =
        *std::ranges::find(result.variants, planned.variant, &CompareVariant::name);
    require<InputError>(variant.config == there->config, "compare",
                        "expected variant '{}' of 'compare.earlier' to set '{}'; it sets '{}'",
                        planned.variant, text_of(variant.config), text_of(there->config));
    const int64_t parameters = parameter_count(planned.recipe.model.resolved(tokenizer_vocab));
    require<InputError>(there->parameters == parameters, "compare",
                        "expected variant '{}' of 'compare.earlier' to have {} parameters; it has "
                        "{}",
                        planned.variant, parameters, there->parameters);
    variant.parameters = there->parameters;
    variant.sample = there->sample;
    variant.attention_maps = there->attention_maps;
    CompareRun& added = variant.runs.emplace_back(*run);
    added.tokens_per_second = kNotANumber;  // of that machine, as its memory
    added.peak_memory_bytes = 0;
    taken.emplace(planned.variant, planned.seed);
    return true;
  });
  result.dtype = earlier.dtype;
  add_origins(earlier, std::move(taken), result);
}

void take_earlier_trials(const CompareResult& earlier, const CompareConfig& config,
                         CompareConfig& trials, std::vector<CompareVariant>& tried) {
  for (const TuningPoint& point : earlier.tuning) {
    const auto value = std::ranges::find(config.tuning.values, point.value);
    if (value == config.tuning.values.end()) continue;
    const std::string name =
        trial_name(point.variant, static_cast<size_t>(value - config.tuning.values.begin()));
    if (std::erase_if(trials.variants, [&](const auto& trial) { return trial.name == name; }) == 0)
      continue;
    CompareVariant& trial = tried.emplace_back();
    trial.name = name;
    trial.runs.push_back({.seed = trials.seeds.front()});
    trial.runs.back().validation_bits_per_byte = point.bits_per_byte;
  }
}

}  // namespace fovea
