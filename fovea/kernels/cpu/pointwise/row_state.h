// The state of a row over some of its keys (RowState): merging, and what drivers are told.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/pointwise/attention_table.h"

namespace fovea::kernels {
namespace {

/// Takes in what a row has seen of other keys, under its own reference; returns the factor of their
/// sums.
FOVEA_INLINE float merge(RowState& row, const RowState& other, bool stats) {
  const float shift = other.reference - row.reference;
  const float factor = shift == 0.0f ? 1.0f : __builtin_exp2f(shift);
  row.total += factor * other.total;
  if (!stats) return factor;
  row.spread += factor * (other.spread + other.total * shift);
  row.first += factor * other.first;
  const float largest = other.largest + shift;
  if (largest > row.largest) row.largest = largest;
  return factor;
}

/// Notes for the driver that some result is not finite; threads share the note.
FOVEA_INLINE void note_not_finite(bool* note) {
  if (note != nullptr) __atomic_store_n(note, true, __ATOMIC_RELAXED);
}

}  // namespace
}  // namespace fovea::kernels
