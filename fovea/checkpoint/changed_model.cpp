// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/changed_model.h"

#include <optional>
#include <utility>

#include "fovea/base/error.h"
#include "fovea/checkpoint/adapter.h"
#include "fovea/config/reader.h"

namespace fovea {

ModelConfig with_attention_keys(ModelConfig config, const std::vector<std::string>& keys) {
  ConfigNode node = ConfigNode::make_map("model.attention");
  for (const std::string& key : keys) set_override(node, key);
  read_fields(node, config.attention);
  return config.resolved(config.vocab_size);
}

ModelConfig with_rope_keys(ModelConfig config, const std::vector<std::string>& keys) {
  ConfigNode node = ConfigNode::make_map("model.rope");
  for (const std::string& key : keys) {
    require<ConfigError>(key.starts_with("theta=") || key.starts_with("scaling."), "model.rope",
                         "expected theta=NUMBER or scaling.KEY=VALUE; got '{}': other keys of rope "
                         "belong to the weights",
                         key);
    set_override(node, key);
  }
  read_fields(node, config.rope);
  RopeScaling& scaling = config.rope.scaling;
  if (scaling.kind != RopeScaling::Kind::none && scaling.original_context == 0)
    scaling.original_context = config.context;
  return config.resolved(config.vocab_size);
}

namespace {

ModelConfig changed(const ModelConfig& config, const ModelChange& change) {
  const ModelConfig stretched = change.rope.empty() ? config : with_rope_keys(config, change.rope);
  return change.attention.empty() ? stretched : with_attention_keys(stretched, change.attention);
}

/// LoRA upon LoRA: the first goes into the weights.
Transformer adapted(const Transformer& model, const Adapter& adapter) {
  const bool both = adapter.settings.active() && model.config().lora.active();
  return both ? with_adapter(merge_adapter(model), adapter) : with_adapter(model, adapter);
}

/// The adapters one after the other, then the keys of attention and rope.
LoadedModel with_adapters(const LoadedModel& base, const ModelChange& change) {
  std::optional<Transformer> model;
  std::vector<std::string> drawn;
  for (const std::string& folder : change.adapters) {
    const Adapter adapter = read_adapter(folder, base.config);
    model.emplace(adapted(model ? *model : base.model, adapter));
  }
  if (change.of_config())
    model.emplace(with_config(*model, changed(model->config(), change), drawn));
  const ModelConfig config = model->config();
  return {config, std::move(*model), base.tokenizer, base.chat_template, std::move(drawn)};
}

/// Matrices that no adapter changes stay in the blocks of the file.
void hold_matrices(LoadedModel& loaded, const std::filesystem::path& folder, at::Device device,
                   const MatrixStorage& matrices) {
  if (matrices.trainable()) return;
  if (!matrices.as_stored || matrices.packed || loaded.model.config().lora.active())
    return hold_matrices(loaded.model, matrices);
  const LoadedModel stored = load_model(folder, device, matrices);
  hold_matrices(loaded.model, matrices, &stored.model);
}

}  // namespace

LoadedModel load_changed(const std::filesystem::path& folder, const ModelChange& change,
                         at::Device device, const MatrixStorage& matrices) {
  const auto with_keys = [&](const ModelConfig& c) { return changed(c, change); };
  const bool adapters = !change.adapters.empty();
  // An adapter is put on the weights as they are, before they are rounded.
  LoadedModel loaded = load_model(folder, device, adapters ? MatrixStorage{} : matrices,
                                  !change.of_config() || adapters ? ConfigChange() : with_keys);
  if (!adapters) return loaded;
  LoadedModel adapted = with_adapters(loaded, change);
  hold_matrices(adapted, folder, device, matrices);
  return adapted;
}

}  // namespace fovea
