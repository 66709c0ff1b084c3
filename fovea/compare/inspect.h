// Inspection of models: attention maps and statistics on a text, as data for the page
// (fovea/report).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "fovea/nn/transformer.h"
#include "fovea/report/inspect_result.h"
#include "fovea/text/tokenizer.h"

namespace fovea {

struct InspectOptions {
  int64_t tokens = 128;              ///< of the text, at most
  std::vector<int64_t> layers = {};  ///< of the maps; empty = all
  std::vector<int64_t> heads = {};
  int64_t top_tokens = 8;  ///< of a group
  int64_t pairs = 12;      ///< distant pairs a layer
};

/// One model on a text. ConfigError for layers and heads that it does not have, InputError for an
/// empty text.
InspectModel inspect_model(const std::string& name, const Transformer& model,
                           const Tokenizer& tokenizer, const std::string& text,
                           const InspectOptions& options);

/// The same, but for the maps, from views of all layers (Transformer::look()) on the tokens that
/// `pieces` are the texts of.
InspectModel inspect_views(const std::string& name, const Transformer& model,
                           std::vector<std::string> pieces, std::span<const LayerView> views,
                           const InspectOptions& options);

/// Classes of printable token pieces: space, word (starts a word), continuation, digits,
/// punctuation.
std::string token_class(std::string_view piece);

}  // namespace fovea
