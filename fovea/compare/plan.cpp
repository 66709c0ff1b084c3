// The runs of a comparison: recipes of the variants, equal budgets, folders.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/compare/compare.h"
#include "fovea/config/reader.h"

namespace fovea {
namespace {

/// Lays `set` over a recipe; its keys may be dotted ("model.layers") or nested.
void apply_set(ConfigNode& root, const ConfigNode& set) {
  for (const auto& [key, value] : set.fields) {
    ConfigNode patch = value;
    std::string_view rest = key;
    while (!rest.empty()) {  // "a.b.c" becomes a map of maps, built from its end
      const size_t dot = rest.rfind('.');
      ConfigNode outer = ConfigNode::make_map(value.place);
      const std::string_view last = dot == std::string_view::npos ? rest : rest.substr(dot + 1);
      outer.fields.push_back({std::string(last), std::move(patch)});
      patch = std::move(outer);
      rest = dot == std::string_view::npos ? std::string_view() : rest.substr(0, dot);
    }
    merge_into(root, patch);
  }
}

/// Everything that changes a run's numbers, as one fingerprint.
std::string run_fingerprint(const Recipe& recipe, const std::string& corpus_fingerprint) {
  Recipe r = recipe;
  r.name.clear();
  r.run_folder.clear();
  r.train.log_interval = r.train.checkpoint_interval = r.train.keep_checkpoints = 0;
  r.train.threads = 0;
  r.data = {};  // the corpus fingerprint stands for it
  return hex64(fingerprint(fields_to_json(r).dump() + corpus_fingerprint)).substr(0, 8);
}

/// Fits ffn_width so that `config` has as many parameters as `target`, as nearly as whole widths
/// allow.
void match_parameters(ModelConfig& config, int64_t tokenizer_vocab, int64_t target,
                      const std::string& variant) {
  const ModelConfig now = config.resolved(tokenizer_vocab);
  const int64_t matrices = gated(now.feed_forward) ? 3 : 2;
  const int64_t per_width =
      (matrices * now.width + (now.biases.feed_forward ? matrices - 1 : 0)) * now.layers;
  const double missing =
      static_cast<double>(target - parameter_count(now)) / static_cast<double>(per_width);
  const int64_t width = now.ffn_width + std::llround(missing);
  require<ConfigError>(width >= 1, "compare",
                       "variant '{}' has {} parameters and cannot be brought to the reference's {} "
                       "by its feed-forward width; change its "
                       "sizes or compare by tokens",
                       variant, parameter_count(now), target);
  config.ffn_width = width;
}

}  // namespace

std::vector<PlannedRun> plan_runs(const LoadedRecipe& loaded, const CompareConfig& config,
                                  const std::string& corpus_fingerprint, int64_t tokenizer_vocab) {
  const std::filesystem::path folder =
      config.runs_folder.empty()
          ? std::filesystem::path(loaded.recipe.resolved().run_folder) / "runs"
          : std::filesystem::path(config.runs_folder);
  const auto recipe_of = [&](const VariantConfig& variant) {
    ConfigNode root = loaded.root;
    apply_set(root, variant.set);
    return recipe_from_node(root);
  };
  int64_t target = 0;
  if (config.budget == BudgetKind::parameters) {
    for (const VariantConfig& v : config.variants) {
      if (v.name == config.reference)
        target = parameter_count(recipe_of(v).model.resolved(tokenizer_vocab));
    }
  }
  if (config.budget == BudgetKind::time) {
    require<ConfigError>(loaded.recipe.train.seconds > 0, "compare",
                         "'compare.budget: time' needs 'train.seconds' (of training, for each "
                         "run); set it, or compare by tokens");
  }
  std::vector<PlannedRun> runs;
  for (const int64_t seed : config.seeds) {
    for (const VariantConfig& variant : config.variants) {
      Recipe recipe = recipe_of(variant);
      if (target > 0) match_parameters(recipe.model, tokenizer_vocab, target, variant.name);
      recipe.train.seed = seed;
      recipe.name = fmt::format("{}, seed {}", variant.name, seed);
      const std::string unique = run_fingerprint(recipe, corpus_fingerprint);
      recipe.run_folder = (folder / fmt::format("{}-{}-{}", variant.name, seed, unique)).string();
      runs.push_back({variant.name, seed, recipe.resolved()});
    }
  }
  return runs;
}

}  // namespace fovea
