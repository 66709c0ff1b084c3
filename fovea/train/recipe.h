// Recipe: the full definition of a training run, as read from YAML.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/attention/attention.h"
#include "fovea/config/fields.h"
#include "fovea/config/node.h"
#include "fovea/data/config.h"
#include "fovea/nn/model_config.h"
#include "fovea/runtime/choices.h"
#include "fovea/train/schedule.h"

namespace fovea {

/// When loss or gradients are not finite: `stop` throws NumericalError, `skip` leaves that step's
/// update out.
enum class NanPolicy { stop, skip };
std::span<const std::string_view> enum_names(NanPolicy);

/// `automatic` continues what the run folder holds, else starts; `never` refuses a folder that
/// holds checkpoints; `must` refuses one that holds none.
enum class ResumePolicy { automatic, never, must };
std::span<const std::string_view> enum_names(ResumePolicy);  // auto, never, must

/// The numbers that are cut into one part a rank: the optimizer's moments alone (ZeRO-1), or the
/// weights and gradients of layers too (ZeRO-3). Layers are then recomputed in the backward pass.
enum class Shard { moments, all };
std::span<const std::string_view> enum_names(Shard);

/// AdamW, decoupled weight decay (spec 3.7).
struct OptimizerConfig {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  bool decay_all = false;  ///< weight decay on norms, biases and temperatures too (3.7, lingua)
  double clip = 1.0;       ///< largest global norm of the gradient; 0 = off

  void describe(FieldVisitor& v);
};

struct TrainConfig;

/// One part of a run. Zeros (and weight_decay < 0) take the value of `train` or `model`.
struct StageConfig {
  std::string name;
  int64_t steps = 0;
  int64_t sequence_length = 0;
  int64_t batch_rows = 0;
  double rope_theta = 0.0;
  double learning_rate = 0.0;
  double weight_decay = -1.0;
  ScheduleConfig schedule;  ///< keys that the recipe leaves out are those of train.schedule
  bool carry_optimizer = false;
  std::string trainable = "inherit";    ///< a ParameterSet, or inherit: as train.trainable
  std::string objective = "inherit";    ///< as train.objective, or inherit: the same
  double straight_through_from = -1.0;  ///< < 0: as train.straight_through_from

  void describe(FieldVisitor& v);
  const std::string& trainable_of(const TrainConfig& train) const;
  const std::string& objective_of(const TrainConfig& train) const;
  double straight_through_of(const TrainConfig& train) const;
};

struct TrainConfig {
  /// Exactly one of the three is positive, or none with `stages`.
  int64_t steps = 0;
  int64_t tokens = 0;
  /// Seconds of training; evaluation, checkpoints and time between two processes do not count.
  double seconds = 0.0;
  int64_t batch_rows = 8;       ///< rows of one micro-batch
  int64_t accumulation = 1;     ///< micro-batches of one step
  int64_t sequence_length = 0;  ///< 0 = model.context
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  bool temperature_ramp = false;  ///< constant temperatures start at 1 (F-9)
  double z_loss = 0.0;            ///< alpha of alpha (ln Z)^2 (spec 7.4); never in a reported loss
  DtypeChoice dtype = DtypeChoice::automatic;
  DeviceChoice device = DeviceChoice::automatic;
  Path attention_path = Path::automatic;
  int64_t seed = 0;
  NanPolicy nan_policy = NanPolicy::stop;
  int64_t evaluation_interval = 0;     ///< steps; 0 = at the end only
  int64_t evaluation_tokens = 65536;   ///< per source
  int64_t evaluation_rows = 0;         ///< 0 = batch_rows
  int64_t checkpoint_interval = 1000;  ///< steps; 0 = at the end only
  int64_t keep_checkpoints = 2;
  int64_t log_interval = 10;
  bool gradient_checkpointing = false;
  Shard shard = Shard::moments;
  int64_t loss_chunk = 0;  ///< rows of logits in float32 at a time; 0 = the model's default
  int64_t threads = 0;     ///< 0 = torch's choice
  /// Which parameters learn, the rest is frozen: a ParameterSet (fovea/nn/parameter_set.h). `focus`
  /// is W_g, C and lambda (U-20), `lora` the adapters of model.lora.
  std::string trainable = "all";
  /// The loss of a step: "lm", the language-model loss, or a name of mechanism_objectives().
  std::string objective = "lm";
  double straight_through_from = 1.0;  ///< share of a stage after which Focus is hard (U-8)
  std::string init_from;               ///< weights of a run, checkpoint or model folder
  ResumePolicy resume = ResumePolicy::automatic;
  std::vector<StageConfig> stages;

  void describe(FieldVisitor& v);
};

struct Recipe {
  std::string name = "run";
  std::string run_folder;           ///< "" = runs/NAME
  std::string tokenizer = "bytes";  ///< as open_named_tokenizer() takes it
  ModelConfig model;
  DataConfig data;
  TrainConfig train;

  void describe(FieldVisitor& v);
  /// Fills derived defaults (run_folder, sequence_length) and throws ConfigError with the dotted
  /// key for the first impossible value. The model stays unresolved where its vocabulary is the
  /// tokenizer's; its sizes are checked all the same.
  Recipe resolved() const;
};

/// A recipe file with dotted overrides ("train.steps=100") applied.
struct LoadedRecipe {
  Recipe recipe;    ///< as written, not resolved
  ConfigNode root;  ///< the whole file with overrides, the key `compare` included
  /// The value of `compare` (kind null where absent); the recipe does not look into it.
  ConfigNode compare;
};

/// ConfigError for unknown keys (nearest name shown), wrong types, duplicate keys, with file:line.
LoadedRecipe load_recipe(const std::filesystem::path& path,
                         std::span<const std::string> overrides = {});

/// Parses a node that was loaded already; the key `compare` is ignored.
Recipe recipe_from_node(const ConfigNode& root);

/// Dotted keys whose values differ between two recipes and would change the numbers of a run:
/// "train.seed: 0, was 1". Keys of how far, how often and where (budgets, intervals, folders,
/// device, threads) do not count.
std::vector<std::string> recipe_differences(const nlohmann::ordered_json& before,
                                            const nlohmann::ordered_json& now);

}  // namespace fovea
