// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/recipe.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"
#include "fovea/base/paths.h"
#include "fovea/config/reader.h"
#include "fovea/nn/objectives.h"
#include "fovea/nn/parameter_set.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

// Beyond these a counter of tokens comes near the end of 64 bits.
constexpr double kMostStepTokens = 1e12, kMostTokensOfRun = 1e18;

void check_budget(const TrainConfig& train) {
  const int given = (train.steps > 0) + (train.tokens > 0) + (train.seconds > 0.0);
  if (train.stages.empty()) {
    require<ConfigError>(given == 1, "recipe",
                         "exactly one of 'train.steps', 'train.tokens' and 'train.seconds' must be "
                         "above 0; got {}, {} and {}: set the others to 0",
                         train.steps, train.tokens, train.seconds);
  } else {
    require<ConfigError>(given == 0, "recipe",
                         "with 'train.stages' the steps stand in each stage; remove 'train.steps', "
                         "'train.tokens' and 'train.seconds'");
  }
}

bool has_focus(const ModelConfig& model) { return model.attention.spec.focus.active(); }

/// The settings of one part of a run that learns; `prefix` is "train" or "train.stages.<n>".
void check_learning(const std::string& prefix, const std::string& trainable,
                    const std::string& objective, double straight_through_from,
                    const ModelConfig& model) {
  const bool focus = has_focus(model);
  const ParameterSet set = ParameterSet::parse(trainable, prefix + ".trainable");
  require<ConfigError>(focus || !set.names("focus"), "recipe",
                       "'{}.trainable: {}' needs 'model.attention.focus.gate'", prefix, trainable);
  require<ConfigError>(model.lora.active() || !set.names("lora"), "recipe",
                       "'{}.trainable: {}' needs 'model.lora.rank'", prefix, trainable);
  require<ConfigError>(
      !model.lora.active() || !(set.names("all") || set.names("base")), "recipe",
      "'model.lora' adapts a frozen base; set '{}.trainable' to lora, focus, focus+lora or added",
      prefix);
  require<ConfigError>(focus || straight_through_from >= 1.0, "recipe",
                       "'{}.straight_through_from' needs 'model.attention.focus.gate'", prefix);
  if (objective == "lm") return;
  const std::vector<NamedObjective> all = mechanism_objectives();
  const auto found = std::ranges::find(all, objective, &NamedObjective::name);
  if (found == all.end()) {
    std::vector<std::string> names{"lm"};
    for (const NamedObjective& o : all) names.emplace_back(o.name);
    fail<ConfigError>("recipe", "'{}.objective': expected one of {}; got '{}'{}", prefix,
                      fmt::join(names, ", "), objective, did_you_mean(objective, names));
  }
  require<ConfigError>(set == ParameterSet::parse(std::string(found->mechanism), prefix), "recipe",
                       "'{}.objective: {}' trains {} alone, over a frozen base; set "
                       "'{}.trainable: {}'",
                       prefix, objective, found->mechanism, prefix, found->mechanism);
}

/// Tokens of `steps` steps; every factor is inside its range, their products may be too large.
void check_products(const std::string& prefix, double rows, double accumulation, double length,
                    double steps) {
  const double step = rows * accumulation * length;
  require<ConfigError>(step <= kMostStepTokens, "recipe",
                       "'{}': a step must have at most {} tokens; got {} rows x {} micro-batches x "
                       "{} tokens",
                       prefix, plain_number(kMostStepTokens), plain_number(rows),
                       plain_number(accumulation), plain_number(length));
  require<ConfigError>(step * steps <= kMostTokensOfRun, "recipe",
                       "'{}.steps' of {} tokens each make more than {} tokens; got {} steps",
                       prefix, plain_number(step), plain_number(kMostTokensOfRun),
                       plain_number(steps));
}

void check_sizes(const TrainConfig& train) {
  const auto real = [](int64_t n) { return static_cast<double>(n); };
  check_products("train", real(train.batch_rows), real(train.accumulation),
                 real(train.sequence_length), real(train.steps));
  for (size_t i = 0; i < train.stages.size(); ++i) {
    const StageConfig& stage = train.stages[i];
    check_products(fmt::format("train.stages.{}", i),
                   real(stage.batch_rows > 0 ? stage.batch_rows : train.batch_rows),
                   real(train.accumulation),
                   real(stage.sequence_length > 0 ? stage.sequence_length : train.sequence_length),
                   real(stage.steps));
    require<ConfigError>(stage.rope_theta == 0.0 || stage.rope_theta > 1.0, "recipe",
                         "'train.stages.{}.rope_theta' must be above 1, or 0 for the model's; got "
                         "{}",
                         i, stage.rope_theta);
  }
}

void check_train(const TrainConfig& train, const ModelConfig& model) {
  check_budget(train);
  check_sizes(train);
  require<ConfigError>(train.sequence_length <= model.context, "recipe",
                       "'train.sequence_length' must be at most 'model.context' ({}); got {}",
                       model.context, train.sequence_length);
  const auto& attention = model.attention;
  const bool sharper =
      attention.spec.temperature.kind == TemperatureSpec::Kind::constant &&
      (attention.spec.temperature.value != 1.0 || !attention.temperature_per_layer.empty());
  require<ConfigError>(!train.temperature_ramp || sharper, "recipe",
                       "'train.temperature_ramp' moves a constant temperature from 1 to its value; "
                       "set 'model.attention.spec.temperature.value', or remove it");
  require<ConfigError>(train.trainable != "inherit" && train.objective != "inherit", "recipe",
                       "'train.trainable' and 'train.objective' cannot inherit; only stages can");
  if (train.stages.empty())
    check_learning("train", train.trainable, train.objective, train.straight_through_from, model);
  for (size_t i = 0; i < train.stages.size(); ++i) {
    const StageConfig& stage = train.stages[i];
    check_learning(fmt::format("train.stages.{}", i), stage.trainable_of(train),
                   stage.objective_of(train), stage.straight_through_of(train), model);
  }
}

/// Gives each stage the schedule keys of train.schedule that it leaves out.
void inherit_schedules(ConfigNode& root) {
  ConfigNode* train = root.find("train");
  ConfigNode* stages = train != nullptr ? train->find("stages") : nullptr;
  const ConfigNode* schedule = train != nullptr ? train->find("schedule") : nullptr;
  if (stages == nullptr || schedule == nullptr || schedule->kind != ConfigNode::Kind::map) return;
  for (ConfigNode& stage : stages->items) {
    if (stage.kind != ConfigNode::Kind::map) continue;
    ConfigNode* own = stage.find("schedule");
    if (own == nullptr) {
      stage.fields.push_back({"schedule", *schedule});
      continue;
    }
    ConfigNode merged = *schedule;
    // The two ways to give a warm-up exclude each other: a stage's own fraction beats inherited
    // steps.
    if (own->find("warmup_fraction") != nullptr && own->find("warmup_steps") == nullptr) {
      std::erase_if(merged.fields, [](const auto& field) { return field.first == "warmup_steps"; });
    }
    merge_into(merged, *own);
    merged.place = own->place;
    *own = std::move(merged);
  }
}

void flatten(const Json& value, const std::string& prefix,
             std::map<std::string, std::string>& out) {
  const bool group =
      (value.is_object() || (value.is_array() && !value.empty() && value.front().is_object()));
  if (!group) {
    out[prefix] = value.dump();
    return;
  }
  size_t index = 0;
  for (const auto& [key, item] : value.items()) {
    const std::string name = value.is_array() ? std::to_string(index++) : key;
    flatten(item, prefix.empty() ? name : prefix + "." + name, out);
  }
}

/// Keys of how far, how often and where; the data is compared by the fingerprint of its content.
bool may_differ(const std::string& key) {
  static constexpr std::array<std::string_view, 20> keys = {"name",
                                                            "run_folder",
                                                            "train.steps",
                                                            "train.tokens",
                                                            "train.seconds",
                                                            "train.device",
                                                            "train.nan_policy",
                                                            "train.evaluation_interval",
                                                            "train.evaluation_tokens",
                                                            "train.evaluation_rows",
                                                            "train.checkpoint_interval",
                                                            "train.keep_checkpoints",
                                                            "train.log_interval",
                                                            "train.gradient_checkpointing",
                                                            "train.shard",
                                                            "train.threads",
                                                            "train.init_from",
                                                            "train.resume",
                                                            "tokenizer",
                                                            "train.stages"};
  const bool stage_budget = key.starts_with("train.stages.") && key.ends_with(".steps");
  return std::find(keys.begin(), keys.end(), key) != keys.end() || key.starts_with("data.") ||
         stage_budget;
}

}  // namespace

std::span<const std::string_view> enum_names(NanPolicy) {
  static constexpr std::array<std::string_view, 2> names = {"stop", "skip"};
  return names;
}
std::span<const std::string_view> enum_names(ResumePolicy) {
  static constexpr std::array<std::string_view, 3> names = {"auto", "never", "must"};
  return names;
}

std::span<const std::string_view> enum_names(Shard) {
  static constexpr std::array<std::string_view, 2> names = {"moments", "all"};
  return names;
}

void OptimizerConfig::describe(FieldVisitor& v) {
  v.real({"learning_rate", "peak learning rate of AdamW", ranges::kNotNegative}, learning_rate);
  v.real({"beta1", "decay of the mean of gradients", ranges::kBelowOne}, beta1);
  v.real({"beta2", "decay of the mean of squared gradients", ranges::kBelowOne}, beta2);
  v.real({"eps", "added to the root of the squared mean", ranges::kPositive}, eps);
  v.real({"weight_decay", "decoupled; not on norms, biases and temperatures", ranges::kNotNegative},
         weight_decay);
  v.boolean({"decay_all", "weight decay on those too"}, decay_all);
  v.real({"clip", "largest global norm of the gradient; 0 = off", ranges::kNotNegative}, clip);
}

void StageConfig::describe(FieldVisitor& v) {
  v.text({"name", "shown in progress and metrics"}, name);
  v.integer({"steps", "optimizer steps of this stage", {1, 1e12}}, steps);
  v.integer({"sequence_length", "tokens a row; 0 = train.sequence_length", ranges::kPositionCounts},
            sequence_length);
  v.integer({"batch_rows", "rows of a micro-batch; 0 = train.batch_rows", {0, ranges::kMostRows}},
            batch_rows);
  v.real({"rope_theta", "base of the rotary positions; 0 = model.rope.theta", {0, 1e18}},
         rope_theta);
  v.real({"learning_rate", "peak; 0 = train.optimizer.learning_rate", ranges::kNotNegative},
         learning_rate);
  v.real({"weight_decay", "-1 = train.optimizer.weight_decay", {-1, 1e30}}, weight_decay);
  v.nested({"schedule", "keys left out are those of train.schedule"}, schedule);
  v.boolean({"carry_optimizer", "keep the optimizer's state of the stage before; false = fresh"},
            carry_optimizer);
  v.text({"trainable", "as train.trainable; inherit = the same"}, trainable);
  v.text({"objective", "as train.objective; inherit = the same"}, objective);
  v.real({"straight_through_from", "share of the stage; -1 = train.straight_through_from", {-1, 1}},
         straight_through_from);
}

const std::string& StageConfig::trainable_of(const TrainConfig& train) const {
  return trainable == "inherit" ? train.trainable : trainable;
}
const std::string& StageConfig::objective_of(const TrainConfig& train) const {
  return objective == "inherit" ? train.objective : objective;
}
double StageConfig::straight_through_of(const TrainConfig& train) const {
  return straight_through_from < 0.0 ? train.straight_through_from : straight_through_from;
}

void TrainConfig::describe(FieldVisitor& v) {
  v.integer({"steps", "budget in optimizer steps (one of steps, tokens, seconds)", ranges::kSteps},
            steps);
  v.integer({"tokens", "budget in input tokens", ranges::kRunTokens}, tokens);
  v.real({"seconds", "budget in seconds of training; the schedule follows the clock", {0, 1e12}},
         seconds);
  v.integer({"batch_rows", "rows of one micro-batch", {1, ranges::kMostRows}}, batch_rows);
  v.integer({"accumulation", "micro-batches of one step", {1, ranges::kMostRows}}, accumulation);
  v.integer({"sequence_length", "tokens a row; 0 = model.context", ranges::kPositionCounts},
            sequence_length);
  v.nested({"optimizer", "AdamW"}, optimizer);
  v.nested({"schedule", "learning rate over the run"}, schedule);
  v.real({"z_loss", "alpha of alpha (ln Z)^2, added to the loss that is trained on; 0 = off",
          ranges::kNotNegative},
         z_loss);
  v.boolean(
      {"temperature_ramp",
       "constant temperatures move from 1 to their value over the warm-up of the first stage"},
      temperature_ramp);
  v.choice({"dtype", "auto, float32, bfloat16: of activations and matrix products"}, dtype);
  v.choice({"device", "auto, cpu, cuda"}, device);
  v.choice({"attention_path", "automatic, fused, reference"}, attention_path);
  v.integer({"seed", "of initialisation, data order and dropout", ranges::kSeeds}, seed);
  v.choice({"nan_policy", "stop, skip: what to do when the loss is not finite"}, nan_policy);
  v.integer(
      {"evaluation_interval", "steps between evaluations; 0 = at the end only", ranges::kSteps},
      evaluation_interval);
  v.integer({"evaluation_tokens", "validation tokens per source", {1, 1e15}}, evaluation_tokens);
  v.integer({"evaluation_rows", "rows at a time; 0 = batch_rows", {0, ranges::kMostRows}},
            evaluation_rows);
  v.integer(
      {"checkpoint_interval", "steps between checkpoints; 0 = at the end only", ranges::kSteps},
      checkpoint_interval);
  v.integer({"keep_checkpoints", "newest checkpoints that stay", {1, 1e12}}, keep_checkpoints);
  v.integer({"log_interval", "steps between lines of metrics.jsonl", {1, 1e12}}, log_interval);
  v.boolean({"gradient_checkpointing", "recompute activations in the backward pass: less memory"},
            gradient_checkpointing);
  v.choice({"shard",
            "moments, all: what each of several ranks has a part of; all cuts the layers' weights "
            "and gradients too and recomputes activations"},
           shard);
  v.integer(
      {"loss_chunk", "rows of logits at a time; 0 = the model's default", ranges::kPositionCounts},
      loss_chunk);
  v.integer({"threads", "CPU threads; 0 = torch's choice", ranges::kThreads}, threads);
  v.text({"trainable", "what learns: all, base, added, or mechanisms as in focus+lora"}, trainable);
  v.text({"objective", "lm, or kept_mass, distillation of Focus over a frozen base"}, objective);
  v.real({"straight_through_from",
          "share of the run after which Focus prunes with the gradient of its gate; 1 = never",
          ranges::kShare},
         straight_through_from);
  v.text({"init_from", "start from the weights of this run, checkpoint or model folder"},
         init_from);
  v.choice({"resume", "auto, never, must: continue what the run folder holds"}, resume);
  v.nested_list({"stages", "parts of the run, one after the other"}, stages);
}

void Recipe::describe(FieldVisitor& v) {
  v.text({"name", "of the run; runs/<name> is the default run folder"}, name);
  v.text({"run_folder", "where everything is written; '' = runs/<name>"}, run_folder);
  v.text({"tokenizer",
          "bytes; or a tokenizer.json, SentencePiece model or tiktoken file (FILE:ENCODING), or a "
          "model: a folder that holds one of these, or a .gguf file"},
         tokenizer);
  v.nested({"model", "the decoder"}, model);
  v.nested({"data", "the text"}, data);
  v.nested({"train", "how to train"}, train);
}

Recipe Recipe::resolved() const {
  Recipe out = *this;
  check_fields("recipe", out);
  require<ConfigError>(!out.name.empty(), "recipe", "'name' must not be empty");
  if (out.run_folder.empty()) {
    const std::string why = why_no_file_name(out.name);
    require<ConfigError>(
        why.empty(), "recipe",
        "'name' names the folder runs/NAME, and '{}' cannot: {}; change it, or set "
        "'run_folder'",
        out.name, why);
    out.run_folder = "runs/" + out.name;
  }
  if (out.train.sequence_length == 0) out.train.sequence_length = out.model.context;
  // With a vocabulary that is not known yet, every other size of the model can be judged already.
  (void)out.model.resolved(out.model.vocab_size > 0 ? out.model.vocab_size : 256);
  out.data.check();
  check_train(out.train, out.model);
  if (out.train.shard == Shard::all) out.train.gradient_checkpointing = true;
  return out;
}

Recipe recipe_from_node(const ConfigNode& root) {
  ConfigNode node = root;
  std::erase_if(node.fields, [](const auto& field) { return field.first == "compare"; });
  inherit_schedules(node);
  Recipe recipe;
  read_fields(node, recipe);
  return recipe;
}

LoadedRecipe load_recipe(const std::filesystem::path& path,
                         std::span<const std::string> overrides) {
  LoadedRecipe loaded;
  loaded.root = load_yaml(path);
  for (const std::string& assignment : overrides) set_override(loaded.root, assignment);
  if (const ConfigNode* compare = loaded.root.find("compare")) loaded.compare = *compare;
  loaded.recipe = recipe_from_node(loaded.root);
  return loaded;
}

std::vector<std::string> recipe_differences(const Json& before, const Json& now) {
  std::map<std::string, std::string> old_values, new_values;
  flatten(before, "", old_values);
  flatten(now, "", new_values);
  std::vector<std::string> out;
  for (const auto& [key, value] : new_values) {
    const auto found = old_values.find(key);
    const std::string was = found != old_values.end() ? found->second : "absent";
    if (was != value && !may_differ(key))
      out.push_back(fmt::format("{}: {}, was {}", key, value, was));
  }
  for (const auto& [key, value] : old_values) {
    if (!new_values.contains(key) && !may_differ(key)) {
      out.push_back(fmt::format("{}: absent, was {}", key, value));
    }
  }
  return out;
}

}  // namespace fovea
