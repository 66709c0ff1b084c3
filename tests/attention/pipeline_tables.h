// The tables of docs/mechanisms/pipeline.md as Markdown: the stages, and which settings combine.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fovea/attention/mechanism.h"

namespace fovea::testing {

/// The stage table.
std::string stages_markdown();

/// The settings of all mechanisms.
std::vector<MechanismSetting> mechanism_settings();

/// Two values of one setting are a choice, not a combination.
inline constexpr std::string_view kOneSetting = "two values of one setting";

/// Reason why two settings do not act together: of the table of refusals, or kOneSetting; "" where
/// they do.
std::string why_not_together(const MechanismSetting& a, const MechanismSetting& b);

/// Where each setting acts, on which paths it runs, with what it combines; then the reasons.
std::string composition_markdown();

}  // namespace fovea::testing
