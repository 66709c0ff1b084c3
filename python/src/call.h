// A call of the operators: its operands and settings, in the order of the schema, and their checks.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "fovea/base/error.h"
#include "fovea/kernels/common/mask_rule.h"
#include "tensors.h"

namespace fovea::python {

// The operands of a call that may be absent: float32 and contiguous, on the device of q. From
// places on they are int64; places may lie on the CPU, the seed always does.
enum Slot {
  kTau,
  kBias,
  kSinkLogit,
  kKernelBefore,
  kKernelAfter,
  kMixBefore,
  kMixAfter,
  kGateQuery,
  kGateKey,
  kLearnedSlots,
  kAlibi = kLearnedSlots,
  kQueryPositions,
  kKeyPositions,
  kQueryDocuments,
  kKeyDocuments,
  kMembers,  ///< hard Focus: bits of the groups of a key; the queries are the last keys
  kBlockPairs,
  kDropoutSeed,
  kSlots
};
// The sizes of an operand: a letter an axis, B batch, b batch or 1, h heads, t queries, s keys, 1
// one, n one or more, m any. Kernels write its gradient for every row of the batch; those of tau
// and, but for joined pairs, of the gate for every head.
struct SlotRow {
  const char* name;
  const char* sizes;
};
inline constexpr SlotRow kTable[kSlots] = {{"tau", "Bt"},
                                           {"bias", "hn"},
                                           {"sink_logit", "h"},
                                           {"kernel_before", "hnn"},
                                           {"kernel_after", "hnn"},
                                           {"mix_before", "nnn"},
                                           {"mix_after", "nnn"},
                                           {"gate_query", "Btn"},
                                           {"gate_key", "Bsn"},
                                           {"alibi", "h"},
                                           {"query_positions", "bt"},
                                           {"key_positions", "bs"},
                                           {"query_documents", "bt"},
                                           {"key_documents", "bs"},
                                           {"members", "Bs"},
                                           {"block_pairs", "mn"},
                                           {"dropout_seed", "1"}};

// Settings before the operands of the table, and after them. What has a default need not be given:
// the conversion of each value costs a twentieth of a short call.
inline constexpr const char* kSettings =
    "bool causal, float scale, float soft_cap, int window, int sinks";
inline constexpr const char* kOtherSettings =
    "int bias_first=0, bool eq4=False, bool renormalise=False, int gate=0, float gate_offset=0.0, "
    "bool gate_learned=False, int near=0, int near_sinks=0, int groups=0, int most_groups=0, "
    "int block_size=0, bool stats=False, int mask_stride=0, int mask_block=0, int mask_summary=0, "
    "float dropout=0.0, int dropout_layer=0";

struct Call {
  Tensor q, k, v;
  std::array<std::optional<Tensor>, kSlots> slots;
  bool causal = true, eq4 = false, renormalise = false;
  double scale = 1.0, soft_cap = 0.0;
  int64_t bias_first = 0, window = 0, sinks = 0;
  // Focus (pair_gate.h): the form, and its offset, which a learned strength replaces by a column;
  // pairs nearer than `near` and keys below `near_sinks` are local; groups of `members`.
  int64_t gate = 0;
  double gate_offset = 0.0;
  bool gate_learned = false;
  int64_t near = 0, near_sinks = 0, groups = 0;
  int64_t most_groups = 0;  ///< of a token; 0: all of them
  int64_t block_size = 0;
  bool stats = false;
  int64_t mask_stride = 0;                   ///< of a strided mask (mask_rule.h); 0: it is none
  int64_t mask_block = 0, mask_summary = 0;  ///< of a fixed one
  double dropout = 0.0;                      ///< of weights, by the counter of kDropoutSeed
  int64_t dropout_layer = 0;

  const std::optional<Tensor>& operator[](Slot slot) const { return slots[slot]; }
  bool has_bias() const { return slots[kBias] || slots[kAlibi]; }
  bool has_places() const {
    for (int n = kQueryPositions; n <= kKeyDocuments; ++n)
      if (slots[n]) return true;
    return false;
  }
  bool joins_pairs() const {
    return slots[kKernelBefore] || slots[kKernelAfter] || slots[kMixBefore] || slots[kMixAfter];
  }
};

template <class... Args>
void expect(bool holds, fmt::format_string<Args...> text, Args&&... args) {
  fovea::require<fovea::ShapeError>(holds, "fovea.attention", text, std::forward<Args>(args)...);
}

inline MaskRule mask_rule(const Call& call) {
  using Sparsity = MaskRule::Sparsity;
  return {.causal = call.causal,
          .window = call.window,
          .sinks = call.sinks,
          .sparsity = call.mask_stride > 0  ? Sparsity::strided
                      : call.mask_block > 0 ? Sparsity::fixed
                                            : Sparsity::full,
          .stride = call.mask_stride,
          .block = call.mask_block,
          .summary = call.mask_summary};
}

/// ShapeError where operands do not fit; `x` is q, k, v or a gradient of their kind.
void check_rows(const Tensor& x, const char* name, const Tensor& q);
void check(const Call& call);

}  // namespace fovea::python
