// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/normalizer.h"

#include "fovea/text/characters.h"

namespace fovea {

std::string Normalizer::apply(std::string_view text, bool goes_on) const {
  std::string out(text);
  for (const Kept& kept : steps_)
    if (!kept.prefix || !goes_on) out = kept.step(out);
  return out;
}

std::string replace_all(std::string_view text, const Pattern& pattern, std::string_view content) {
  std::string out;
  Pattern::Search search(pattern, text);
  size_t done = 0;
  while (const auto match = search.next()) {
    out.append(text.substr(done, match->begin - done)).append(content);
    done = match->end;
  }
  return out.append(text.substr(done));
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view content) {
  std::string out;
  out.reserve(text.size() + text.size() / 2);
  size_t done = 0;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, done)) {
    out.append(text.substr(done, at - done)).append(content);
    done = at + from.size();
  }
  return out.append(text.substr(done));
}

std::string_view strip_spaces(std::string_view text, Ends ends) {
  if (ends != Ends::right) text.remove_prefix(leading_spaces(text));
  if (ends != Ends::left) text.remove_suffix(trailing_spaces(text));
  return text;
}

}  // namespace fovea
