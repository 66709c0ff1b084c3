// Base64 as tokenizer files use it: the alphabet of RFC 4648, section 4, with padding.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fovea {

/// The bytes, or nothing where `text` is no base64.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace fovea
