// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/family_weights.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <array>
#include <map>

namespace fovea {
namespace {

struct Gpt2Part {
  std::string_view ours, theirs;
  int64_t part = 0, parts = 1;
};
// Of a block; every matrix is stored transposed.
constexpr std::array<Gpt2Part, 8> kGpt2Block{{
    {"input_layernorm", "ln_1"},
    {"post_attention_layernorm", "ln_2"},
    {"self_attn.q_proj", "attn.c_attn", 0, 3},
    {"self_attn.k_proj", "attn.c_attn", 1, 3},
    {"self_attn.v_proj", "attn.c_attn", 2, 3},
    {"self_attn.o_proj", "attn.c_proj"},
    {"mlp.up_proj", "mlp.c_fc"},
    {"mlp.down_proj", "mlp.c_proj"},
}};
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kGpt2Model{{
    {"model.embed_tokens.", "wte."},
    {"model.embed_positions.", "wpe."},
    {"model.norm.", "ln_f."},
}};
constexpr std::string_view kLayers = "model.layers.";
/// Some files hold the body of the model under this name.
constexpr std::string_view kGpt2Prefix = "transformer.";

// DiffLlama's maps are the first and the second half of the heads, ours are neighbours: ours 2h + s
// is theirs h + s H/2, for queries, keys and the halves of values alike (1.5).
at::Tensor neighbouring_maps(const at::Tensor& x, int64_t head_dim) {
  if (head_dim < 1 || x.dim() < 1 || x.size(0) % (2 * head_dim) != 0) return x;
  std::vector<int64_t> halves{2, x.size(0) / (2 * head_dim), head_dim};
  halves.insert(halves.end(), x.sizes().begin() + 1, x.sizes().end());
  return x.reshape(halves).transpose(0, 1).reshape(x.sizes());
}

}  // namespace

FamilyWeights::FamilyWeights(std::string_view model_type)
    : gpt2_(model_type == "gpt2"),
      gemma_(model_type == "gemma2"),
      diffllama_(model_type == "diffllama") {}

FamilyWeights::Place FamilyWeights::place_of(const std::string& name) const {
  if (gemma_ && name.ends_with("norm.weight")) return {.name = name, .offset = 1.0};
  if (!gpt2_) return {.name = name};
  for (const auto& [ours, theirs] : kGpt2Model) {
    if (name.starts_with(ours))
      return {.name = fmt::format("{}{}", theirs, name.substr(ours.size()))};
  }
  if (!name.starts_with(kLayers)) return {.name = name};
  const std::string rest = name.substr(kLayers.size());
  const size_t dot = rest.find('.'), last = rest.rfind('.');
  const std::string layer = rest.substr(0, dot), module = rest.substr(dot + 1, last - dot - 1);
  const std::string kind = rest.substr(last);  // .weight or .bias
  for (const Gpt2Part& part : kGpt2Block) {
    if (module != part.ours) continue;
    const bool matrix = kind == ".weight" && !part.theirs.starts_with("ln");
    return {.name = fmt::format("h.{}.{}{}", layer, part.theirs, kind),
            .part = part.part,
            .parts = part.parts,
            .transposed = matrix};
  }
  return {.name = name};
}

at::Tensor FamilyWeights::read_diffllama(const WeightSource& files, const std::string& name) const {
  constexpr std::string_view kAttention = ".self_attn.";
  const size_t attention = name.find(kAttention);
  if (attention == std::string::npos) return files.find(name) ? files.tensor(name) : at::Tensor();
  const std::string lambda = name.substr(0, attention) + std::string(kAttention) + "lambda_q1";
  const int64_t head_dim = files.find(lambda) ? files.tensor(lambda).numel() : 0;
  const std::string module = name.substr(attention + kAttention.size());
  if (module == "head_norm.weight") return at::ones({2 * head_dim});  // theirs has none
  if (files.find(name) == nullptr) return {};
  const bool heads = module.starts_with("q_proj.") || module.starts_with("k_proj.") ||
                     module.starts_with("v_proj.");
  return heads ? neighbouring_maps(files.tensor(name), head_dim) : files.tensor(name);
}

at::Tensor FamilyWeights::read(const WeightSource& files, const std::string& name) const {
  if (diffllama_) return read_diffllama(files, name);
  const Place place = place_of(name);
  const std::string prefixed = fmt::format("{}{}", kGpt2Prefix, place.name);
  const bool as_named = files.find(place.name) != nullptr;
  if (!as_named && (!gpt2_ || files.find(prefixed) == nullptr)) return {};
  at::Tensor x = files.tensor(as_named ? place.name : prefixed);
  if (place.transposed && x.dim() == 2) x = x.t();
  if (place.parts > 1 && x.dim() > 0 && x.size(0) % place.parts == 0)
    x = x.narrow(0, place.part * (x.size(0) / place.parts), x.size(0) / place.parts);
  return place.offset == 0.0 ? x : x.to(at::kFloat) + place.offset;
}

std::vector<std::string> FamilyWeights::stored_names(const WeightSource& files,
                                                     const std::vector<std::string>& names) const {
  std::vector<std::string> stored;
  for (const std::string& name : names) {
    const std::string theirs = place_of(name).name;
    const bool prefixed = gpt2_ && files.find(theirs) == nullptr;
    stored.push_back(prefixed ? fmt::format("{}{}", kGpt2Prefix, theirs) : theirs);
  }
  return stored;
}

TensorMap FamilyWeights::to_store(const TensorMap& tensors) const {
  TensorMap stored;
  std::map<std::string, std::vector<at::Tensor>> divided;
  for (const auto& [name, value] : tensors) {
    const Place place = place_of(name);
    const at::Tensor x =
        place.offset == 0.0 ? value : (value.to(at::kFloat) - place.offset).to(value.scalar_type());
    if (place.parts == 1) {
      const std::string prefix(gpt2_ && place.name != name ? kGpt2Prefix : "");
      stored.emplace(prefix + place.name, place.transposed ? x.t().contiguous() : x);
      continue;
    }
    std::vector<at::Tensor>& parts = divided[place.name];
    parts.resize(static_cast<size_t>(place.parts));
    parts[static_cast<size_t>(place.part)] = x;
  }
  for (const auto& [name, parts] : divided) {
    const at::Tensor whole = at::cat(parts);
    stored.emplace(std::string(kGpt2Prefix) + name,
                   whole.dim() == 2 ? whole.t().contiguous() : whole);
  }
  return stored;
}

}  // namespace fovea
