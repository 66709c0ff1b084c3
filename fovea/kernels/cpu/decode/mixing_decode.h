// Decoding with Multi-Token and talking-heads attention on the CPU: few queries, whose keys and
// values are read once, where they lie (MixingDecode in kernels/common/mixing.h).
//
//   queries:   earlier of before | earlier of after | results        (spec 3.6, M-10)
//   logits          x                   x                x           scale, soft-cap, Mask0
//   weights                             x                x           convolve, mix, gate and
//                                                                    biases, softmax
//   out                                                  x           convolve, mix, values
//
// Each stage computes the rows that the next one reads, of all heads, in steps of 64 keys. A
// convolution reads neighbouring steps where the stage before left them. Rows before the first
// query do not exist and count as rows that see nothing.
//
// Memory beyond inputs and outputs: heads x (rows of logits + rows of weights) x keys floats of one
// sequence, kept from call to call. Steps lie on a fixed grid and sums over them are taken in their
// order: the same bits for any number of threads and any neighbours in the batch. A number that is
// not finite reaches only the rows that see it: unseen pairs are chosen away, not multiplied by 0.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "fovea/kernels/common/mixing.h"

namespace fovea::kernels {

template <class T>
struct MixingDecodeTable;  // mixing_decode_table.h

/// Why there is no such kernel for these sizes and rules.
std::optional<std::string> why_not_mixing_decode(const AttentionSizes& sizes,
                                                 const ScoreParameters& rule,
                                                 const MixingRule& mixing);

/// For T = float and BFloat16; `table`: other kernels than those of the instruction set in force,
/// for tests. UnsupportedError where why_not_mixing_decode() has a reason, ShapeError for
/// impossible sizes.
template <class T>
void run(const MixingDecode<T>& problem, const MixingDecodeTable<T>* table = nullptr);

/// The name of the kernels' instruction set.
template <class T>
std::string_view mixing_decode_isa();

}  // namespace fovea::kernels
