// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/engine/request.h"

#include <array>

namespace fovea {
namespace {

constexpr std::array<std::string_view, 5> kOutcomes{"done", "cancelled", "deadline", "stopped",
                                                    "failed"};

}  // namespace

std::span<const std::string_view> enum_names(RequestOutcome) { return kOutcomes; }

}  // namespace fovea
