// Copy score: how well a model predicts a text that it has just read (spec 11.7). A window of n
// tokens is followed by the same n again; the second time, only the tokens n places back help.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "fovea/nn/transformer.h"
#include "fovea/text/tokenizer.h"

namespace fovea {

struct CopyScore {
  int64_t length = 0, windows = 0;
  double first = 0.0, second = 0.0;  ///< perplexity of the window, and of its repetition
};

/// Up to `windows` disjoint windows from the start of the text. InputError where it holds none.
CopyScore copy_score(const Transformer& model, const Tokenizer& tokenizer, const std::string& text,
                     int64_t length, int64_t windows);

}  // namespace fovea
