// Vocabularies of GGUF: converts metadata to the text of a tokenizer.json, and back.
//
// There is one tokenizer of byte-level BPE (fovea/text/json_tokenizer.h); a GGUF names the patterns
// that split its texts ("tokenizer.ggml.pre"), and this file has the table of those names. A
// vocabulary "llama" is a SentencePiece model without its normalizer.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "fovea/checkpoint/gguf.h"
#include "fovea/text/json_tokenizer.h"
#include "fovea/text/tokenizer.h"

namespace fovea {

/// Kinds of "tokenizer.ggml.model": gpt2, llama, and those that are not read.
enum class GgufVocabulary { byte_level_bpe, sentencepiece, other };
GgufVocabulary gguf_vocabulary(const GgufMetadata& metadata, const std::string& where);

/// The tokenizer.json of a byte-level BPE, and the names of its marks.
struct TokenizerText {
  std::string json;
  MarkNames marks;
};
TokenizerText gguf_tokenizer_json(const GgufMetadata& metadata, const std::string& where);

/// The tokenizer of a file. UnsupportedError for another kind of vocabulary or a name of patterns
/// that is not in the table; CheckpointError for lists that are missing or do not fit together.
std::shared_ptr<const Tokenizer> gguf_tokenizer(const GgufMetadata& metadata,
                                                const std::string& where);

/// The metadata of a tokenizer for a model with `vocabulary` ids; ids that no token has become
/// unused ones. UnsupportedError for patterns that have no name in GGUF and for tokenizers of other
/// kinds.
GgufMetadata gguf_tokenizer_metadata(const Tokenizer& tokenizer, int64_t vocabulary);

}  // namespace fovea
