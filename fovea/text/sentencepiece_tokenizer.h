// Tokenizers of SentencePiece models: BPE (LLaMA-2, Mistral) and Unigram (T5, XLNet, mBART).
//
// Encodings are those of the `sentencepiece` package, in which a text cannot forge control pieces.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "fovea/text/json_tokenizer.h"
#include "fovea/text/sentencepiece_model.h"

namespace fovea {

/// Makes a tokenizer of a model that was read, or of lists from elsewhere (a GGUF file). The begin
/// mark is the control piece `model.bos`, where `marks` do not say that none is added. `where`
/// names the source in errors. InputError for a model that contradicts itself.
std::shared_ptr<const Tokenizer> sentencepiece_tokenizer(const SentencePieceModel& model,
                                                         const MarkNames& marks,
                                                         const std::string& where);

}  // namespace fovea
