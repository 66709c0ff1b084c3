// Rank files of tiktoken: a line for each token, its bytes in base64 and its rank.
//
// The file does not say how text is split into words nor which special tokens there are: that is
// part of a named encoding.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace fovea {

/// Whether a text begins as a rank file does.
bool looks_like_tiktoken(std::string_view text);

/// The tokenizer.json that encodes as tiktoken does with these ranks. `encoding` is gpt2, p50k,
/// cl100k, o200k, llama3 or qwen; "" finds it by the number of ranks. InputError for a damaged file
/// or an unknown name.
std::string tiktoken_json(std::string_view text, std::string_view encoding,
                          const std::string& where);

}  // namespace fovea
