// Finds the legal name nearest to a misspelt one, for error messages.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace fovea {

/// Edit distance with transpositions (optimal string alignment); both arguments are bytes.
int edit_distance(std::string_view a, std::string_view b);

/// The candidate closest to `name`, or "" when none is close enough to be a likely misspelling.
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

/// " (did you mean 'x'?)" or "".
std::string did_you_mean(std::string_view name, std::span<const std::string> candidates);

}  // namespace fovea
