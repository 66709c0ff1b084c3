// The text of one JSONL record.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace fovea {

struct JsonLineText {
  std::string text;
  std::string problem;  // not empty: there is no text, and why ("no key 'text' (keys: body, id)")
};

/// The string under the key `field` of the object in `line`. Other values are parsed and dropped,
/// never stored.
JsonLineText text_of_json_line(std::string_view line, std::string_view field);

}  // namespace fovea
