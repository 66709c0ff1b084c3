// Unicode normal forms and letter cases, which some tokenizers apply before anything else.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace fovea {

enum class NormalForm { c, d, kc, kd };

/// `text` in a normal form of Unicode 9, as the `tokenizers` package has it: characters that came
/// later are ordinary ones. Bytes that are not UTF-8 stay as they are.
std::string normal_form(std::string_view text, NormalForm form);

/// Whether `text` is ASCII or otherwise certainly in NFC already (no character from U+0300 on).
bool surely_normal_form_c(std::string_view text);

/// Every character in lower case, and `text` without combining marks. `text` is valid UTF-8.
std::string lower_case(std::string_view text);
std::string without_marks(std::string_view text);

}  // namespace fovea
