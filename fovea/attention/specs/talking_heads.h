// HeadMixSpec: mixing heads before and after the softmax (spec 2).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "fovea/config/fields.h"

namespace fovea {

struct Mechanism;

/// Head mixing (stages 4 and 9): Multi-Token Attention's head convolution (3.2, M-5) and
/// talking-heads attention (spec 2: both `full`, nothing else).
struct HeadMixSpec {
  /// `full`: one matrix over all heads; `groups`: one matrix for every `group` consecutive heads.
  enum class Kind { none, full, groups };

  Kind before = Kind::none;
  Kind after = Kind::none;
  int64_t group = 0;  ///< ch of `groups`

  /// Heads that mix with each other; 0 where nothing mixes.
  int64_t width(Kind kind, int64_t heads) const;
  void describe(FieldVisitor& v);
  void check(int64_t heads) const;
  bool operator==(const HeadMixSpec&) const = default;
};

std::span<const std::string_view> enum_names(HeadMixSpec::Kind);

const Mechanism& head_mix_mechanism();

}  // namespace fovea
