// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "fovea/base/error.h"
#include "fovea/checkpoint/gguf.h"

namespace fovea {
namespace {

constexpr size_t kLongestName = 63;  // ggml's limit

void pad(std::string& out) {
  out.append((kGgufAlignment - out.size() % kGgufAlignment) % kGgufAlignment, '\0');
}

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_text(std::string& out, const std::string& text) {
  put<uint64_t>(out, text.size());
  out += text;
}

void put_integer(std::string& out, GgufType type, int64_t value) {
  switch (type) {
    case GgufType::uint8:
    case GgufType::int8:
    case GgufType::boolean:
      return put(out, static_cast<uint8_t>(value));
    case GgufType::uint16:
    case GgufType::int16:
      return put(out, static_cast<uint16_t>(value));
    case GgufType::uint32:
    case GgufType::int32:
      return put(out, static_cast<uint32_t>(value));
    default:
      return put(out, value);
  }
}

void put_value(std::string& out, const GgufValue& value) {
  if (value.array) put(out, kGgufArray);
  put(out, static_cast<uint32_t>(value.type));
  if (value.array)
    put<uint64_t>(out, value.integers.size() + value.reals.size() + value.texts.size());
  for (const std::string& text : value.texts) put_text(out, text);
  for (const int64_t integer : value.integers) put_integer(out, value.type, integer);
  for (const double real : value.reals) {
    if (value.type == GgufType::float32) {
      put(out, static_cast<float>(real));
    } else {
      put(out, real);
    }
  }
}

uint64_t byte_count(const std::filesystem::path& path, const GgufOutput& tensor) {
  const GgmlLayout& layout = ggml_layout(tensor.type);
  int64_t values = 1;
  for (const int64_t size : tensor.shape) values *= size;
  require<ShapeError>(
      !tensor.shape.empty() && values > 0 && tensor.shape.back() % layout.values == 0,
      path.string(), "'{}': rows of {} are whole blocks of {} values; got [{}]", tensor.name,
      layout.name, layout.values, fmt::join(tensor.shape, ", "));
  return static_cast<uint64_t>(values / layout.values) * layout.bytes;
}

}  // namespace

void write_gguf(const std::filesystem::path& path, const GgufMetadata& metadata,
                const std::vector<GgufOutput>& tensors) {
  std::string header = "GGUF";
  put(header, kGgufVersion);
  put<uint64_t>(header, tensors.size());
  put<uint64_t>(header, metadata.size());
  for (const auto& [key, value] : metadata) {
    put_text(header, key);
    put_value(header, value);
  }
  uint64_t offset = 0;
  std::set<std::string_view> names;
  for (const GgufOutput& tensor : tensors) {
    require<CheckpointError>(
        names.insert(tensor.name).second && tensor.name.size() <= kLongestName, path.string(),
        "names of tensors differ and have at most {} bytes; got '{}'", kLongestName, tensor.name);
    put_text(header, tensor.name);
    put(header, static_cast<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i > 0; --i)
      put(header, static_cast<uint64_t>(tensor.shape[i - 1]));
    put(header, static_cast<uint32_t>(tensor.type));
    put(header, offset);
    offset =
        (offset + byte_count(path, tensor) + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment;
  }
  pad(header);
  write_file(path, [&](OutputFile& file) {
    file.write(header);
    for (const GgufOutput& tensor : tensors) {
      std::vector<std::byte> blocks = tensor.blocks();
      require<ShapeError>(blocks.size() == byte_count(path, tensor), path.string(),
                          "'{}' takes {} bytes; got {}", tensor.name, byte_count(path, tensor),
                          blocks.size());
      blocks.resize((blocks.size() + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment);
      file.write(blocks);
    }
  });
}

}  // namespace fovea
