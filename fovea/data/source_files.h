// The files that a source consists of.
//
// A folder is walked recursively in byte order of the paths. Names that begin with a dot are left
// out, symbolic links are followed, and a folder that is reached twice (a loop of links) is read
// once.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "fovea/data/config.h"

namespace fovea {

enum class FileFormat { text, jsonl };

struct SourceFile {
  std::filesystem::path path;  // absolute
  FileFormat format = FileFormat::text;
  bool named = false;                 // the source's path itself, not found in a folder
  int64_t size = 0;                   // bytes on disk
  int64_t modified = 0, changed = 0;  // nanoseconds
};

struct SourceListing {
  std::vector<SourceFile> files;
  int64_t unlisted = 0;      // left out by `include`
  int64_t broken_links = 0;  // symbolic links to nothing, left out
};

/// InputError where the path does not exist or cannot be read, or where nothing is left of a
/// folder.
SourceListing list_source_files(const DataSource& source);

/// True for the two ways to say "the Python sources of the torch package"; such a source takes .py
/// files only.
bool is_torch_python(std::string_view path);

}  // namespace fovea
