// Tokenizer: text to token ids and back.
//
// Text is bytes, UTF-8 by custom. `encode` never makes a special token (begin, end, pad) out of
// text: the caller adds them by id, so a document cannot forge them. Every other token stands for a
// fixed byte string, its piece; decoding is the concatenation of pieces without the text prefix,
// made valid UTF-8. Objects are immutable, so threads may share one.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/text/utf8.h"

namespace fovea {

struct SpecialToken {
  int32_t id = -1;
  std::string text;  // as written in tokenizer.json, "<|begin|>"
};

struct TokenizerFile {
  /// "tokenizer.json", as the Hugging Face `tokenizers` package reads it, or "tokenizer.model", as
  /// the `sentencepiece` package reads it.
  std::string name;
  std::string content;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// "bytes", "bpe", "unigram" or "sentencepiece".
  virtual std::string_view kind() const = 0;
  /// Number of ids, specials included; a model may pad its embedding to more.
  virtual int64_t vocab_size() const = 0;
  /// Ids of the special tokens, -1 where there is none.
  virtual int32_t bos() const = 0;
  virtual int32_t eos() const = 0;
  virtual int32_t pad() const = 0;
  /// Ids that end a text which a model writes: eos(), and those that generation_config.json or a
  /// GGUF name besides it (end of turn, end of message).
  std::vector<int32_t> ends() const;
  bool ends_text(int32_t token) const;
  virtual std::vector<SpecialToken> special_tokens() const = 0;

  /// Appends the tokens of `text`, without specials.
  virtual void append(std::string_view text, std::vector<int32_t>& tokens) const = 0;
  /// append() of text that goes on behind other text: text_prefix() does not come again.
  virtual void append_more(std::string_view text, std::vector<int32_t>& tokens) const {
    append(text, tokens);
  }
  /// Appends the tokens of a prefix of `text` that do not depend on what follows it, and returns
  /// the prefix's length (0: more text is needed). For texts that come in parts: then append() the
  /// rest.
  virtual size_t append_prefix(std::string_view text, std::vector<int32_t>& tokens) const {
    append(text, tokens);
    return text.size();
  }
  /// The text that encode() puts before every text and decode() takes away again: a space in models
  /// that come from SentencePiece, else nothing. The first piece of a text begins with it.
  virtual std::string_view text_prefix() const { return ""; }
  /// The bytes a token stands for; empty for specials. The view lives as long as the tokenizer.
  /// InputError for an id outside [0, vocab_size).
  virtual std::string_view piece(int32_t token) const = 0;

  /// Fingerprint of how text is cut into pieces, where the pieces alone do not say it.
  virtual uint64_t rules() const { return 0; }
  /// The file that holds this tokenizer in a model folder; load_tokenizer() of it gives the same.
  virtual TokenizerFile file() const = 0;

  std::vector<int32_t> encode(std::string_view text) const;
  /// Valid UTF-8: specials vanish, every invalid byte run becomes U+FFFD.
  std::string decode(std::span<const int32_t> tokens) const;
  /// Number of text bytes of the token, 0 for specials: the denominator of bits per byte.
  int64_t bytes_of(int32_t token) const { return static_cast<int64_t>(piece(token).size()); }
  /// 16 hex digits, equal exactly when texts become the same ids and these mean the same. Stored
  /// with token files and checkpoints.
  std::string fingerprint() const;

 protected:
  /// InputError for an id outside [0, vocab_size).
  void require_id(int32_t token) const;

  /// Sets ends() beside eos(). InputError, with `where`, for what is no id of this tokenizer.
  void set_ends(std::span<const int32_t> ends, const std::string& where);

 private:
  std::vector<int32_t> more_ends_;
};

/// Decodes token by token, for streaming output: what it returns is always complete, valid UTF-8,
/// and the concatenation of all results equals `decode` of all tokens. Holds a reference to the
/// tokenizer.
class IncrementalDecoder {
 public:
  /// Text that goes on keeps the space of its first word, which `decode` takes away at the start.
  enum class From { start, middle };
  explicit IncrementalDecoder(const Tokenizer& tokenizer, From from = From::start)
      : tokenizer_(tokenizer), from_(from) {}
  /// The text that this token completes; often "" inside a character of several bytes.
  std::string push(int32_t token);
  /// The rest at the end: U+FFFD for an unfinished character. The decoder is then as new.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  From from_;
  bool begun_ = false;
  Utf8Stream stream_;
};

/// One token a byte: ids 0..255 are bytes, 256 `<|begin|>`, 257 `<|end|>`, 258 `<|pad|>`.
std::shared_ptr<const Tokenizer> byte_tokenizer();

/// Reads a tokenizer.json, a SentencePiece model or a tiktoken rank file, or the one in a folder,
/// and the names of its marks from the tokenizer_config.json beside it. `encoding` is that of a
/// tiktoken file (fovea/text/tiktoken.h). InputError where the file is missing, damaged or none of
/// these; UnsupportedError, by name, where a part of it is not read.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::filesystem::path& path,
                                                std::string_view encoding = "");

/// The tokenizer file of a folder: tokenizer.json, tokenizer.model or the one *.tiktoken; the first
/// where there is none.
std::filesystem::path find_tokenizer_file(const std::filesystem::path& folder);

/// The tokenizer that a recipe or a user names: "bytes", else load_tokenizer(name); FILE:ENCODING
/// for a tiktoken file.
std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& name);

}  // namespace fovea
