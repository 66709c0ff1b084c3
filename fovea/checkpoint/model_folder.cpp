// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/model_folder.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/base/nearest_name.h"
#include "fovea/base/paths.h"
#include "fovea/checkpoint/families.h"
#include "fovea/checkpoint/family_weights.h"
#include "fovea/checkpoint/model_file.h"
#include "fovea/checkpoint/weight_files.h"
#include "fovea/checkpoint/weights_elsewhere.h"
#include "fovea/config/reader.h"
#include "fovea/nn/lora.h"
#include "fovea/nn/weight_fill.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kConfig = "config.json", kTokenizer = "tokenizer.json",
                           kTokenizerConfig = "tokenizer_config.json";

constexpr ReadLimit kLargestConfig{"a config.json", 64 << 20};
/// Bytes of the files that stay in memory while they are read.
constexpr size_t kReadAhead = 32 << 20;

/// Buffers that other programs store beside the weights (spec 8.0), and the copy of a tied head.
bool may_be_ignored(std::string_view name, bool tied) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq") || (tied && name == "lm_head.weight");
}

std::string_view dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "float32";
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    default:
      fail<ConfigError>("model folder",
                        "weights are stored as float32, bfloat16 or float16; got {}",
                        at::toString(dtype));
  }
}

fs::path existing_file(const fs::path& folder, std::string_view name) {
  fs::path path = folder / name;
  if (!is_file(path)) {
    fail<CheckpointError>(
        folder.string(),
        "a model folder holds {}, model.safetensors (or shards and their index) and {}; '{}' is "
        "missing: check the path, or copy the folder again",
        kConfig, kTokenizer, name);
  }
  return path;
}

/// Bits of a float read as an integer would be other numbers, silently.
void require_floats(const FamilyWeights& family, const WeightSource& file,
                    const ParameterRegistry& parameters) {
  for (const std::string& name : family.stored_names(file, parameters.names())) {
    const StoredTensor* entry = file.find(name);
    require<CheckpointError>(
        entry == nullptr || at::isFloatingType(entry->dtype), file.path().string(),
        "'{}' must hold floating-point numbers; got {}; the file is damaged or "
        "quantised in a way that is not read",
        name, entry == nullptr ? "" : safetensors_dtype(entry->dtype));
  }
}

void require_finite(const std::filesystem::path& path, const std::string& name,
                    const at::Tensor& numbers) {
  require<NumericalError>(is_finite(numbers), path.string(),
                          "'{}' holds NaN or infinity: the training diverged or the file is "
                          "damaged; take an earlier checkpoint, or get the file again",
                          name);
}

std::vector<int64_t> plain_shape(const at::Tensor& stored) {
  return is_packed(stored) ? std::vector{stored.size(0), matrix_inputs(stored)}
                           : stored.sizes().vec();
}

struct Mismatch {
  std::vector<std::string> missing, missing_added, shapes;
};

/// Gives `set` what fits and collects what does not.
Mismatch read_weights(const FamilyWeights& family, const WeightSource& file,
                      ParameterRegistry& parameters, const ParameterSetter& set) {
  require_floats(family, file, parameters);
  Mismatch mismatch;
  size_t read = 0;
  for (Parameter& parameter : parameters.all()) {
    const at::Tensor stored = family.read(file, parameter.name);
    if (!stored.defined()) {
      const bool added = parameter.origin == Parameter::Origin::added;
      (added ? mismatch.missing_added : mismatch.missing).push_back(parameter.name);
    } else if (plain_shape(stored) != parameter.value.sizes().vec()) {
      mismatch.shapes.push_back(fmt::format("'{}' must be [{}]; got [{}]", parameter.name,
                                            fmt::join(parameter.value.sizes().vec(), ", "),
                                            fmt::join(plain_shape(stored), ", ")));
    } else {
      require_finite(file.path(), parameter.name, set(parameter, stored));
      // What was read is not held twice.
      if ((read += stored.nbytes()) < kReadAhead) continue;
      file.release_pages();
      read = 0;
    }
  }
  return mismatch;
}

std::vector<std::string> unexpected_names(const FamilyWeights& family, const WeightSource& file,
                                          const Transformer& model) {
  const std::vector<std::string> expected = family.stored_names(file, model.parameters().names());
  const std::set<std::string, std::less<>> names(expected.begin(), expected.end());
  std::vector<std::string> out;
  for (std::string& name : file.names()) {
    const bool known = names.contains(name);
    if (!known && !may_be_ignored(name, model.config().tied)) out.push_back(std::move(name));
  }
  return out;
}

[[noreturn]] void fail_names(const fs::path& path, std::string_view what,
                             const std::vector<std::string>& names) {
  constexpr size_t shown = 8;
  const bool adapter = what == "unexpected tensors" &&
                       std::ranges::any_of(names, [](const auto& name) { return is_lora(name); });
  const auto end = names.begin() + static_cast<ptrdiff_t>(std::min(shown, names.size()));
  fail<CheckpointError>(
      path.string(), "{}: {}{}; these weights are of another model{}", what,
      fmt::join(names.begin(), end, ", "),
      names.size() > shown ? fmt::format(" and {} more", names.size() - shown) : "",
      adapter ? " (they have a LoRA adapter: set model.lora as it was trained, or merge it with "
                "`fovea export --merge`)"
              : "");
}

/// Of a folder that Fovea wrote: the whole config under one key; of another: the family's keys.
ModelConfig config_from(const std::string& text, const fs::path& path) {
  const ConfigNode root = parse_json(text, path.string());
  const ConfigNode* fovea = root.find("fovea");
  const ConfigNode* model = fovea != nullptr ? fovea->find("model") : nullptr;
  // Parsed by name: an ordered object compares each new key with all before it.
  if (model == nullptr)
    return config_from_hugging_face(Json(nlohmann::json::parse(text)), path.string());
  ModelConfig config;
  read_fields(*model, config, "fovea.model");
  if (config.vocab_size < 1) {
    fail<ConfigError>(path.string(), "'fovea.model.vocab_size' must be at least 1; got {}",
                      config.vocab_size);
  }
  return config.resolved(config.vocab_size);
}

/// What `transformers` needs to make a tokenizer of tokenizer.json or tokenizer.model.
Json tokenizer_config_json(const ModelConfig& config, const Tokenizer& tokenizer,
                           const std::string& chat_template) {
  const bool json_file = tokenizer.file().name == kTokenizer;
  Json json{{"tokenizer_class", json_file ? "PreTrainedTokenizerFast" : "LlamaTokenizer"},
            {"model_max_length", config.context},
            {"clean_up_tokenization_spaces", false}};
  if (!json_file) {  // a SentencePiece model does not say which marks are put around a text
    json["add_bos_token"] = tokenizer.bos() >= 0;
    json["add_eos_token"] = false;
  }
  for (const SpecialToken& special : tokenizer.special_tokens()) {
    if (special.id == tokenizer.bos()) json["bos_token"] = special.text;
    if (special.id == tokenizer.eos()) json["eos_token"] = special.text;
    if (special.id == tokenizer.pad()) json["pad_token"] = special.text;
  }
  if (!chat_template.empty()) json["chat_template"] = chat_template;
  return json;
}

}  // namespace

Json model_config_json(const ModelConfig& config, const Tokenizer& tokenizer, at::ScalarType dtype,
                       bool exact) {
  const auto id = [](int32_t token) { return token >= 0 ? Json(token) : Json(nullptr); };
  Json json = hugging_face_config(config);
  const bool as_held = FamilyWeights(json["model_type"].get<std::string>()).as_held();
  if (!not_in_hugging_face(config).empty() || (exact && !as_held)) {
    json["architectures"] = {"FoveaForCausalLM"};
    json["model_type"] = "fovea";
  }
  json["bos_token_id"] = id(tokenizer.bos());
  const std::vector<int32_t> ends = tokenizer.ends();
  json["eos_token_id"] = ends.size() > 1 ? Json(ends) : id(tokenizer.eos());
  json["pad_token_id"] = id(tokenizer.pad());
  json["torch_dtype"] = dtype_name(dtype);
  json["fovea"] = {{"tokenizer", tokenizer.fingerprint()}, {"model", fields_to_json(config)}};
  return json;
}

namespace {

/// How the weights of a folder are stored: as its model_type says.
FamilyWeights family_of(const fs::path& folder) {
  const auto config = nlohmann::json::parse(
      read_file(existing_file(folder, kConfig), kLargestConfig), nullptr, false);
  const auto type = config.is_object() ? config.find("model_type") : config.end();
  return FamilyWeights(config.is_object() && type != config.end() && type->is_string()
                           ? type->get<std::string>()
                           : std::string());
}

constexpr ReadLimit kLargestTemplate{"a chat template", 64 << 20};

/// chat_template.jinja, or the text in tokenizer_config.json; "" where neither is there.
std::string chat_template_of(const fs::path& folder) {
  const fs::path own = folder / "chat_template.jinja", config = folder / kTokenizerConfig;
  if (is_file(own)) return read_file(own, kLargestTemplate);
  if (!is_file(config)) return "";
  const auto json = nlohmann::json::parse(read_file(config, kLargestTemplate), nullptr, false);
  const auto found = json.is_object() ? json.find("chat_template") : json.end();
  return json.is_object() && found != json.end() && found->is_string() ? found->get<std::string>()
                                                                       : "";
}

/// The weights of a folder or a .gguf file, and how they are stored.
struct OpenedWeights {
  explicit OpenedWeights(const fs::path& path) {
    if (const auto file = find_model_file(path)) {
      source = open_model_file(*file);
    } else {
      source = std::make_unique<WeightFiles>(path);
      family = family_of(path);
    }
  }
  std::unique_ptr<const WeightSource> source;
  FamilyWeights family{""};  // as they are
};

/// Fills every parameter of a model that was just made; `changed`: added ones may be drawn.
void fill_model(const FamilyWeights& family, const WeightSource& file, LoadedModel& loaded,
                const MatrixStorage& matrices, bool changed) {
  Transformer& model = loaded.model;
  WeightFill fill(model, matrices, [&](const Parameter& parameter) {
    const StoredTensor* stored = file.find(parameter.name);
    return stored != nullptr ? stored->packed : std::nullopt;
  });
  const auto set = [&](Parameter& parameter, const at::Tensor& stored) {
    fill.set(parameter, stored);
    const at::ScalarType dtype = is_packed(stored) ? at::kFloat : stored.scalar_type();
    parameter.stored = dtype == at::kDouble ? at::kFloat : dtype;
    return parameter.value;
  };
  const Mismatch mismatch = read_weights(family, file, model.parameters(), set);
  if (!mismatch.missing.empty()) fail_names(file.path(), "missing tensors", mismatch.missing);
  if (!mismatch.missing_added.empty() && !changed) {
    fail_names(file.path(), "missing tensors", mismatch.missing_added);
  }
  for (const std::string& name : mismatch.missing_added)
    model.parameters().draw(*model.parameters().find(name));
  loaded.drawn = mismatch.missing_added;
  if (!mismatch.shapes.empty()) fail_names(file.path(), "wrong shapes", mismatch.shapes);
  const auto unexpected = unexpected_names(family, file, model);
  if (!unexpected.empty()) fail_names(file.path(), "unexpected tensors", unexpected);
}

void require_room(const fs::path& path, const Tokenizer& tokenizer, const ModelConfig& config) {
  if (tokenizer.vocab_size() <= config.vocab_size) return;
  fail<CheckpointError>(path.string(),
                        "the tokenizer has {} ids, the model only {}; they do not belong together",
                        tokenizer.vocab_size(), config.vocab_size);
}

LoadedModel load_file(const fs::path& path, at::Device device, const MatrixStorage& matrices,
                      const ConfigChange& change) {
  using Blocks = ModelFile::Blocks;
  const bool kept = matrices.as_stored && !matrices.packed;
  const auto file = open_model_file(path, kept ? Blocks::kept : Blocks::unpacked);
  const ModelConfig config = change ? change(file->config()) : file->config();
  LoadedModel loaded{config, Transformer(config, 0, device, FirstNumbers::awaited),
                     file->tokenizer(), file->chat_template()};
  require_room(path, *loaded.tokenizer, loaded.config);
  fill_model(FamilyWeights(""), *file, loaded, matrices, static_cast<bool>(change));
  return loaded;
}

}  // namespace

ModelConfig load_model_config(const fs::path& folder) {
  if (const auto file = find_model_file(folder)) return open_model_file(*file)->config();
  const fs::path path = existing_file(folder, kConfig);
  try {
    return config_from(read_file(path, kLargestConfig), path);
  } catch (const ConfigError& error) {
    throw CheckpointError(error.what());
  }
}

namespace {

/// The files beside the weights.
void write_model_files(const fs::path& folder, const ModelConfig& config, const Json& json,
                       const Tokenizer& tokenizer, const std::string& chat_template) {
  const TokenizerFile file = tokenizer.file();
  // A tokenizer.json that stood here before would be read first.
  if (file.name != kTokenizer) fs::remove(folder / kTokenizer);
  write_file(folder / file.name, file.content);
  write_file(folder / kTokenizerConfig,
             tokenizer_config_json(config, tokenizer, chat_template).dump(2) + "\n");
  write_file(folder / kConfig, json.dump(2) + "\n");
}

/// In the middle of a ramp the folder has the temperatures that the weights were trained with.
ModelConfig saved_config(const Transformer& model) {
  return model.config().at_temperature_ramp(model.compute().temperature_ramp);
}

}  // namespace

void save_model(const fs::path& folder, const Transformer& model, const Tokenizer& tokenizer,
                const SaveOptions& options) {
  make_folders(folder);
  TensorMap tensors;
  for (const Parameter& parameter : model.parameters().all()) {
    tensors.emplace(parameter.name,
                    parameter.value.detach().to(options.dtype.value_or(parameter.stored)));
  }
  const ModelConfig config = saved_config(model);
  const Json json = model_config_json(config, tokenizer,
                                      options.dtype.value_or(stored_dtype(model)), options.exact);
  const FamilyWeights family(json["model_type"].get<std::string>());
  write_weights(folder, family.to_store(tensors), options.shard_bytes);
  write_model_files(folder, config, json, tokenizer, options.chat_template);
}

void save_fetched_model(const fs::path& folder, const Transformer& model,
                        const Tokenizer& tokenizer, const TensorFetch& fetch) {
  make_folders(folder);
  TensorMap tensors;
  for (const Parameter& parameter : model.parameters().all())
    tensors.emplace(parameter.name, parameter.value.detach());
  const ModelConfig config = saved_config(model);
  write_fetched_weights(folder, tensors, fetch);
  write_model_files(folder, config,
                    model_config_json(config, tokenizer, at::kFloat, /*exact=*/true), tokenizer,
                    "");
}

at::ScalarType stored_dtype(const Transformer& model) {
  std::map<at::ScalarType, int64_t> numbers;
  for (const Parameter& p : model.parameters().all()) numbers[p.stored] += p.value.numel();
  const auto most = std::ranges::max_element(numbers, {}, [](const auto& n) { return n.second; });
  return most == numbers.end() ? at::kFloat : most->first;
}

LoadedModel load_model(const fs::path& folder, at::Device device, const MatrixStorage& matrices,
                       const ConfigChange& change) {
  if (const auto file = find_model_file(folder)) return load_file(*file, device, matrices, change);
  const ModelConfig stored = load_model_config(folder), config = change ? change(stored) : stored;
  const fs::path tokenizer_path =
      existing_file(folder, find_tokenizer_file(folder).filename().string());
  const WeightFiles file(folder);
  std::shared_ptr<const Tokenizer> tokenizer;
  try {
    tokenizer = load_tokenizer(tokenizer_path);
  } catch (const InputError& error) {
    throw CheckpointError(error.what());
  }
  require_room(folder, *tokenizer, config);
  LoadedModel loaded{config, Transformer(config, 0, device, FirstNumbers::awaited),
                     std::move(tokenizer), chat_template_of(folder)};
  fill_model(family_of(folder), file, loaded, matrices, static_cast<bool>(change));
  return loaded;
}

std::vector<std::string> read_weights_into(const fs::path& folder, Transformer& model,
                                           const ParameterSetter& set) {
  const OpenedWeights opened(folder);
  const WeightSource& file = *opened.source;
  const FamilyWeights& family = opened.family;
  const auto unexpected = unexpected_names(family, file, model);
  if (!unexpected.empty()) fail_names(file.path(), "unexpected tensors", unexpected);
  const at::NoGradGuard no_grad;
  Mismatch mismatch = read_weights(family, file, model.parameters(), set);
  if (!mismatch.missing.empty()) fail_names(file.path(), "missing tensors", mismatch.missing);
  if (!mismatch.shapes.empty()) fail_names(file.path(), "wrong shapes", mismatch.shapes);
  return mismatch.missing_added;
}

std::vector<std::string> load_weights(const fs::path& folder, Transformer& model) {
  std::vector<std::string> missing = read_weights_into(
      folder, model, [](Parameter& p, const at::Tensor& stored) { return p.value.copy_(stored); });
  for (const std::string& name : missing) model.parameters().draw(*model.parameters().find(name));
  return missing;
}

}  // namespace fovea
