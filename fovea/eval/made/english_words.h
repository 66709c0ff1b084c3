// Words that the made tasks draw from: ordinary English, and cities.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

namespace fovea {

/// Each list is sorted and has every word once.
std::span<const std::string_view> english_adjectives();
std::span<const std::string_view> english_nouns();
std::span<const std::string_view> english_verbs();
/// Some have two words ("San Francisco"); none is the beginning of another.
std::span<const std::string_view> city_names();

}  // namespace fovea
