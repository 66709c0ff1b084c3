// The attention kernels of one instruction set and type as a table (kernel_table.h).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cpu/decode/attention_decode.h"
#include "fovea/kernels/cpu/grouped/grouped_rows.h"
#include "fovea/kernels/cpu/kernel_table.h"
#include "fovea/kernels/cpu/pointwise/attention_backward.h"
#include "fovea/kernels/cpu/pointwise/attention_backward_rows.h"
#include "fovea/kernels/cpu/pointwise/attention_forward.h"

namespace fovea::kernels {
namespace {

template <class T, class P>
AttentionTable<T> attention_table_of(const char* isa, const GatedPasses<T>& gated) {
  return {.isa = isa,
          .panel = kPanel,
          .elements = P::kElements,
          .lanes = kLanes,
          .forward_scratch = forward_floats,
          .backward_scratch = backward_floats<P>,
          .pack = pack_panel<T, P>,
          .forward = forward_block<T, P>,
          .delta = delta_rows<T>,
          .backward = backward_block<T, P>,
          .gated = gated,
          .query_gradient = query_gradient_rows<T>,
          .join = join_rows<T>,
          .scan = scan_members,
          .decode_heads = kDecodeHeads,
          .decode_fetched = kDecodeFetched,
          .decode_scratch = decode_floats,
          .decode = decode_block<T, P>,
          .finish_decode = finish_decode_row<T>,
          .gate_row = gate_row};
}

template <Isa isa, class T>
AttentionTable<T> table_of() {
  return attention_table_of<T, FastestWords>(kIsaNames[static_cast<int>(isa)],
                                             kernel_table<GatedPasses<T>, isa>());
}

}  // namespace
}  // namespace fovea::kernels
