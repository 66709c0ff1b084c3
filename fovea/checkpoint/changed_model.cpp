// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/changed_model.h"

#include <optional>
#include <utility>

#include "fovea/checkpoint/adapter.h"
#include "fovea/config/reader.h"

namespace fovea {

ModelConfig with_attention_keys(ModelConfig config, const std::vector<std::string>& keys) {
  ConfigNode node = ConfigNode::make_map("model.attention");
  for (const std::string& key : keys) set_override(node, key);
  read_fields(node, config.attention);
  return config.resolved(config.vocab_size);
}

namespace {

/// LoRA upon LoRA: the first goes into the weights.
Transformer adapted(const Transformer& model, const Adapter& adapter) {
  const bool both = adapter.settings.active() && model.config().lora.active();
  return both ? with_adapter(merge_adapter(model), adapter) : with_adapter(model, adapter);
}

/// The adapters one after the other, then the keys of attention.
LoadedModel with_adapters(const LoadedModel& base, const ModelChange& change) {
  std::optional<Transformer> model;
  std::vector<std::string> drawn;
  for (const std::string& folder : change.adapters) {
    const Adapter adapter = read_adapter(folder, base.config);
    model.emplace(adapted(model ? *model : base.model, adapter));
  }
  if (!change.attention.empty())
    model.emplace(
        with_config(*model, with_attention_keys(model->config(), change.attention), drawn));
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
  const auto with_attention = [&](const ModelConfig& c) {
    return with_attention_keys(c, change.attention);
  };
  const bool adapters = !change.adapters.empty();
  // An adapter is put on the weights as they are, before they are rounded.
  LoadedModel loaded =
      load_model(folder, device, adapters ? MatrixStorage{} : matrices,
                 change.attention.empty() || adapters ? ConfigChange() : with_attention);
  if (!adapters) return loaded;
  LoadedModel adapted = with_adapters(loaded, change);
  hold_matrices(adapted, folder, device, matrices);
  return adapted;
}

}  // namespace fovea
