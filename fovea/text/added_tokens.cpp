// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/added_tokens.h"

#include <algorithm>

namespace fovea {

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& t) { return t.text.empty(); });
  std::ranges::stable_sort(tokens_, std::ranges::greater(),
                           [](const AddedToken& t) { return t.text.size(); });
  for (size_t i = 0; i < tokens_.size(); ++i)
    by_byte_[static_cast<uint8_t>(tokens_[i].text[0])].push_back(i);
  // With special tokens alone nothing is ever found.
  if (std::ranges::all_of(tokens_, &AddedToken::special)) tokens_.clear();
}

const AddedToken* AddedTokens::at(std::string_view text, size_t place) const {
  for (const size_t candidate : by_byte_[static_cast<uint8_t>(text[place])])
    if (text.substr(place).starts_with(tokens_[candidate].text)) return &tokens_[candidate];
  return nullptr;
}

}  // namespace fovea
