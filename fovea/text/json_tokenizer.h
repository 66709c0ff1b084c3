// Tokenizers of Hugging Face's tokenizer.json: byte-level BPE (GPT-2, NeoX, LLaMA-3, Qwen) and the
// kinds that come from SentencePiece: BPE (LLaMA-2, Mistral, Gemma) and Unigram (T5, ALBERT).
//
// Encodings are those of the `tokenizers` package with encode_special_tokens, its setting in which
// a text cannot forge special tokens; and no begin mark is added.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fovea/text/tokenizer.h"

namespace fovea {

/// Names of the marks, "" = not known: tokenizer_config.json has them. The begin mark is what the
/// file's own template puts first, so a tokenizer that adds none has none.
struct MarkNames {
  std::string eos, pad;
  /// Whether a begin mark is put before a text, where the file itself does not say it.
  std::optional<bool> adds_bos{};
  /// More ids that end a text (Tokenizer::ends).
  std::vector<int32_t> ends{};
};

/// Makes a tokenizer of the content of a tokenizer.json. `where` names the file in errors.
/// InputError for a damaged file or ends that are no ids of it, UnsupportedError for parts that
/// this reader does not have, by name.
std::shared_ptr<const Tokenizer> json_tokenizer(std::string json, const MarkNames& marks,
                                                const std::string& where);

}  // namespace fovea
