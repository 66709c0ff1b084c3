// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/metaspace.h"

#include "fovea/text/normalizer.h"

namespace fovea {

void Metaspace::words(std::string_view text, Place place,
                      const std::function<void(std::string_view)>& word) const {
  std::string marked = replace_all(text, " ", mark);
  const bool wanted = (prepend == Prepend::always && place != Place::middle) ||
                      (prepend == Prepend::first && place == Place::start);
  if (wanted && !marked.starts_with(mark)) marked.insert(0, mark);
  std::string_view rest = marked;
  while (split && !rest.empty()) {
    const size_t next = rest.find(mark, rest.starts_with(mark) ? mark.size() : 0);
    if (next == std::string_view::npos) break;
    word(rest.substr(0, next));
    rest.remove_prefix(next);
  }
  if (!rest.empty()) word(rest);
}

}  // namespace fovea
