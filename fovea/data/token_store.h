// Token store: the tokens and the document table of one source, as a folder of mapped files.
//
// `tokens.bin` holds uint16 (vocabularies up to 65536) or uint32 ids, `documents.bin` one
// StoredDocument each, `meta.json` counts, sizes and fingerprint. Little-endian. Written once, then
// read-only.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "fovea/base/files.h"

namespace fovea {

struct StoredDocument {
  int64_t offset = 0;  // first token
  int64_t length = 0;  // tokens, without BOS and EOS
  int64_t bytes = 0;   // of text
  uint64_t hash = 0;   // of the text
};

/// Counts from reading a source.
struct StoreCounts {
  int64_t files = 0;  // read
  int64_t documents = 0;
  int64_t bytes = 0;             // of text, after decompression
  int64_t tokens = 0;            // without BOS and EOS
  int64_t skipped_binary = 0;    // files in folders that hold NUL bytes
  int64_t skipped_empty = 0;     // documents without text
  int64_t skipped_lines = 0;     // bad_lines: skip
  int64_t skipped_invalid = 0;   // invalid_utf8: skip
  int64_t skipped_unlisted = 0;  // files that `include` leaves out
  int64_t skipped_links = 0;     // symbolic links to nothing

  nlohmann::ordered_json to_json() const;
  static StoreCounts from_json(const nlohmann::ordered_json& json);
  StoreCounts& operator+=(const StoreCounts& other);
};

/// A store that is open for reading. Copies share the maps.
class TokenStore {
 public:
  /// InputError where the folder is no whole store (the caller makes it anew).
  static TokenStore open(const std::filesystem::path& folder);

  std::span<const StoredDocument> documents() const { return documents_; }
  int64_t tokens() const { return tokens_; }
  const StoreCounts& counts() const { return counts_; }
  /// Fingerprint of tokenizer and text; independent of where the files lie.
  const std::string& fingerprint() const { return fingerprint_; }
  /// Copies tokens [offset, offset + out.size()).
  void read(int64_t offset, std::span<int32_t> out) const;

 private:
  std::shared_ptr<const MappedFile> token_file_, document_file_;
  std::span<const StoredDocument> documents_;
  int64_t tokens_ = 0;
  int width_ = 2;  // bytes a token
  StoreCounts counts_;
  std::string fingerprint_;
};

/// Writes the files of a store into an existing folder, which the caller makes durable
/// (write_folder). Documents come one after the other: append..., then end or abandon.
class TokenStoreWriter {
 public:
  TokenStoreWriter(const std::filesystem::path& folder, int64_t vocab_size);
  void append(std::span<const int32_t> tokens);
  void end_document(int64_t bytes, uint64_t hash);
  /// Forgets what was appended since the last end; its tokens stay in the file, unused.
  void abandon_document();
  /// Appends all documents of another store of the same tokenizer.
  void append_store(const TokenStore& store);
  int64_t documents() const { return static_cast<int64_t>(documents_.size()); }
  /// Writes what is buffered, the table and meta.json. `counts.documents`, `bytes` and `tokens` are
  /// filled in here.
  void finish(StoreCounts counts, std::string_view tokenizer_fingerprint);

 private:
  void flush();

  std::filesystem::path folder_;
  OutputFile file_;
  int width_;
  int64_t written_ = 0, document_start_ = 0;  // tokens
  std::string buffer_;
  std::vector<StoredDocument> documents_;
};

}  // namespace fovea
