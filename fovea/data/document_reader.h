// Reads documents from files: one per text file, one per line of a JSONL file.
//
// Text is taken as it stands, line ends (CRLF too) included; only a UTF-8 byte-order mark at the
// head of a file is dropped. Memory is bounded: text files pass in parts of a few megabytes that
// end at a line border or, in a very long line, between characters. A JSONL line is held whole. In
// JSONL, empty lines are ignored, and NUL (\u0000) is a character like any other; a text file that
// holds NUL is binary.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "fovea/data/config.h"
#include "fovea/data/source_files.h"
#include "fovea/data/token_store.h"

namespace fovea {

/// Receives documents: append once or more, then end or abandon.
class DocumentSink {
 public:
  virtual ~DocumentSink() = default;
  virtual void append(std::string_view text) = 0;
  virtual void end() = 0;
  virtual void abandon() = 0;
};

struct ReadPolicy {
  std::string field = "text";
  BadLines bad_lines = BadLines::fail;
  InvalidUtf8 invalid_utf8 = InvalidUtf8::fail;
};

/// Called now and then with the bytes of the file consumed so far; may throw.
using ReadProgress = std::function<void(int64_t consumed)>;  // may be empty

/// Reads one file. Adds to counts.files and counts.skipped_*. InputError with file:line (JSONL) or
/// file and byte.
void read_documents(const SourceFile& file, const ReadPolicy& policy, DocumentSink& sink,
                    StoreCounts& counts, const ReadProgress& progress);

}  // namespace fovea
