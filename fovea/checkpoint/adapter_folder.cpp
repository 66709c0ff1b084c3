// Adapter folders in the layout of PEFT (spec 5.2), with our attention mechanisms beside LoRA.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/base/json_depth.h"
#include "fovea/base/paths.h"
#include "fovea/checkpoint/adapter.h"
#include "fovea/checkpoint/families.h"
#include "fovea/checkpoint/family_keys.h"
#include "fovea/config/reader.h"
#include "fovea/nn/lora.h"
#include "fovea/text/word_splitter.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kAdapterConfig = "adapter_config.json",
                           kWeights = "adapter_model.safetensors",
                           kPeftPrefix = "base_model.model.", kA = ".lora_A.weight",
                           kB = ".lora_B.weight", kOurs = "fovea", kOurType = "FOVEA",
                           kSample = "fovea_base_sample";

bool is_gpt2(ModelConfig base) {
  base.lora = {};
  base.attention = base_attention(base.attention);
  return hugging_face_config(base)["model_type"] == "gpt2";
}

// The module's name in the base's family; "" where the family has no such module.
std::string module_name(const LoraPlace& place, bool gpt2) {
  if (!gpt2) return place.site == LoraSite::qkv_proj ? "" : place.module;
  static const std::map<LoraSite, std::string> names{{LoraSite::qkv_proj, "attn.c_attn"},
                                                     {LoraSite::o_proj, "attn.c_proj"},
                                                     {LoraSite::up_proj, "mlp.c_fc"},
                                                     {LoraSite::down_proj, "mlp.c_proj"}};
  const auto found = names.find(place.site);
  return found == names.end() ? "" : fmt::format("transformer.h.{}.{}", place.layer, found->second);
}

// ---- reading ----

bool says_nothing(const Json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty()) ||
         value == "";
}

// Keys whose values cannot change what the adapter computes, or that are read by name.
bool harmless(const std::string& key) {
  static const std::set<std::string, std::less<>> keys{"peft_type",
                                                       "task_type",
                                                       "base_model_name_or_path",
                                                       "revision",
                                                       "inference_mode",
                                                       "r",
                                                       "lora_alpha",
                                                       "lora_dropout",
                                                       "target_modules",
                                                       "exclude_modules",
                                                       "fan_in_fan_out",
                                                       "bias",
                                                       "use_rslora",
                                                       "init_lora_weights",
                                                       "rank_pattern",
                                                       "alpha_pattern",
                                                       "auto_mapping",
                                                       "layers_pattern",
                                                       "layers_to_transform",
                                                       "peft_version",
                                                       "megatron_config",
                                                       "megatron_core",
                                                       "qalora_group_size",
                                                       "loftq_config",
                                                       "runtime_config",
                                                       "eva_config",
                                                       "corda_config",
                                                       "fovea"};
  return keys.contains(key);
}

// Options that would make another function of A and B.
void refuse_other_mathematics(const Json& json, const FamilyKeys& keys) {
  const std::string& where = keys.where();
  const std::string type = keys.text("peft_type", "");
  require<UnsupportedError>(type == "LORA" || type == kOurType, where,
                            "only adapters of peft_type LORA and {} are read; got '{}'", kOurType,
                            type);
  const std::string bias = keys.text("bias", "none");
  require<UnsupportedError>(bias == "none", where,
                            "adapters with trained biases are not read; got bias '{}'", bias);
  if (const Json* start = keys.find("init_lora_weights"); start != nullptr && start->is_string()) {
    static const std::set<std::string, std::less<>> plain{"gaussian", "eva", "orthogonal"};
    require<UnsupportedError>(
        plain.contains(start->get<std::string>()), where,
        "init_lora_weights {} changes the base's weights; save the adapter converted to plain LoRA "
        "(peft: save_pretrained with path_initial_model_for_weight_conversion)",
        start->dump());
  }
  for (const auto& [key, value] : json.items()) {
    require<UnsupportedError>(harmless(key) || says_nothing(value), where,
                              "'{}' is {}, which this program does not compute; only plain LoRA, "
                              "rank-stabilised or not, is read",
                              key, value.dump());
  }
}

// The value of a pattern map for a module: a key is the end of a name, or a regular expression.
double pattern_value(const FamilyKeys& keys, const char* map, const std::string& module,
                     double absent) {
  const Json* patterns = keys.find(map);
  if (patterns == nullptr) return absent;
  require<CheckpointError>(patterns->is_object(), keys.where(), "'{}' must be a map; got {}", map,
                           patterns->dump());
  for (const auto& [key, value] : patterns->items()) {
    require<CheckpointError>(value.is_number() && value.get<double>() > 0.0, keys.where(),
                             "'{}' must hold numbers above 0; '{}' has {}", map, key, value.dump());
    bool matches = false;
    try {
      const WordSplitter rule({{.pattern = fmt::format("^(?:.*\\.)?(?:{})$", key),
                                .keep = WordSplitter::Rule::Keep::matches}});
      rule.split(module, [&](std::string_view word) { matches |= word == module; });
    } catch (const InputError& error) {
      fail<CheckpointError>(keys.where(), "'{}' has a damaged pattern: {}", map, error.what());
    }
    if (matches) return value.get<double>();
  }
  return absent;
}

Json read_config(const fs::path& folder) {
  const fs::path path = folder / kAdapterConfig;
  require<CheckpointError>(is_file(path) && is_file(folder / kWeights), folder.string(),
                           "an adapter folder holds {} and {}; check the path", kAdapterConfig,
                           kWeights);
  const std::string text = read_file(path, {"an adapter_config.json", 64 << 20});
  require_shallow_json<CheckpointError>(text, path.string());
  Json json(nlohmann::json::parse(text, nullptr, false));
  require<CheckpointError>(json.is_object(), path.string(), "the file is no JSON object");
  return json;
}

// "q_proj" where every layer has it, else "layers.3.self_attn.q_proj", ...
template <class Short>
std::vector<std::string> compact(const std::vector<LoraPlace>& places, int64_t layers,
                                 const Short& names) {
  std::map<std::string, std::vector<std::string>> by_short;
  for (const LoraPlace& place : places) {
    const auto [name, full] = names(place);
    by_short[name].push_back(full);
  }
  std::vector<std::string> out;
  for (const auto& [name, full] : by_short) {
    if (static_cast<int64_t>(full.size()) == layers) {
      out.push_back(name);
    } else {
      out.insert(out.end(), full.begin(), full.end());
    }
  }
  return out;
}

std::string without(const std::string& text, std::string_view prefix) {
  return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
}

at::Tensor read_numbers(const SafetensorsFile& file, const std::string& name) {
  const at::Tensor x = file.tensor(name);
  require<CheckpointError>(at::isFloatingType(x.scalar_type()), file.path().string(),
                           "'{}' must hold floating-point numbers; got {}; the file is damaged",
                           name, safetensors_dtype(x.scalar_type()));
  const at::Tensor wide = x.to(at::kFloat).clone();
  require<NumericalError>(at::isfinite(wide).all().item<bool>(), file.path().string(),
                          "'{}' holds NaN or infinity; train the adapter again", name);
  return wide;
}

// A and B of one place, checked against the base.
void read_pair(const SafetensorsFile& file, const std::string& module, LoraPlace& place,
               Adapter& adapter) {
  const std::string a_name = fmt::format("{}{}{}", kPeftPrefix, module, kA),
                    b_name = fmt::format("{}{}{}", kPeftPrefix, module, kB);
  const at::Tensor a = read_numbers(file, a_name), b = read_numbers(file, b_name);
  const bool fits = a.dim() == 2 && b.dim() == 2 && a.size(1) == place.inputs &&
                    b.size(0) == place.outputs && a.size(0) == b.size(1) && a.size(0) > 0;
  require<CheckpointError>(
      fits, file.path().string(),
      "'{}' needs A [r, {}] and B [{}, r]; got [{}] and [{}]: the adapter is for another base",
      module, place.inputs, place.outputs, fmt::join(a.sizes(), ", "), fmt::join(b.sizes(), ", "));
  place.rank = a.size(0);
  adapter.tensors.emplace(place.a_name(), a);
  adapter.tensors.emplace(place.b_name(), b);
}

// The attention keys of an adapter of ours; nothing in folders of PEFT.
std::optional<AttentionSettings> read_attention(const FamilyKeys& keys) {
  const Json* ours = keys.find(kOurs.data());
  if (ours == nullptr || !ours->is_object() || !ours->contains("attention")) return std::nullopt;
  AttentionSettings attention;
  try {
    read_fields(parse_json(ours->at("attention").dump(), keys.where()), attention,
                "fovea.attention");
  } catch (const ConfigError& error) {
    throw CheckpointError(error.what());
  }
  return attention;
}

// The sample of the base as JSON, in the file's metadata: programs that read PEFT pass it over.
std::string sample_text(const at::Tensor& sample_n8) {
  Json rows = Json::array();
  const at::Tensor x = sample_n8.to(at::kDouble).contiguous();
  for (int64_t i = 0; i < x.size(0); ++i) {
    const double* row = x[i].const_data_ptr<double>();
    rows.push_back(std::vector<double>(row, row + x.size(1)));
  }
  return rows.dump();
}

at::Tensor read_sample(const SafetensorsFile& file) {
  const auto found = file.metadata().find(std::string(kSample));
  if (found == file.metadata().end()) return {};
  require_shallow_json<CheckpointError>(found->second, file.path().string());
  const Json rows(nlohmann::json::parse(found->second, nullptr, false));
  std::vector<at::Tensor> out;
  for (const Json& row : rows) {
    require<CheckpointError>(
        row.is_array() && row.size() == 8 &&
            std::ranges::all_of(row, [](const Json& v) { return v.is_number(); }),
        file.path().string(), "the metadata '{}' must hold rows of 8 numbers; the file is damaged",
        kSample);
    out.push_back(at::tensor(row.get<std::vector<double>>(), at::kFloat));
  }
  return out.empty() ? at::zeros({0, 8}) : at::stack(out);
}

// What stands beside A and B. `known`: the tensors of LoRA.
void read_attention_tensors(const SafetensorsFile& file, int64_t layers,
                            const std::set<std::string, std::less<>>& known, Adapter& adapter) {
  for (const SafetensorsEntry& entry : file.entries()) {
    if (known.contains(entry.name)) continue;
    require<CheckpointError>(adapter.attention && entry.name.starts_with(kPeftPrefix) &&
                                 !entry.name.ends_with(kA) && !entry.name.ends_with(kB),
                             file.path().string(),
                             "tensor '{}' belongs to no linear layer of this base ({} layers): the "
                             "adapter is for another base, or adapts more than linear layers",
                             entry.name, layers);
    adapter.tensors.emplace(without(entry.name, kPeftPrefix), read_numbers(file, entry.name));
  }
}

// Places, ranks and scales of the linear layers that the file adapts.
std::vector<LoraPlace> read_places(const FamilyKeys& keys, const SafetensorsFile& file,
                                   const ModelConfig& config,
                                   std::set<std::string, std::less<>>& known, Adapter& adapter) {
  const bool gpt2 = is_gpt2(config);
  LoraSettings& settings = adapter.settings;
  std::vector<LoraPlace> places;
  for (LoraPlace place : possible_lora_places(config)) {
    const std::string module = module_name(place, gpt2);
    if (module.empty()) continue;
    const std::string a = fmt::format("{}{}{}", kPeftPrefix, module, kA),
                      b = fmt::format("{}{}{}", kPeftPrefix, module, kB);
    if (file.find(a) == nullptr && file.find(b) == nullptr) continue;
    known.insert(a);
    known.insert(b);
    read_pair(file, module, place, adapter);
    place.alpha = pattern_value(keys, "alpha_pattern", module, settings.alpha);
    if (place.rank != settings.rank || place.alpha != settings.alpha)
      settings.modules.push_back(
          {.module = without(place.module, "model."), .rank = place.rank, .alpha = place.alpha});
    places.push_back(std::move(place));
  }
  return places;
}

}  // namespace

Adapter read_adapter(const fs::path& folder, const ModelConfig& config) {
  const Json json = read_config(folder);
  const FamilyKeys keys(json, (folder / kAdapterConfig).string());
  refuse_other_mathematics(json, keys);
  const SafetensorsFile file(folder / kWeights);
  Adapter adapter;
  adapter.base_name = keys.text("base_model_name_or_path", "");
  adapter.attention = read_attention(keys);
  adapter.base_sample = read_sample(file);
  LoraSettings& settings = adapter.settings;
  if (keys.text("peft_type", "") == "LORA") {
    settings = {.rank = keys.integer("r", 8),
                .alpha = keys.real("lora_alpha", 8.0),
                .dropout = keys.real("lora_dropout", 0.0),
                .rslora = keys.flag("use_rslora", false),
                .targets = {}};
  }
  std::set<std::string, std::less<>> known;
  const std::vector<LoraPlace> places = read_places(keys, file, config, known, adapter);
  read_attention_tensors(file, config.layers, known, adapter);
  require<CheckpointError>(!places.empty() || (adapter.attention && !settings.active()),
                           file.path().string(), "the file holds no adapter");
  if (!settings.active()) return adapter;
  settings.targets = compact(places, config.layers, [](const LoraPlace& p) {
    return std::pair{std::string(enum_name(p.site)), without(p.module, "model.")};
  });
  try {
    settings.check();
  } catch (const ConfigError& error) {
    throw CheckpointError(fmt::format("[{}] {}", keys.where(), error.what()));
  }
  return adapter;
}

namespace {

// ---- writing ----

// The places as PEFT can name them, and their tensors by PEFT's names.
std::vector<std::pair<LoraPlace, std::string>> places_to_write(const ModelConfig& config,
                                                               const Adapter& adapter, bool gpt2,
                                                               TensorMap& tensors) {
  std::vector<std::pair<LoraPlace, std::string>> written;
  const auto put = [&](const LoraPlace& place, const std::string& module, const at::Tensor& a,
                       const at::Tensor& b) {
    tensors.emplace(fmt::format("{}{}{}", kPeftPrefix, module, kA), a.contiguous());
    tensors.emplace(fmt::format("{}{}{}", kPeftPrefix, module, kB), b.contiguous());
    written.emplace_back(place, module);
  };
  const std::vector<LoraPlace> possible = possible_lora_places(config);
  for (const LoraPlace& place : lora_places(adapter.settings, config)) {
    const at::Tensor &a = adapter.tensors.at(place.a_name()),
                     &b = adapter.tensors.at(place.b_name());
    const std::string module = module_name(place, gpt2);
    if (!module.empty()) {
      put(place, module, a, b);
      continue;
    }
    require<UnsupportedError>(place.site == LoraSite::qkv_proj, "adapter",
                              "GPT-2 holds queries, keys and values in one matrix; PEFT cannot "
                              "name '{}' alone: train with lora.targets qkv_proj",
                              place.module);
    int64_t row = 0;
    for (const LoraPlace& part : possible) {
      if (part.layer != place.layer || part.site >= LoraSite::qkv_proj) continue;
      LoraPlace own = part;
      own.rank = place.rank;
      own.alpha = place.alpha;
      put(own, part.module, a.clone(), b.narrow(0, row, part.outputs).clone());
      row += part.outputs;
    }
  }
  return written;
}

Json number(double value) {
  return value == std::floor(value) && std::abs(value) < 1e15 ? Json(static_cast<int64_t>(value))
                                                              : Json(value);
}

}  // namespace

void write_adapter(const fs::path& folder, const ModelConfig& config, const Adapter& adapter) {
  const bool gpt2 = is_gpt2(config);
  TensorMap tensors;
  for (const auto& [name, x] : adapter.tensors)
    if (!is_lora(name)) tensors.emplace(fmt::format("{}{}", kPeftPrefix, name), x.contiguous());
  const auto written = places_to_write(config, adapter, gpt2, tensors);
  const LoraSettings& s = adapter.settings;
  Json ranks = Json::object(), alphas = Json::object();
  std::vector<LoraPlace> places;
  std::map<std::string, std::string> module_of;
  // PEFT matches the ends of names, which do not begin with the body's own.
  const auto end_of = [&](const std::string& module) {
    return without(module, gpt2 ? "transformer." : "model.");
  };
  for (const auto& [place, module] : written) {
    if (place.rank != s.rank) ranks[end_of(module)] = place.rank;
    if (place.alpha != s.alpha) alphas[end_of(module)] = number(place.alpha);
    places.push_back(place);
    module_of[place.module] = module;
  }
  const std::vector<std::string> targets =
      compact(places, config.layers, [&](const LoraPlace& place) {
        const std::string end = end_of(module_of.at(place.module));  // layers.3.self_attn.q_proj
        const size_t layer = end.find('.', end.find('.') + 1);
        const std::string part = end.substr(layer + 1);
        return std::pair{gpt2 ? part : part.substr(part.find('.') + 1), end};
      });
  Json json{{"peft_type", s.active() ? "LORA" : std::string(kOurType)},
            {"task_type", "CAUSAL_LM"},
            {"base_model_name_or_path",
             adapter.base_name.empty() ? Json(nullptr) : Json(adapter.base_name)},
            {"revision", nullptr},
            {"inference_mode", true},
            {"r", s.rank},
            {"lora_alpha", number(s.alpha)},
            {"lora_dropout", s.dropout},
            {"target_modules", targets},
            {"exclude_modules", nullptr},
            {"fan_in_fan_out", gpt2},
            {"bias", "none"},
            {"init_lora_weights", true},
            {"use_rslora", s.rslora},
            {"use_dora", false},
            {"rank_pattern", ranks},
            {"alpha_pattern", alphas},
            {"layers_to_transform", nullptr},
            {"layers_pattern", nullptr},
            {"modules_to_save", nullptr},
            {"auto_mapping", nullptr}};
  if (adapter.attention) json[kOurs] = {{"attention", fields_to_json(*adapter.attention)}};
  make_folders(folder);
  TextMap metadata{{"format", "pt"}};
  if (adapter.base_sample.defined()) metadata.emplace(kSample, sample_text(adapter.base_sample));
  write_safetensors(folder / kWeights, tensors, metadata);
  write_file(folder / kAdapterConfig, json.dump(2) + "\n");
}

}  // namespace fovea
