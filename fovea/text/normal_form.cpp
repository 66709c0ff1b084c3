// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/text/normal_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "fovea/base/error.h"
#include "fovea/text/utf8.h"

namespace fovea {

bool surely_normal_form_c(std::string_view text) {
  // U+0300 is 0xCC 0x80: every byte of a smaller character is below 0xCC.
  return std::ranges::none_of(text, [](char c) { return static_cast<unsigned char>(c) >= 0xCC; });
}

std::string normal_form_c(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t valid = valid_utf8_prefix(text);
    if (valid > 0) {
      utf8proc_uint8_t* mapped = nullptr;
      const utf8proc_ssize_t size =
          utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                       static_cast<utf8proc_ssize_t>(valid), &mapped,
                       static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
      const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(mapped, std::free);
      if (size == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
      require<InputError>(size >= 0, "tokenizer", "text cannot be normalised: {}",
                          utf8proc_errmsg(size));
      out.append(reinterpret_cast<const char*>(mapped), static_cast<size_t>(size));
      text.remove_prefix(valid);
    }
    if (text.empty()) break;
    const size_t bad = utf8_step(text).size;
    out.append(text.substr(0, bad));
    text.remove_prefix(bad);
  }
  return out;
}

}  // namespace fovea
