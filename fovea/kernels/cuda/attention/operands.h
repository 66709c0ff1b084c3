// From the contract's structs to the arguments of a launch: what all attention kernels share
// (internal to kernels/cuda/attention/).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "fovea/base/error.h"
#include "fovea/kernels/common/contract.h"
#include "fovea/kernels/cuda/attention/units.h"
#include "fovea/kernels/cuda/machine.h"

namespace fovea::kernels::cuda {

using Reason = std::optional<std::string>;

/// The generation of a machine's kernels in this build; wgmma exists on 9.0 alone.
std::optional<Generation> generation_of(const Machine& machine);
/// Why this build has no kernels for a machine.
Reason why_not_machine(const Machine& machine);
/// Why no kernel has these sizes.
Reason why_not_sizes(const AttentionSizes& sizes);
/// Why no kernel has these settings.
Reason why_not_rule(const ScoreParameters& rule);
/// Whether a unit is of the machine's generation and fits into its shared memory.
bool serves(const Unit& unit, const Machine& machine, int64_t head_dim);

/// ShapeError where rows are not of 16-byte alignment: copies read 16 bytes at once.
template <class T>
Rows rows_of(const HeadRows<T>& x, const char* name) {
  const bool aligned = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.row % 8 == 0 &&
                       x.head % 8 == 0 && x.batch % 8 == 0;
  require<ShapeError>(aligned, "cuda",
                      "expected {} with rows of 16-byte alignment; got strides {}, {}, {}", name,
                      x.batch, x.head, x.row);
  return {const_cast<std::remove_const_t<T>*>(x.data), x.batch, x.head, x.row};
}

/// Sizes, rows and scale of a problem, forward or backward.
template <class P>
Problem operands_of(const P& p) {
  Problem out{};
  out.q = rows_of(p.q, "q");
  out.k = rows_of(p.k, "k");
  out.v = rows_of(p.v, "v");
  out.o = rows_of(p.out, "out");
  if (p.out_rest.data != nullptr) out.o_rest = rows_of(p.out_rest, "out_rest");
  out.lse = const_cast<float*>(p.lse);
  out.batch = static_cast<int32_t>(p.sizes.batch);
  out.heads = static_cast<int32_t>(p.sizes.heads);
  out.kv_heads = static_cast<int32_t>(p.sizes.kv_heads);
  out.queries = static_cast<int32_t>(p.sizes.queries);
  out.keys = static_cast<int32_t>(p.sizes.keys);
  out.scale = p.rule.scale;
  return out;
}

/// The rows of a backward problem, and the length of its row sums.
template <class P>
void set_gradients(Problem& out, const P& p) {
  out.d_o = rows_of(p.dout, "dout");
  out.dq = rows_of(p.dq, "dq");
  out.dk = rows_of(p.dk, "dk");
  out.dv = rows_of(p.dv, "dv");
  out.d_lse = p.dlse;
  out.padded = (p.sizes.queries / kEntryAlign + 1) * kEntryAlign;
}

/// A piece of scratch that is 0 for what comes later in the stream.
inline float* zeros(Scratch& scratch, int64_t count, Stream stream) {
  float* const piece = scratch.take<float>(count);
  fill_with_zeros(piece, count * int64_t{sizeof(float)}, stream);
  return piece;
}

}  // namespace fovea::kernels::cuda
