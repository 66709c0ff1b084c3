// Records of a data file: objects of a JSONL or JSON file, lines of a CSV or TSV file, each with
// its place for errors.
//
// Compressed files (.gz, .zst) are read as they are. The text of the file is held; a record is
// parsed when it is asked for.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fovea {

class RecordFile {
 public:
  /// Reads by the ending of the name:
  /// - .jsonl, .ndjson: an object a line; empty lines are ignored
  /// - .json: a list of objects
  /// - .csv, .tsv: a header line names the fields, unless `columns` does; values are texts, quoted
  ///   as in RFC 4180
  ///
  /// InputError with file and line for malformed content, UnsupportedError for other endings.
  explicit RecordFile(const std::filesystem::path& path, std::vector<std::string> columns = {});

  int64_t size() const { return size_; }
  /// InputError with file:line where it is no object.
  nlohmann::ordered_json record(int64_t n) const { return read_(n); }
  /// "arc_easy.jsonl:12": the line of the record, or its number in a JSON list.
  std::string place(int64_t n) const { return place_(n); }

 private:
  int64_t size_ = 0;
  std::function<nlohmann::ordered_json(int64_t)> read_;
  std::function<std::string(int64_t)> place_;
};

}  // namespace fovea
