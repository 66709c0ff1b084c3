// MagicPIG: a query samples keys by locality-sensitive hashing and divides each weight by the
// chance of the key's choice (spec 4.5; Chen et al. 2024).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/config/fields.h"

namespace fovea {

struct Mechanism;

struct MagicPigSpec {
  int64_t bits = 0;      ///< K: of a hash; 0 = off
  int64_t tables = 150;  ///< L
  int64_t start = 4;     ///< first positions of the document, always read
  int64_t recent = 64;   ///< the last keys before the sampled region's end, always read
  int64_t seed = 0;      ///< of the projections

  bool active() const { return bits > 0; }
  void describe(FieldVisitor& v);
  void check() const;
  bool operator==(const MagicPigSpec&) const = default;
};

const Mechanism& magic_pig_mechanism();

}  // namespace fovea
