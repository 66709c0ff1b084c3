// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/compare/config.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"
#include "fovea/base/paths.h"
#include "fovea/compare/sweep.h"
#include "fovea/config/reader.h"

namespace fovea {

void VariantConfig::describe(FieldVisitor& v) {
  v.text({"name",
          "unique; names the run folder and the curve (its further key `set` is a map of the "
          "recipe keys it changes)"},
         name);
  v.text({"description", "one line for the report"}, description);
  v.text({"family", "the scaling curve that it is a point of; `sweep` sets it"}, family);
}

void SampleConfig::describe(FieldVisitor& v) {
  v.text({"prompt", "what each model continues; empty: the start of a validation document"},
         prompt);
  v.integer({"tokens", "how many tokens; 0 = no samples", {0, 1e6}}, tokens);
  v.real({"temperature", "of the sampling; 0 = greedy", {0, 1e6}}, temperature);
}

void MapConfig::describe(FieldVisitor& v) {
  v.text({"text", "whose attention is drawn; empty: the start of a validation document"}, text);
  v.integer({"tokens", "at most; 0 = no maps", {0, 4096}}, tokens);
}

void CompareTasks::describe(FieldVisitor& v) {
  v.texts({"names", "tasks of `fovea eval --tasks`, or .yaml files; empty: none"}, names);
  v.text({"data", "folder of the tasks' data; made tasks need none"}, data);
  v.text({"background", "text that made questions hide things in; empty: the task's own"},
         background);
  v.integer({"limit", "questions a task; 0 = all", {0, int64_t{1} << 40}}, limit);
  v.integer({"shots", "solved examples before a question; -1 = the task's own", {-1, 1000}}, shots);
  v.integer({"seed", "of drawn examples and made questions, the same for all runs", ranges::kSeeds},
            seed);
  v.integers(
      {"lengths", "of made questions, in tokens; empty: the task's own", ranges::kPositionCounts},
      lengths);
  v.reals({"depths",
           "of what made questions hide, 0 = start ... 1 = end; empty: the task's own",
           {0, 1}},
          depths);
  v.boolean({"checkpoints", "every checkpoint answers them, not the last alone"}, checkpoints);
}

void TuningConfig::describe(FieldVisitor& v) {
  v.text({"key", "a recipe key that each variant gets the best value of; empty: none"}, key);
  v.texts({"values", "that are tried, three or more, from low to high"}, values);
  v.integer({"seed", "of the trials, none of compare.seeds: it does not count", ranges::kSeeds},
            seed);
}

void CompareConfig::describe(FieldVisitor& v) {
  v.text({"title", "of the report; empty: the recipe's name"}, title);
  v.text({"reference", "the variant that others are judged against; empty: the first"}, reference);
  v.integers({"seeds", "each variant is trained once per seed (initialisation and data order)",
              ranges::kSeeds},
             seeds);
  v.choice({"budget",
            "what is equal: tokens (train.steps or train.tokens), time (train.seconds), or "
            "parameters (tokens, and ffn_width is fitted)"},
           budget);
  v.real({"equivalence_margin",
          "the largest difference in bits per byte that does not matter: a variant inside it (two "
          "one-sided t-tests) is as good as the reference; 0 = equality is not tested",
          {0, 100}},
         equivalence_margin);
  v.text({"workers",
          "runs that train at a time, in processes of one thread each; 1 = one after the other, in "
          "this process, with all threads; auto: as many as threads where models are small (at "
          "most 10 million parameters, on the CPU, all in half of the memory, no budget of time, "
          "train.threads at most 1)"},
         workers);
  v.text(
      {"runs_folder",
       "where the runs are kept; several comparisons may name one: a variant of the same name and "
       "the same settings, the reference of most, is then trained once; empty: runs/ below "
       "run_folder"},
      runs_folder);
  v.texts(
      {"earlier",
       "compare.json files of this recipe, made on other machines or with fewer seeds: their runs "
       "and trials count and are not trained again; empty: none"},
      earlier);
  v.texts(
      {"baselines",
       "byte models (unigram, bigram, trigram), each fitted on the bytes that a run of the first "
       "seed sees, and on the whole training text"},
      baselines);
  v.texts({"only",
           "names of variants: these and the reference are compared, as if the recipe had no "
           "others; empty: all"},
          only);
  v.nested({"sample", "a text sample of each variant"}, sample);
  v.nested({"map", "attention maps"}, map);
  v.nested({"tasks", "questions that every run answers"}, tasks);
  v.nested({"tuning", "one key that is tuned for each variant before it is compared"}, tuning);
  v.nested_list(
      {"variants",
       "what is compared (a further key `sweep` maps recipe keys to lists of values: every "
       "combination becomes a variant)"},
      variants);
}

void CompareConfig::check() const {
  check_fields("compare", *this, "compare");
  require<ConfigError>(!variants.empty(), "compare",
                       "'compare.variants' needs at least one variant ('- name: standard')");
  require<ConfigError>(!seeds.empty(), "compare", "'compare.seeds' needs at least one seed");
  require<ConfigError>(std::set(seeds.begin(), seeds.end()).size() == seeds.size(), "compare",
                       "'compare.seeds' must differ; got {}", fmt::join(seeds, ", "));
  std::vector<std::string> names;
  for (const VariantConfig& v : variants) {
    const bool plain = !v.name.empty() && std::all_of(v.name.begin(), v.name.end(), [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) ||
             std::string_view("-_.+").find(c) != std::string_view::npos;
    });
    require<ConfigError>(
        plain && why_no_file_name(v.name).empty(), "compare",
        "a variant's name is a folder: at most 200 letters, digits and '-_.+', not starting with "
        "'.'; got '{}'",
        v.name);
    require<ConfigError>(std::find(names.begin(), names.end(), v.name) == names.end(), "compare",
                         "two variants are called '{}'", v.name);
    names.push_back(v.name);
  }
  require<ConfigError>(
      reference.empty() || std::find(names.begin(), names.end(), reference) != names.end(),
      "compare", "'compare.reference' must be a variant; got '{}'{}", reference,
      did_you_mean(reference, names));
  for (const std::string& name : only) {
    require<ConfigError>(std::find(names.begin(), names.end(), name) != names.end(), "compare",
                         "'compare.only' must name variants; got '{}'{}", name,
                         did_you_mean(name, names));
  }
  workers_given();
  require<ConfigError>(!tuning.active() || tuning.values.size() >= 3, "compare",
                       "'compare.tuning.values' needs three values or more; got {}",
                       tuning.values.size());
  require<ConfigError>(!tuning.active() || std::ranges::find(seeds, tuning.seed) == seeds.end(),
                       "compare",
                       "'compare.tuning.seed' must be none of 'compare.seeds', so that the choice "
                       "is not judged by its own seed; got {}",
                       tuning.seed);
  const std::vector<std::string> known{"unigram", "bigram", "trigram"};
  for (const std::string& b : baselines) {
    require<ConfigError>(std::find(known.begin(), known.end(), b) != known.end(), "compare",
                         "'compare.baselines' takes unigram, bigram, trigram; got '{}'{}", b,
                         did_you_mean(b, known));
  }
}

int64_t CompareConfig::workers_given() const {
  if (workers == "auto") return 0;
  int64_t count = 0;
  const char* const end = workers.data() + workers.size();
  const auto [stop, error] = std::from_chars(workers.data(), end, count);
  require<ConfigError>(
      error == std::errc() && stop == end && count > 0 && ranges::kThreads.contains(count),
      "compare", "'compare.workers' must be auto or a number of processes; got '{}'", workers);
  return count;
}

CompareConfig read_compare_config(const ConfigNode& node) {
  require<ConfigError>(node.kind == ConfigNode::Kind::map, "compare",
                       "the recipe has no 'compare' map, so there is nothing to compare; add "
                       "'compare: variants: ...' or use 'fovea train'");
  ConfigNode rest = node;
  expand_sweep(rest);
  std::vector<ConfigNode> sets;
  if (ConfigNode* variants = rest.find("variants"); variants != nullptr) {
    for (ConfigNode& item : variants->items) {
      ConfigNode set;
      std::erase_if(item.fields, [&](auto& field) {
        if (field.first != "set") return false;
        set = field.second;
        return true;
      });
      if (set.kind != ConfigNode::Kind::map && set.kind != ConfigNode::Kind::null) {
        fail<ConfigError>(
            set.place,
            "'set' must be a map of recipe keys, for example 'set: {{model.layers: 8}}'");
      }
      sets.push_back(std::move(set));
    }
  }
  CompareConfig config;
  read_fields(rest, config, "compare");
  for (size_t i = 0; i < config.variants.size() && i < sets.size(); ++i)
    config.variants[i].set = std::move(sets[i]);
  if (config.reference.empty() && !config.variants.empty())
    config.reference = config.variants.front().name;
  config.check();
  if (!config.only.empty()) {
    std::erase_if(config.variants, [&](const VariantConfig& v) {
      return v.name != config.reference &&
             std::ranges::find(config.only, v.name) == config.only.end();
    });
  }
  return config;
}

}  // namespace fovea
