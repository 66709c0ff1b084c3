// Which mechanisms combine: every pair put through the checks of AttentionSpec, as data and as the
// table of docs/mechanisms/pipeline.md.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "fovea/attention/mechanisms/mechanism.h"

namespace fovea {

/// The settings of all mechanisms.
std::span<const MechanismSetting> mechanism_settings();

/// Why two settings have no meaning together, in the words of the error; "" where they combine.
std::string why_not_together(const MechanismSetting& a, const MechanismSetting& b);

/// The table as Markdown: where each setting acts, on which paths it runs, with what it combines.
std::string composition_markdown();

}  // namespace fovea
