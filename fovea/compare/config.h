// The key `compare` of a recipe: variants, seeds, budget and tasks of a comparison.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "fovea/config/fields.h"
#include "fovea/config/node.h"
#include "fovea/report/compare_result.h"

namespace fovea {

struct VariantConfig {
  std::string name;
  std::string description;
  std::string family;  ///< the scaling curve that it is a point of; "" = of none
  ConfigNode set;      ///< recipe keys that this variant changes: nested maps, or dotted keys

  void describe(FieldVisitor& v);  ///< all but `set`
};

struct SampleConfig {
  std::string prompt = "def ";  ///< "" = the start of a validation document
  int64_t tokens = 160;
  double temperature = 0.7;

  void describe(FieldVisitor& v);
};

struct MapConfig {
  std::string text;     ///< whose attention is drawn; "" = the start of a validation document
  int64_t tokens = 48;  ///< at most; 0 = no maps

  void describe(FieldVisitor& v);
};

/// Tasks that every run answers after its training.
struct CompareTasks {
  std::vector<std::string> names;  ///< of known tasks, or .yaml files; empty = none
  std::string data;                ///< folder of their data
  std::string background;          ///< text that made questions hide things in
  int64_t limit = 100;             ///< questions a task; 0 = all
  int64_t shots = -1;              ///< -1 = the task's own
  int64_t seed = 1234;             ///< of drawn shots and made questions: the same for all runs
  std::vector<int64_t> lengths;    ///< of made questions, in tokens; empty = the task's own
  std::vector<double> depths;      ///< of what they hide, 0 ... 1; empty = the task's own
  bool checkpoints = false;        ///< every checkpoint answers them too

  void describe(FieldVisitor& v);
  bool active() const { return !names.empty(); }
};

/// The value of one key, a learning rate say, that suits each variant best: tried with a seed that
/// does not count.
struct TuningConfig {
  std::string key;                  ///< of the recipe; empty = nothing is tuned
  std::vector<std::string> values;  ///< at least three
  int64_t seed = 1000;              ///< of the trials; none of `compare.seeds`

  void describe(FieldVisitor& v);
  bool active() const { return !key.empty(); }
};

struct CompareConfig {
  std::string title;      ///< "" = the recipe's name
  std::string reference;  ///< "" = the first variant
  std::vector<int64_t> seeds{0, 1, 2};
  BudgetKind budget = BudgetKind::tokens;
  double equivalence_margin = 0;  ///< bits per byte; 0 = equality is not tested
  std::string workers = "auto";   ///< or a number: runs that train at a time
  std::string runs_folder;  ///< of the runs, may serve several comparisons; "" = runs/ of its own
  std::vector<std::string> earlier;  ///< files of this comparison, whose runs are not trained again
  std::vector<std::string> baselines{"bigram", "trigram"};
  SampleConfig sample;
  MapConfig map;
  CompareTasks tasks;
  TuningConfig tuning;
  std::vector<std::string> only;  ///< variants that are trained beside the reference; empty = all
  std::vector<VariantConfig> variants;

  void describe(FieldVisitor& v);
  /// ConfigError for no variants, equal names, an unknown reference or baseline, workers that are
  /// no number.
  void check() const;
  /// The number of `workers`; 0 for auto.
  int64_t workers_given() const;
};

/// Reads the node of `compare`. ConfigError with file:line.
CompareConfig read_compare_config(const ConfigNode& node);

}  // namespace fovea
