// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/weight_files.h"

#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/base/paths.h"
#include "fovea/checkpoint/mapped_weights.h"
#include "fovea/checkpoint/weights_elsewhere.h"
#include "fovea/config/node.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kSingle = "model.safetensors", kIndex = "model.safetensors.index.json";
constexpr ReadLimit kLargestIndex{"an index of shards", 256 << 20};
constexpr std::string_view kCopyAgain = "copy the folder again";

/// As other programs write it.
TextMap weights_metadata() { return {{"format", "pt"}}; }

/// {tensor: shard} of an index, both checked.
std::map<std::string, std::string> read_index(const fs::path& path) {
  ConfigNode root;
  try {
    root = parse_json(read_file(path, kLargestIndex), path.string());
  } catch (const ConfigError& error) {
    throw CheckpointError(error.what());
  }
  const ConfigNode* map = root.find("weight_map");
  require<CheckpointError>(map != nullptr && map->kind == ConfigNode::Kind::map, path.string(),
                           "expected the key 'weight_map' with a map of tensors to files; {}",
                           kCopyAgain);
  std::map<std::string, std::string> shard_of;
  for (const auto& [name, value] : map->fields) {
    const std::string& file = value.scalar;
    require<CheckpointError>(
        value.kind == ConfigNode::Kind::scalar && file.ends_with(".safetensors") &&
            why_no_file_name(file).empty(),
        path.string(),
        "'{}' must stand in a .safetensors file of this folder; got '{}', which this program does "
        "not open",
        name, file);
    shard_of[name] = file;
  }
  require<CheckpointError>(!shard_of.empty(), path.string(), "'weight_map' names no tensor; {}",
                           kCopyAgain);
  return shard_of;
}

}  // namespace

WeightFiles::WeightFiles(const fs::path& folder) : path_(folder / kSingle) {
  if (!is_file(path_)) {
    open_shards(folder);
    return;
  }
  files_.emplace_back(path_);
  for (const SafetensorsEntry& entry : files_.front().entries())
    file_of_[entry.name] = &files_.front();
}

void WeightFiles::open_shards(const fs::path& folder) {
  path_ = folder / kIndex;
  if (!is_file(path_)) {
    const bool pickled = path_exists(folder / "pytorch_model.bin");
    fail<CheckpointError>(folder.string(), "expected {} or {}; both are missing{}", kSingle, kIndex,
                          pickled ? "; pytorch_model.bin is not read: save the model with "
                                    "safe_serialization=True"
                                  : "");
  }
  std::map<std::string, const SafetensorsFile*> opened;
  for (const auto& [name, shard] : read_index(path_)) {
    const SafetensorsFile*& file = opened[shard];
    if (file == nullptr) {
      require<CheckpointError>(is_file(folder / shard), path_.string(),
                               "the shard '{}' is missing; {}", shard, kCopyAgain);
      file = &files_.emplace_back(folder / shard);
    }
    require<CheckpointError>(file->find(name) != nullptr, path_.string(),
                             "'{}' should stand in '{}', which does not hold it; {}", name, shard,
                             kCopyAgain);
    file_of_[name] = file;
  }
  for (const SafetensorsFile& file : files_) {
    for (const SafetensorsEntry& entry : file.entries()) {
      const auto found = file_of_.find(entry.name);
      require<CheckpointError>(found != file_of_.end() && found->second == &file, path_.string(),
                               "'{}' of '{}' is not in the index, or in another shard too; {}",
                               entry.name, file.path().filename().string(), kCopyAgain);
    }
  }
}

std::vector<std::string> WeightFiles::names() const {
  std::vector<std::string> names;
  names.reserve(file_of_.size());
  for (const auto& [name, file] : file_of_) names.push_back(name);
  return names;
}

const SafetensorsEntry* WeightFiles::find(std::string_view name) const {
  const auto found = file_of_.find(name);
  return found == file_of_.end() ? nullptr : found->second->find(name);
}

at::Tensor WeightFiles::tensor(std::string_view name) const {
  const auto found = file_of_.find(name);
  require<CheckpointError>(found != file_of_.end(), path_.string(), "no tensor '{}'", name);
  return found->second->tensor(name);
}

void WeightFiles::release_pages() const {
  for (const SafetensorsFile& file : files_) fovea::release_pages(file.map());
}

void write_fetched_weights(const fs::path& folder, const TensorMap& tensors,
                           const TensorFetch& fetch) {
  write_fetched(folder / kSingle, tensors, weights_metadata(), fetch);
}

void write_weights(const fs::path& folder, const TensorMap& tensors, int64_t shard_bytes) {
  if (shard_bytes <= 0) {
    write_safetensors(folder / kSingle, tensors, weights_metadata());
    return;
  }
  std::vector<TensorMap> shards(1);
  int64_t total = 0, filled = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    if (filled > 0 && filled + bytes > shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    filled += bytes;
    total += bytes;
    shards.back().emplace(name, tensor);
  }
  Json index{{"metadata", {{"total_size", total}}}, {"weight_map", Json::object()}};
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_safetensors(folder / file, shards[i], weights_metadata());
    for (const auto& [name, tensor] : shards[i]) index["weight_map"][name] = file;
  }
  write_file(folder / kIndex, index.dump(2) + "\n");
}

}  // namespace fovea
