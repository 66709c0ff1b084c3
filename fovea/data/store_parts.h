// Tokenizes files into stores, a large source in several parts at a time.
//
// A part is a run of files. It becomes a small store of its own, which appears whole or not at all,
// so a preparation that was killed goes on with the missing parts. A file is never cut: one large
// file is read by one thread.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "fovea/data/document_reader.h"
#include "fovea/data/token_store.h"
#include "fovea/text/tokenizer.h"

namespace fovea {

struct StorePart {
  std::span<const SourceFile> files;
  int64_t bytes = 0;  // as stored
};

/// Cuts `files` into runs of at least `part_bytes` each; the views are of `files`.
std::vector<StorePart> plan_parts(std::span<const SourceFile> files, int64_t part_bytes);

/// Reads and tokenizes files into `writer`, which stays open. `progress(bytes)` of the files so
/// far; it may throw.
StoreCounts tokenize_files(std::span<const SourceFile> files, const ReadPolicy& policy,
                           const Tokenizer& tokenizer, TokenStoreWriter& writer,
                           const std::function<void(int64_t bytes_done)>& progress);

/// The folder of part `index`.
std::filesystem::path part_folder(const std::filesystem::path& parts_folder, size_t index);

/// Makes the missing parts on `threads` threads (0 = every core). The caller's thread calls
/// `progress(bytes)` with the bytes of all parts a few times a second; where it throws, the parts
/// that are whole stay. The error of the earliest file is thrown where there are several.
void make_parts(const std::filesystem::path& parts_folder, const std::vector<StorePart>& parts,
                const ReadPolicy& policy, const Tokenizer& tokenizer, int threads,
                const std::function<void(int64_t bytes_done)>& progress);

}  // namespace fovea
