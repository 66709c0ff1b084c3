// Which settings have no meaning together, as one table of rows: setting, setting, reason.
//
// Mechanisms check their own keys; the table alone refuses combinations. Two mechanisms with a rule
// for distant keys (Mechanism::key_rule) exclude each other without a row.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "fovea/attention/spec.h"

namespace fovea {

/// A combination that a spec has and that is refused.
struct Refusal {
  std::string_view setting, other;
  std::string_view reason;
  std::string_view remedy = "remove one of them";

  /// "routing with head_mix is not defined (each head sees other pairs); remove one of them".
  std::string message() const;
};

/// The first refused combination of `spec`.
std::optional<Refusal> refusal(const AttentionSpec& spec);

}  // namespace fovea
