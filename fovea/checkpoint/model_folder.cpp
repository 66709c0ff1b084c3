// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/model_folder.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/base/nearest_name.h"
#include "fovea/checkpoint/safetensors.h"
#include "fovea/config/reader.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kConfig = "config.json", kWeights = "model.safetensors",
                           kTokenizer = "tokenizer.json";

/// Buffers that other programs store beside the weights (spec 8.0), and the copy of a tied head.
bool may_be_ignored(std::string_view name, bool tied) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq") || (tied && name == "lm_head.weight");
}

fs::path existing_file(const fs::path& folder, std::string_view name) {
  fs::path path = folder / name;
  if (!fs::is_regular_file(path)) {
    fail<CheckpointError>(
        folder.string(),
        "a model folder holds {}, {} and {}; '{}' is missing: check the path, or copy "
        "the folder again",
        kConfig, kWeights, kTokenizer, name);
  }
  return path;
}

struct Mismatch {
  std::vector<std::string> missing, missing_added, shapes;
};

/// Copies what fits and collects what does not.
Mismatch copy_weights(const SafetensorsFile& file, ParameterRegistry& parameters) {
  const at::NoGradGuard no_grad;
  Mismatch mismatch;
  for (Parameter& parameter : parameters.all()) {
    const SafetensorsEntry* entry = file.find(parameter.name);
    if (entry == nullptr) {
      const bool added = parameter.origin == Parameter::Origin::added;
      (added ? mismatch.missing_added : mismatch.missing).push_back(parameter.name);
    } else if (entry->shape != parameter.value.sizes().vec()) {
      mismatch.shapes.push_back(fmt::format("'{}' must be [{}]; got [{}]", parameter.name,
                                            fmt::join(parameter.value.sizes().vec(), ", "),
                                            fmt::join(entry->shape, ", ")));
    } else {
      parameter.value.copy_(file.tensor(parameter.name));
    }
  }
  return mismatch;
}

std::vector<std::string> unexpected_names(const SafetensorsFile& file, const Transformer& model) {
  std::vector<std::string> out;
  for (const SafetensorsEntry& entry : file.entries()) {
    const bool known = model.parameters().find(entry.name) != nullptr;
    if (!known && !may_be_ignored(entry.name, model.config().tied)) out.push_back(entry.name);
  }
  return out;
}

[[noreturn]] void fail_names(const fs::path& path, std::string_view what,
                             const std::vector<std::string>& names) {
  constexpr size_t shown = 8;
  const auto end = names.begin() + static_cast<ptrdiff_t>(std::min(shown, names.size()));
  fail<CheckpointError>(
      path.string(), "{}: {}{}; these weights are of another model", what,
      fmt::join(names.begin(), end, ", "),
      names.size() > shown ? fmt::format(" and {} more", names.size() - shown) : "");
}

ModelConfig config_from(const ConfigNode& root, const fs::path& path) {
  const ConfigNode* fovea = root.find("fovea");
  const ConfigNode* model = fovea != nullptr ? fovea->find("model") : nullptr;
  if (model == nullptr) {
    const ConfigNode* type = root.find("model_type");
    fail<UnsupportedError>(
        path.string(),
        "expected a model folder written by Fovea (key 'fovea.model'); this one is a "
        "plain '{}' folder, which cannot be loaded yet",
        type != nullptr ? type->scalar : "unknown");
  }
  ModelConfig config;
  read_fields(*model, config, "fovea.model");
  if (config.vocab_size < 1) {
    fail<ConfigError>(path.string(), "'fovea.model.vocab_size' must be at least 1; got {}",
                      config.vocab_size);
  }
  return config.resolved(config.vocab_size);
}

}  // namespace

Json model_config_json(const ModelConfig& config, const Tokenizer& tokenizer) {
  const bool norms = config.qk_norm == QkNorm::head_rms;
  const auto id = [](int32_t token) { return token >= 0 ? Json(token) : Json(nullptr); };
  return {{"architectures", {norms ? "Qwen3ForCausalLM" : "LlamaForCausalLM"}},
          {"model_type", norms ? "qwen3" : "llama"},
          {"vocab_size", config.vocab_size},
          {"hidden_size", config.width},
          {"intermediate_size", config.ffn_width},
          {"num_hidden_layers", config.layers},
          {"num_attention_heads", config.heads},
          {"num_key_value_heads", config.kv_heads},
          {"head_dim", config.head_dim},
          {"max_position_embeddings", config.context},
          {"rms_norm_eps", config.norm_eps},
          {"rope_theta", config.rope.theta},
          {"hidden_act", "silu"},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"attention_dropout", config.attention.dropout},
          {"tie_word_embeddings", config.tied},
          {"bos_token_id", id(tokenizer.bos())},
          {"eos_token_id", id(tokenizer.eos())},
          {"pad_token_id", id(tokenizer.pad())},
          {"torch_dtype", "float32"},
          {"fovea", {{"tokenizer", tokenizer.fingerprint()}, {"model", fields_to_json(config)}}}};
}

ModelConfig load_model_config(const fs::path& folder) {
  const fs::path path = existing_file(folder, kConfig);
  try {
    return config_from(parse_json(read_file(path), path.string()), path);
  } catch (const ConfigError& error) {
    throw CheckpointError(error.what());
  }
}

void save_model(const fs::path& folder, const Transformer& model, const Tokenizer& tokenizer) {
  make_folders(folder);
  TensorMap tensors;
  for (const Parameter& parameter : model.parameters().all()) {
    tensors.emplace(parameter.name, parameter.value);
  }
  write_safetensors(folder / kWeights, tensors, {{"format", "pt"}});
  write_file(folder / kTokenizer, tokenizer.to_json());
  write_file(folder / kConfig, model_config_json(model.config(), tokenizer).dump(2) + "\n");
}

LoadedModel load_model(const fs::path& folder, at::Device device) {
  const ModelConfig config = load_model_config(folder);
  const fs::path tokenizer_path = existing_file(folder, kTokenizer);
  const SafetensorsFile file(existing_file(folder, kWeights));
  std::shared_ptr<const Tokenizer> tokenizer;
  try {
    tokenizer = load_tokenizer(tokenizer_path);
  } catch (const InputError& error) {
    throw CheckpointError(error.what());
  }
  if (tokenizer->vocab_size() > config.vocab_size) {
    fail<CheckpointError>(
        folder.string(), "the tokenizer has {} ids, the model only {}; they do not belong together",
        tokenizer->vocab_size(), config.vocab_size);
  }
  LoadedModel loaded{config, Transformer(config, 0, device), std::move(tokenizer)};
  const Mismatch mismatch = copy_weights(file, loaded.model.parameters());
  if (!mismatch.missing.empty()) fail_names(file.path(), "missing tensors", mismatch.missing);
  if (!mismatch.missing_added.empty()) {
    fail_names(file.path(), "missing tensors", mismatch.missing_added);
  }
  if (!mismatch.shapes.empty()) fail_names(file.path(), "wrong shapes", mismatch.shapes);
  const auto unexpected = unexpected_names(file, loaded.model);
  if (!unexpected.empty()) fail_names(file.path(), "unexpected tensors", unexpected);
  return loaded;
}

std::vector<std::string> load_weights(const fs::path& folder, Transformer& model) {
  const SafetensorsFile file(existing_file(folder, kWeights));
  const auto unexpected = unexpected_names(file, model);
  if (!unexpected.empty()) fail_names(file.path(), "unexpected tensors", unexpected);
  Mismatch mismatch = copy_weights(file, model.parameters());
  if (!mismatch.missing.empty()) fail_names(file.path(), "missing tensors", mismatch.missing);
  if (!mismatch.shapes.empty()) fail_names(file.path(), "wrong shapes", mismatch.shapes);
  return mismatch.missing_added;
}

}  // namespace fovea
