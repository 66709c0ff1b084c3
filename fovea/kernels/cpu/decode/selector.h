// Queries that choose their keys, on the CPU (kernels/common/selector.h), and products and sums
// over listed keys for MagicPIG (spec 4.5).
//
// Functions exist for T = float and T = BFloat16; the instruction set is chosen_isa(). Threads:
// OpenMP. Results are the same bits for any number of threads.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fovea/kernels/common/selector.h"

namespace fovea::kernels {

template <class T>
void run(const ComponentChoice<T>& p);
void run(const LogitChoice& p);

/// Scores whose largest is kept beside them, so that few of them are looked at again.
constexpr int64_t kScoreBlock = 16;
/// Keys whose weights are relative to one reference: their logits stay in the first-level cache.
constexpr int64_t kWeightTile = 256;

/// The `count` largest of `scores`, ties to the lower index, ascending; maxima: of every
/// kScoreBlock of them.
std::vector<int32_t> largest_scores(std::span<const float> scores, std::span<const float> maxima,
                                    int64_t count);

/// Softmax weights of one row and several heads: key j of head h has
/// weights[h pitch + j] factors[h tiles() + j / kWeightTile].
struct RowWeights {
  float* weights = nullptr;
  int64_t pitch = 0;
  float* factors = nullptr;
  int64_t heads = 0, length = 0;

  int64_t tiles() const { return (length + kWeightTile - 1) / kWeightTile; }
};

/// Keys of one key head by component, and its queries cut to the components that they choose by.
template <class T>
struct ComponentRows {
  const T* keys = nullptr;  ///< component c of key j at c component + j
  int64_t component = 0;
  const int32_t* components = nullptr;
  int64_t count = 0;
  const float* q = nullptr;       ///< [heads][count], numbers of T
  const float* scales = nullptr;  ///< [heads]: of the products
  T* memory = nullptr;            ///< [count][kWeightTile], at whole words
};

/// Rows from use to prefetch; the first ones are the caller's to prefetch.
constexpr int64_t kListedAhead = 32;
/// Listed rows of keys or values.
template <class T>
struct ListedRows {
  const T* data = nullptr;
  int64_t row = 0, width = 0;
  const int32_t* list = nullptr;
  int64_t count = 0;
};

/// The functions of one instruction set, one thread.
template <class T>
struct SelectorTable {
  /// Weights of all keys by their products with the queries; to.pitch holds whole tiles, at most 16
  /// heads.
  void (*component_weights)(const ComponentRows<T>& rows, const RowWeights& to);
  /// The same in place of given logits.
  void (*logit_weights)(const RowWeights& logits);
  /// scores[j] = the weights of key j < length, summed over heads; maxima of every kScoreBlock.
  void (*scores)(const RowWeights& weights, int64_t length, float* scores, float* maxima);
  /// The list of the `count` largest scores, 0 < count <= length, as largest_scores() has it;
  /// memory: largest_memory(length).
  void (*largest)(const float* scores, const float* maxima, int64_t length, int64_t count,
                  int32_t* memory, int32_t* list);
  /// products[n] = q . rows[list[n]].
  void (*products)(const float* q, const ListedRows<T>& rows, float* products);
  /// out = sum_n weights[n] rows[list[n]].
  void (*weighted_sum)(const float* weights, const ListedRows<T>& rows, float* out);
};
constexpr int64_t largest_memory(int64_t length) {
  return 2 * length + 2 * ((length + kScoreBlock - 1) / kScoreBlock);
}
/// Those of chosen_isa().
template <class T>
const SelectorTable<T>& selector_table();

}  // namespace fovea::kernels
