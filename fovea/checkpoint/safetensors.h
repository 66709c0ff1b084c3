// safetensors files: a reader that maps, a writer that streams (spec 8.0).
//
// Layout: u64 little-endian length of the header; the header, JSON {name: {dtype, shape,
// data_offsets: [a, b]}} plus an optional "__metadata__" map of texts; the data. Offsets count from
// the first byte after the header.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/base/files.h"
#include "fovea/checkpoint/weight_source.h"

namespace fovea {

using TensorMap = std::map<std::string, at::Tensor>;
using TextMap = std::map<std::string, std::string>;

/// One tensor of a file. `begin` and `end` count from the first byte of the data.
struct SafetensorsEntry : StoredTensor {
  size_t begin = 0, end = 0;
};

class SafetensorsFile {
 public:
  /// Maps the file and checks the whole header: its length, JSON without duplicate names, known
  /// dtypes, sizes that agree with the offsets, data without holes, overlaps or bytes left over.
  /// CheckpointError with file, name and byte.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  /// Sorted by name.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  const TextMap& metadata() const { return metadata_; }
  const SafetensorsEntry* find(std::string_view name) const;
  /// A CPU tensor that reads the mapped file without a copy and keeps the map alive after this
  /// object is gone. The memory is read-only: clone() before writing. CheckpointError where the
  /// name is missing (nearest name shown).
  at::Tensor tensor(std::string_view name) const;
  TensorMap tensors() const;
  const MappedFile& map() const { return *file_; }

 private:
  std::filesystem::path path_;
  std::shared_ptr<const MappedFile> file_;
  std::vector<SafetensorsEntry> entries_;
  TextMap metadata_;
  size_t data_begin_ = 0;
};

/// The name of a dtype in the header ("F32"); CheckpointError for dtypes that the format does not
/// have.
std::string_view safetensors_dtype(at::ScalarType dtype);

/// Writes atomically. Names in the header are sorted. The data starts at a multiple of 64 bytes,
/// and larger items come first, so that each tensor is aligned. Tensors that are strided or on
/// other devices are copied one at a time. IoError, CheckpointError.
void write_safetensors(const std::filesystem::path& path, const TensorMap& tensors,
                       const TextMap& metadata = {});

}  // namespace fovea
