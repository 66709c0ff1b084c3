// DataConfig: which text a run learns from, and how it is read and split.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/config/fields.h"

namespace fovea {

/// Treatment of a JSONL line that is no JSON object or lacks the field.
enum class BadLines { fail, skip };
std::span<const std::string_view> enum_names(BadLines);

/// Treatment of a document that is not UTF-8: stop, leave it out, or replace its invalid parts by
/// U+FFFD.
enum class InvalidUtf8 { fail, skip, replace };
std::span<const std::string_view> enum_names(InvalidUtf8);

struct DataSource {
  std::string path;     // file or folder; see resolve_source_path
  double weight = 1.0;  // share of the training rows, relative to the other sources
  std::string name;     // "" = derived from the path; unique; the <source> of loss/val/<source>
  std::string field = "text";  // JSONL: the key that holds the text
  int64_t scored_tail = 0;     // > 0: only the last so many tokens of a document are learned
  // Folders: endings of the files to take; empty = every text file.
  std::vector<std::string> include;

  void describe(FieldVisitor& v);
};

struct DataConfig {
  std::vector<DataSource> sources;
  double validation_fraction = 0.05;
  int64_t validation_tokens = 200'000;
  int64_t seed = 0;
  BadLines bad_lines = BadLines::fail;
  InvalidUtf8 invalid_utf8 = InvalidUtf8::fail;
  std::string cache;  // "" = default_data_cache()

  void describe(FieldVisitor& v);
  /// ConfigError for no sources, weights that are not positive and finite, equal names, fractions
  /// outside (0, 0.5].
  void check() const;
};

/// `torch-python` is the Python sources inside the installed torch package; `${NAME}` is taken from
/// the environment (TORCH_PYTHON, unless set there, is that torch package); a leading `~` is the
/// home folder. ConfigError for an unset variable.
std::filesystem::path resolve_source_path(std::string_view path);

/// The name of a source: `name`, else derived from the path ("torch-python", "shakespeare").
std::string source_name(const DataSource& source);

/// $FOVEA_CACHE/data, else $XDG_CACHE_HOME/fovea/data, else ~/.cache/fovea/data.
std::filesystem::path default_data_cache();

}  // namespace fovea
