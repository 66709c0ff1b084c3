// TensorBoard event files: scalars and texts, written without TensorFlow.
//
// A file is a sequence of TFRecords: length (uint64, little endian), masked CRC-32C of the length,
// payload, masked CRC-32C of the payload. A payload is a protobuf `Event`.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "fovea/base/files.h"

namespace fovea {

/// CRC-32C (Castagnoli), and the rotation that TFRecord applies to it.
uint32_t crc32c(std::string_view bytes);
uint32_t masked_crc32c(std::string_view bytes);

/// Every writer makes a file of its own in `folder`, so a resumed run never touches what an earlier
/// process wrote; TensorBoard joins the files of a folder. IoError where it cannot write. Not
/// thread-safe.
class TensorBoardWriter {
 public:
  /// `first_step` > 0 for a resumed run: TensorBoard then drops what earlier files say about this
  /// step and later ones.
  explicit TensorBoardWriter(const std::filesystem::path& folder, int64_t first_step = 0);
  /// Flushes; errors are lost, so call flush() where they matter.
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  /// `wall_time`: seconds since 1970. Buffered until flush() or 64 KiB.
  void add_scalar(std::string_view tag, int64_t step, double wall_time, double value);
  /// Shown in the Text tab, as Markdown.
  void add_text(std::string_view tag, int64_t step, double wall_time, std::string_view markdown);
  void flush();

  const std::filesystem::path& path() const { return path_; }

 private:
  void append_record(std::string_view event);

  std::filesystem::path path_;
  OutputFile file_;
  std::string buffer_;
};

}  // namespace fovea
