// The parts of a run that a stage changes: model, optimizer, loader, validation batches.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "fovea/base/error.h"
#include "fovea/checkpoint/model_folder.h"
#include "fovea/checkpoint/weights_elsewhere.h"
#include "fovea/train/trainer_impl.h"

namespace fovea {
namespace {

constexpr int64_t kBatchesReady = 4;

/// The model of a stage: another theta, and a context that holds the stage's rows.
ModelConfig stage_config(const ModelConfig& base, const StageSchedule& stage) {
  ModelConfig config = base;
  config.rope.theta = stage.rope_theta;
  config.context = std::max(config.context, stage.sequence_length);
  return config;
}

void set_compute(Transformer& model, const TrainConfig& train) {
  ComputeOptions& compute = model.compute();
  compute.dtype = train.dtype == DtypeChoice::bfloat16 ? at::kBFloat16 : at::kFloat;
  compute.checkpoint_layers = train.gradient_checkpointing;
  compute.attention_path = train.attention_path;
  if (train.loss_chunk > 0) compute.loss_chunk = train.loss_chunk;
}

}  // namespace

void Trainer::Impl::build_model() {
  const bool from_files = !recipe.train.init_from.empty() || state.step > 0;
  const bool awaited = from_files || shards_layers();
  model = std::make_unique<Transformer>(stage_config(recipe.model, stage()),
                                        static_cast<uint64_t>(recipe.train.seed), device,
                                        awaited ? FirstNumbers::awaited : FirstNumbers::drawn);
  set_compute(*model, recipe.train);
  if (shards_layers()) {
    layers = std::make_unique<ShardedLayers>(*model, ranks);
    if (!from_files) layers->draw();
  }
  if (recipe.train.init_from.empty() || state.step > 0) return;
  const auto folder =
      resolve_model_folder(recipe.train.init_from, [&](std::string_view text) { warn(text); });
  const std::vector<std::string> fresh = read_weights(folder);
  message(fmt::format(
      "weights from '{}'{}", folder.string(),
      fresh.empty() ? "" : fmt::format("; {} added parameters start fresh", fresh.size())));
}

std::vector<std::string> Trainer::Impl::read_weights(const std::filesystem::path& folder) {
  if (!layers) return load_weights(folder, *model);
  std::vector<std::string> missing =
      read_weights_into(folder, *model, [&](Parameter& parameter, const at::Tensor& stored) {
        if (!layers->has(parameter)) return parameter.value.copy_(stored);
        layers->set(parameter, stored);
        return layers->own_value(parameter);
      });
  for (const std::string& name : missing) model->parameters().draw(*model->parameters().find(name));
  return missing;
}

void Trainer::Impl::enter_stage(bool first) {
  const ModelConfig config = stage_config(recipe.model, stage());
  std::unique_ptr<Transformer> before;
  std::unique_ptr<ShardedLayers> layers_before;
  if (!first && config != model->config()) {
    const at::NoGradGuard no_grad;
    before = std::move(model);
    model = std::make_unique<Transformer>(config, 0, device, FirstNumbers::awaited);
    set_compute(*model, recipe.train);
    if (layers) {
      layers_before = std::move(layers);
      layers = std::make_unique<ShardedLayers>(*model, ranks);
      layers->take(*layers_before);
    }
    for (Parameter& parameter : model->parameters().all()) {
      if (layers && layers->has(parameter)) continue;
      parameter.value.copy_(before->parameters().find(parameter.name)->value);
    }
  }
  train_only_stage(*model, stage());
  OptimizerConfig settings = recipe.train.optimizer;
  settings.weight_decay = stage().weight_decay;
  require<UnsupportedError>(
      !layers || stage().objective == "lm", "train",
      "'train.shard: all' trains the objective lm; got '{}': set 'train.shard: moments'",
      stage().objective);
  auto fresh = std::make_unique<AdamW>(model->parameters(), settings, ranks, AdamW::kFewestToShard,
                                       layers.get());
  if (!first && stage().carry_optimizer) {
    require<ConfigError>(
        stage().trainable == stages[state.stage - 1].trainable, "recipe",
        "'train.stages.{}.carry_optimizer' needs the same 'trainable' as the stage "
        "before; set carry_optimizer: false",
        state.stage);
    fresh->take_state(*optimizer);
  }
  optimizer = std::move(fresh);
  gradients = std::make_unique<GradientBuckets>(model->parameters(), ranks);
  build_loader();
  validation.clear();
  if (!first) message(fmt::format("stage '{}' begins at step {}", stage().name, state.step));
}

void Trainer::Impl::build_loader() {
  loader.reset();
  loader = std::make_unique<Loader>(
      std::make_unique<BatchStream>(
          corpus,
          stream_options(stage(), static_cast<size_t>(state.stage), recipe.train.seed, ranks)),
      kBatchesReady);
}

void Trainer::Impl::build_validation() {
  const int64_t rows =
      recipe.train.evaluation_rows > 0 ? recipe.train.evaluation_rows : stage().batch_rows;
  validation.clear();
  for (size_t i = 0; i < corpus->sources().size(); ++i) {
    validation.push_back(validation_batches(*corpus, i, stage().sequence_length, rows,
                                            recipe.train.evaluation_tokens));
  }
}

}  // namespace fovea
