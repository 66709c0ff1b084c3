// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/gguf_model.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"
#include "fovea/checkpoint/families.h"
#include "fovea/checkpoint/gguf_family.h"
#include "fovea/checkpoint/gguf_vocabulary.h"
#include "fovea/nn/matrix.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;

constexpr const char *kTemplate = "tokenizer.chat_template", *kEmbedding = "token_embd.weight",
                     *kRopeFactors = "rope_freqs.weight";
constexpr std::array<std::string_view, 4> kFormatNames{"f32", "f16", "bf16", "q8_0"};
// general.file_type of each: what most tensors are.
constexpr std::array<int64_t, 4> kFileTypes{0, 1, 32, 7};

at::ScalarType dtype_of(GgmlType type) {
  return type == GgmlType::f16 ? at::kHalf : type == GgmlType::bf16 ? at::kBFloat16 : at::kFloat;
}

bool is_plain(GgmlType type) { return ggml_layout(type).values == 1; }

int64_t count_of(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

/// All values of quantised blocks, on all cores.
at::Tensor dequantised(const GgufTensor& tensor, std::span<const std::byte> bytes) {
  const GgmlLayout& layout = ggml_layout(tensor.type);
  at::Tensor values = at::empty(tensor.shape, at::kFloat);
  float* out = values.mutable_data_ptr<float>();
  const int64_t blocks = values.numel() / layout.values;
  at::parallel_for(0, blocks, 4096, [&](int64_t begin, int64_t end) {
    const auto first = static_cast<size_t>(begin), count = static_cast<size_t>(end - begin);
    dequantise(tensor.type, bytes.subspan(first * layout.bytes, count * layout.bytes),
               {out + begin * layout.values, count * static_cast<size_t>(layout.values)});
  });
  return values;
}

/// The format that kernels read without unpacking it first.
std::optional<kernels::WeightFormat> packed_format(GgmlType type) {
  switch (type) {
    case GgmlType::q8_0:
      return kernels::WeightFormat::q8_0;
    case GgmlType::q4_0:
      return kernels::WeightFormat::q4_0;
    case GgmlType::q4_1:
      return kernels::WeightFormat::q4_1;
    default:
      return std::nullopt;
  }
}

at::Tensor packed_matrix(const GgufTensor& tensor, kernels::WeightFormat format,
                         std::span<const std::byte> bytes) {
  const at::Tensor rows = at::empty(packed_shape(format, tensor.shape), at::kByte);
  auto* const out = static_cast<std::byte*>(rows.mutable_data_ptr());
  const auto row = static_cast<size_t>(rows.stride(0));
  at::parallel_for(0, rows.size(0), 256, [&](int64_t begin, int64_t end) {
    for (auto r = static_cast<size_t>(begin); r < static_cast<size_t>(end); ++r)
      kernels::pack_blocks(format, bytes.subspan(r * row, row), {out + r * row, row});
  });
  return rows;
}

GgufTensorFacts facts_of(const GgufFile& file) {
  const GgufTensor* embedding = file.find(kEmbedding);
  require<CheckpointError>(embedding != nullptr && embedding->shape.size() == 2,
                           file.path().string(),
                           "expected the tensor '{}' with two axes; the file is no language model, "
                           "or damaged",
                           kEmbedding);
  GgufTensorFacts facts{.vocabulary = embedding->shape[0],
                        .tied = file.find("output.weight") == nullptr,
                        .attention_bias = file.find("blk.0.attn_q.bias") != nullptr,
                        .feed_forward_bias = file.find("blk.0.ffn_up.bias") != nullptr};
  if (const GgufTensor* factors = file.find(kRopeFactors)) {
    facts.rope_factors.resize(static_cast<size_t>(count_of(factors->shape)));
    dequantise(factors->type, file.bytes(*factors), facts.rope_factors);
  }
  return facts;
}

/// The same rows in the other order; a tensor of another shape stays, and is complained about where
/// shapes are compared.
at::Tensor reordered(const at::Tensor& rows, int64_t head_dim, RopeLayout from, RopeLayout to) {
  return rows.size(0) % head_dim == 0 ? convert_rope_layout(rows, head_dim, 0, from, to) : rows;
}

GgmlType type_of(const at::Tensor& value, GgufFormat format) {
  if (value.dim() < 2) return GgmlType::f32;
  switch (format) {
    case GgufFormat::f32:
      return GgmlType::f32;
    case GgufFormat::f16:
      return GgmlType::f16;
    case GgufFormat::bf16:
      return GgmlType::bf16;
    case GgufFormat::q8_0:
      break;
  }
  const bool whole = value.size(-1) % ggml_layout(GgmlType::q8_0).values == 0;
  return whole ? GgmlType::q8_0 : GgmlType::f16;
}

std::vector<std::byte> encoded(const std::string& name, const at::Tensor& value, GgmlType type) {
  const GgmlLayout& layout = ggml_layout(type);
  const at::Tensor plain = value.detach().to(at::kCPU, at::kFloat).contiguous();
  std::vector<std::byte> bytes(static_cast<size_t>(plain.numel() / layout.values) * layout.bytes);
  // Float16 is the number format of the scales of Q8_0 too: 127 * 65504 is the largest there.
  const double largest = plain.abs().max().item<double>();
  const double limit = type == GgmlType::f16    ? 65504.0
                       : type == GgmlType::q8_0 ? 65504.0 * 127.0
                                                : 3e38;
  require<NumericalError>(largest <= limit, "GGUF",
                          "'{}' must be within {} to be written as {}; "
                          "its largest weight is {}: take --gguf f32",
                          name, limit, layout.name, largest);
  if (type == GgmlType::q8_0) {
    quantise_q8_0({plain.const_data_ptr<float>(), static_cast<size_t>(plain.numel())}, bytes);
  } else {
    const at::Tensor stored = plain.to(dtype_of(type));
    std::memcpy(bytes.data(), stored.const_data_ptr(), bytes.size());
  }
  return bytes;
}

}  // namespace

std::span<const std::string_view> enum_names(GgufFormat) { return kFormatNames; }

GgufModel::GgufModel(const fs::path& path, Blocks blocks) : file_(path) {
  const std::string where = path.string();
  interleaved_ = gguf_family(file_.metadata(), where).interleaved;
  config_ = config_from_hugging_face(hugging_face_config(file_.metadata(), facts_of(file_), where),
                                     where);
  for (const GgufTensor& tensor : file_.tensors()) {
    if (tensor.name == kRopeFactors) continue;  // part of the config
    std::string name = registry_name(tensor.name);
    const StoredTensor stored{name, dtype_of(tensor.type), tensor.shape,
                              blocks == Blocks::kept && tensor.shape.size() == 2
                                  ? packed_format(tensor.type)
                                  : std::nullopt};
    require<CheckpointError>(entries_.emplace(std::move(name), Entry{stored, &tensor}).second,
                             where, "two tensors are '{}'; the file is damaged, get it again",
                             stored.name);
  }
}

std::shared_ptr<const Tokenizer> GgufModel::tokenizer() const {
  return gguf_tokenizer(file_.metadata(), file_.path().string());
}

std::string GgufModel::chat_template() const {
  const auto found = file_.metadata().find(kTemplate);
  if (found == file_.metadata().end()) return "";
  const GgufValue& value = found->second;
  require<CheckpointError>(!value.array && value.texts.size() == 1, path().string(),
                           "'{}' must be a text", kTemplate);
  return value.texts[0];
}

std::vector<std::string> GgufModel::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

const StoredTensor* GgufModel::find(std::string_view name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second.stored;
}

at::Tensor GgufModel::tensor(std::string_view name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end())
    fail<CheckpointError>(path().string(), "tensor '{}' is missing{}", name,
                          did_you_mean(name, names()));
  const GgufTensor& tensor = *found->second.tensor;
  const std::span<const std::byte> bytes = file_.bytes(tensor);
  const auto view = [&] {  // alignments are at least 8; the closure keeps the map
    return at::from_blob(
        const_cast<std::byte*>(bytes.data()), tensor.shape, [map = file_.map()](void*) {},
        at::TensorOptions(dtype_of(tensor.type)));
  };
  const auto packed = found->second.stored.packed;
  const at::Tensor value = is_plain(tensor.type) ? view()
                           : packed              ? packed_matrix(tensor, *packed, bytes)
                                                 : dequantised(tensor, bytes);
  return interleaved_ && has_rotated_rows(name)
             ? reordered(value, config_.head_dim, RopeLayout::interleaved, RopeLayout::half_split)
             : value;
}

void save_gguf(const fs::path& path, const Transformer& model, const Tokenizer& tokenizer,
               const GgufOptions& options) {
  const ModelConfig config = model.config().at_temperature_ramp(model.compute().temperature_ramp);
  GgufMetadata metadata = gguf_config(config);
  metadata.merge(gguf_tokenizer_metadata(tokenizer, config.vocab_size));
  const auto format = static_cast<size_t>(options.format);
  metadata["general.file_type"] = GgufValue::of_integer(kFileTypes[format]);
  metadata["general.quantization_version"] = GgufValue::of_integer(2);
  if (!options.name.empty()) metadata["general.name"] = GgufValue::of_text(options.name);
  if (!options.chat_template.empty())
    metadata[kTemplate] = GgufValue::of_text(options.chat_template);

  const bool interleaved = gguf_family(metadata, path.string()).interleaved;
  std::vector<GgufOutput> tensors;
  for (const Parameter& parameter : model.parameters().all()) {
    const std::string& name = parameter.name;
    const GgmlType type = type_of(parameter.value, options.format);
    tensors.push_back({gguf_name(name), type, parameter.value.sizes().vec(), [&, type] {
                         const at::Tensor value = parameter.value.detach();
                         const bool turned = interleaved && has_rotated_rows(name);
                         return encoded(
                             name,
                             turned ? reordered(value, config.head_dim, RopeLayout::half_split,
                                                RopeLayout::interleaved)
                                    : value,
                             type);
                       }});
  }
  const std::vector<float> factors = gguf_rope_factors(config);
  if (!factors.empty()) {
    tensors.push_back({kRopeFactors, GgmlType::f32, {static_cast<int64_t>(factors.size())}, [&] {
                         std::vector<std::byte> bytes(factors.size() * sizeof(float));
                         std::memcpy(bytes.data(), factors.data(), bytes.size());
                         return bytes;
                       }});
  }
  write_gguf(path, metadata, tensors);
}

}  // namespace fovea
