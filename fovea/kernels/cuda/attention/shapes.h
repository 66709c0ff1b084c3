// Tiles, threads and shared memory of the CUDA attention kernels, by head size.
//
// An H100 has 227 KiB of shared memory a block and 64 Ki registers a multiprocessor, an A100 163
// KiB.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace fovea::kernels::cuda {

/// mma.sync, forward: two blocks share a multiprocessor.
template <int D>
struct ForwardMmaShape {
  static constexpr int kQueries = 128, kKeys = 64, kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kRowBlocks = kQueries / kWarps / 16;
  static constexpr int kQueryBytes = kQueries * D * 2, kKeyBytes = kKeys * D * 2;
  static constexpr int kShared = kQueryBytes + 4 * kKeyBytes;
  static constexpr int kBlocksPerSM = 2;
};

/// mma.sync, backward.
template <int D>
struct BackwardMmaShape {
  static constexpr int kKeys = 128, kQueries = 64, kWarps = 8, kThreads = 32 * kWarps;
  static constexpr int kKeyBytes = kKeys * D * 2, kQueryBytes = kQueries * D * 2;
  static constexpr int kScoreBytes = kKeys * kQueries * 2;
  static constexpr int kRowBytes = kQueries * 4;
  // k, v, two stages of (q, d_o), dS^T, two stages of (lse2, delta, scale)
  static constexpr int kShared = 2 * kKeyBytes + 4 * kQueryBytes + kScoreBytes + 6 * kRowBytes;
};

/// wgmma, forward. kGathers: rows are entries of Focus, which the producers look up. kGated: a soft
/// gate needs registers.
template <int D, bool kGathers, bool kGated = false>
struct ForwardWgmmaShape {
  static constexpr int kConsumers = D == 64 && !kGathers && !kGated ? 3 : 2;
  static constexpr int kQueries = 64 * kConsumers, kKeys = 128, kStages = 2;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kProducerRegisters = kGathers ? 40 : kConsumers == 2 ? 24 : 32;
  static constexpr int kConsumerRegisters = kGathers ? 232 : kConsumers == 2 ? 240 : 160;
  static constexpr int kFillers = kGathers ? 64 : 1;  // arrivals that fill a tile
  static constexpr int kQueryBytes = kQueries * D * 2, kKeyBytes = kKeys * D * 2;
  static constexpr int kSetBytes = kKeys * 8;  ///< sets of the keys of a tile, for the pair test
  static constexpr int kShared = 1024 + kQueryBytes + kStages * (2 * kKeyBytes + kSetBytes) + 128;
};

/// wgmma, backward.
template <int D>
struct BackwardWgmmaShape {
  static_assert(D == 64 || D == 128);
  static constexpr int kKeys = 128, kQueries = D == 64 ? 128 : 64, kStages = 2, kThreads = 384;
  static constexpr int kKeyBytes = kKeys * D * 2, kQueryBytes = kQueries * D * 2;
  static constexpr int kScoreBytes = kKeys * kQueries * 2, kSumBytes = 8 * 4096;
  static constexpr int kColumnBytes = kQueries * 4, kRowBytes = 5 * kColumnBytes;
  // k, v; stages of q, d_o, dS and the row data; dQ on its way out
  static constexpr int kShared = 1024 + 2 * kKeyBytes + kSumBytes + 128 +
                                 kStages * (2 * kQueryBytes + kScoreBytes + kRowBytes);
};

}  // namespace fovea::kernels::cuda
