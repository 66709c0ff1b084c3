// Unicode normal form C, which some tokenizers apply before anything else.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace fovea {

/// `text` in the NFC of Unicode 9, as the `tokenizers` package has it: characters that came later
/// are ordinary ones. Bytes that are not UTF-8 stay as they are.
std::string normal_form_c(std::string_view text);

/// Whether `text` is ASCII or otherwise certainly in NFC already (no character from U+0300 on).
bool surely_normal_form_c(std::string_view text);

}  // namespace fovea
