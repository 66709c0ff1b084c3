// Corpus: the documents of all sources as tokens on disk, split into train and validation.
//
// A document is one text file or one line of a JSONL file. Its tokens lie in a memory-mapped store
// without begin and end marks; readers add them, so that a document is BOS + tokens + EOS (spec
// 9.10). A store is made once per source and tokenizer, in the cache folder. Its name depends on
// the files' paths, sizes and times, so another split, seed, weight or sequence length reuses it. A
// store appears complete or not at all; any number of processes may prepare at once.
//
// The split is by document content. A document is for validation where a hash of (seed, content)
// falls under `validation_fraction`, so equal documents land on one side and file order does not
// matter. Every source gets both sides: where the hash gives one of them nothing, a document is
// chosen for it. Where documents are too few or too large, the last part of the longest one is cut
// off at a line border. See docs/data.md.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fovea/data/config.h"
#include "fovea/data/token_store.h"
#include "fovea/text/tokenizer.h"

namespace fovea {

/// Tokens [offset, offset + length) of a store: one document of one side of the split.
struct DocumentSpan {
  int64_t offset = 0;
  int64_t length = 0;  // without BOS and EOS
};

struct CorpusSource {
  std::string name;
  double weight = 1.0;
  int64_t train_tokens = 0;              // with BOS and EOS
  int64_t validation_tokens = 0;         // with BOS and EOS
  std::vector<DocumentSpan> train;       // in file order
  std::vector<DocumentSpan> validation;  // in an order drawn by the seed
  TokenStore store;
  int64_t scored_tail = 0;  // > 0: only the last so many tokens of a document are targets
};

class Corpus {
 public:
  Corpus(std::shared_ptr<const Tokenizer> tokenizer, std::vector<CorpusSource> sources,
         std::string fingerprint);

  const std::vector<CorpusSource>& sources() const { return sources_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  std::shared_ptr<const Tokenizer> shared_tokenizer() const { return tokenizer_; }
  /// 16 hex digits over tokenizer, content, weights and split. A checkpoint records it; another
  /// value is another corpus.
  const std::string& fingerprint() const { return fingerprint_; }
  /// Marks that a reader puts around every document: 0 to 2 tokens.
  int64_t marks() const { return (tokenizer_->bos() >= 0) + (tokenizer_->eos() >= 0); }

  /// Counts and fingerprints for run folders and `--json`: {"fingerprint", "tokenizer", "sources":
  /// [{"name", ...}]}.
  nlohmann::ordered_json summary() const;

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<CorpusSource> sources_;
  std::string fingerprint_;
};

/// Where preparation stands; called at most a few times a second and at the end of each source.
struct CorpusProgress {
  std::string source;
  int64_t source_index = 0, sources = 0;
  int64_t files_done = 0, files = 0;
  int64_t bytes_done = 0, bytes = 0;  // as stored on disk (compressed where the file is)
  bool reused = false;                // the store was there already
};
/// May throw (Interrupted): preparation stops and leaves nothing behind.
using CorpusProgressCallback = std::function<void(const CorpusProgress&)>;

/// Makes or reuses the stores and splits them. ConfigError for the config; InputError (file, line
/// or byte, remedy) for text that is missing, unreadable, empty, damaged or binary; IoError for the
/// cache folder.
std::shared_ptr<const Corpus> prepare_corpus(const DataConfig& config,
                                             std::shared_ptr<const Tokenizer> tokenizer,
                                             const CorpusProgressCallback& progress = {});

}  // namespace fovea
