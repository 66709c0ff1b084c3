// GGUF files, versions 2 and 3: a reader that maps, a writer that streams.
//
// Layout, all numbers little-endian:
//   "GGUF", u32 version, u64 number of tensors, u64 number of metadata entries
//   the entries: text key, u32 type, value
//   the tensors: text name, u32 axes, u64 sizes with the innermost first, u32 format, u64 offset
//   padding, data
// Offsets count from the first byte of the data and are multiples of `general.alignment` (32 where
// it is not there). A text is a u64 length and bytes. Source: the GGUF specification (ggml,
// docs/gguf.md).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/base/files.h"
#include "fovea/checkpoint/ggml_blocks.h"

namespace fovea {

/// The version written, the number of arrays among types of metadata, the alignment of tensors
/// where a file does not say another.
inline constexpr uint32_t kGgufVersion = 3, kGgufArray = 9;
inline constexpr uint64_t kGgufAlignment = 32;

/// Types of metadata, by their numbers in a file; 9 is an array of one of these.
enum class GgufType : uint32_t {
  uint8 = 0,
  int8 = 1,
  uint16 = 2,
  int16 = 3,
  uint32 = 4,
  int32 = 5,
  float32 = 6,
  boolean = 7,
  text = 8,
  uint64 = 10,
  int64 = 11,
  float64 = 12,
};

/// One value, or an array of values of one type. Items stand in the list of their kind.
struct GgufValue {
  GgufType type = GgufType::uint32;
  bool array = false;
  std::vector<int64_t> integers;  ///< of whole types; booleans as 0 and 1
  std::vector<double> reals;
  std::vector<std::string> texts;  ///< UTF-8

  static GgufValue of_text(std::string text);
  static GgufValue of_integer(int64_t value, GgufType type = GgufType::uint32);
  static GgufValue of_real(double value);  ///< float32
  static GgufValue of_boolean(bool value);
  static GgufValue of_texts(std::vector<std::string> texts);
  static GgufValue of_integers(std::vector<int64_t> values, GgufType type = GgufType::int32);
  bool operator==(const GgufValue&) const = default;
};
using GgufMetadata = std::map<std::string, GgufValue, std::less<>>;

struct GgufTensor {
  std::string name;
  GgmlType type = GgmlType::f32;
  std::vector<int64_t> shape;  ///< outermost first, as torch writes it
  size_t begin = 0, end = 0;   ///< in the file
};

class GgufFile {
 public:
  /// Maps the file and checks everything before the data: counts, lengths, types, shapes and
  /// offsets against the size of the file, names that occur twice, tensors that overlap. Time and
  /// memory grow with the size of the file. CheckpointError with file and byte; UnsupportedError
  /// for a number format or a version that is not read, by name.
  explicit GgufFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const GgufMetadata& metadata() const { return metadata_; }
  /// In the order of the file.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  /// nullptr where there is none of that name.
  const GgufTensor* find(std::string_view name) const;
  /// The blocks of a tensor of this file: a view of the map, which lives as long as map() does.
  std::span<const std::byte> bytes(const GgufTensor& tensor) const;
  std::shared_ptr<const MappedFile> map() const { return file_; }

 private:
  std::filesystem::path path_;
  std::shared_ptr<const MappedFile> file_;
  GgufMetadata metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t, std::less<>> place_of_;
};

/// A tensor to write. `blocks` is called once, when its turn comes, so that one tensor at a time is
/// in memory; it returns the bytes that `type` and `shape` take.
struct GgufOutput {
  std::string name;
  GgmlType type = GgmlType::f32;
  std::vector<int64_t> shape;  ///< outermost first
  std::function<std::vector<std::byte>()> blocks;
};

/// Writes version 3 atomically, with an alignment of 32. IoError. ShapeError where rows are no
/// whole number of blocks or `blocks` returns another size. CheckpointError for a name that occurs
/// twice or is longer than 63 bytes, which other readers refuse.
void write_gguf(const std::filesystem::path& path, const GgufMetadata& metadata,
                const std::vector<GgufOutput>& tensors);

}  // namespace fovea
