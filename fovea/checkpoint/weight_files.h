// The weights of a model folder: one safetensors file, or shards with an index (spec 8.0).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/checkpoint/safetensors.h"
#include "fovea/checkpoint/weight_source.h"

namespace fovea {

class WeightFiles : public WeightSource {
 public:
  /// Maps model.safetensors, or every shard that model.safetensors.index.json names.
  /// CheckpointError: neither is there; an index that is damaged, names a file outside the folder,
  /// or does not agree with the shards.
  explicit WeightFiles(const std::filesystem::path& folder);

  /// model.safetensors or the index.
  const std::filesystem::path& path() const override { return path_; }
  /// Sorted.
  std::vector<std::string> names() const override;
  const SafetensorsEntry* find(std::string_view name) const override;
  /// A read-only view of the mapped file (SafetensorsFile::tensor). CheckpointError for a missing
  /// name.
  at::Tensor tensor(std::string_view name) const override;
  void release_pages() const override;

 private:
  void open_shards(const std::filesystem::path& folder);

  std::filesystem::path path_;
  std::deque<SafetensorsFile> files_;  // stable addresses
  std::map<std::string, const SafetensorsFile*, std::less<>> file_of_;
};

/// Writes one file, or shards of at most `shard_bytes` of tensors each (a larger tensor has a shard
/// of its own) and their index. 0 = one file.
void write_weights(const std::filesystem::path& folder, const TensorMap& tensors,
                   int64_t shard_bytes = 0);

}  // namespace fovea
