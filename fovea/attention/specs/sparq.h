// SparQ: a query chooses the keys that it reads by its largest components; the mean value stands
// for the rest (spec 4.4; Ribar et al. 2023).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/config/fields.h"

namespace fovea {

struct Mechanism;

struct SparqSpec {
  int64_t components = 0;  ///< r: largest components of the query that choose; 0 = off
  int64_t keys = 128;      ///< k: past keys that are read
  int64_t recent = -1;     ///< l: the last past ones always among them; below 0 = keys / 4
  bool reallocate = true;  ///< the mean value gets the weight of what is not read

  bool active() const { return components > 0; }
  int64_t recent_keys() const { return recent < 0 ? keys / 4 : recent; }
  void describe(FieldVisitor& v);
  void check() const;
  bool operator==(const SparqSpec&) const = default;
};

const Mechanism& sparq_mechanism();

}  // namespace fovea
