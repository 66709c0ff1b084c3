// Memory that the threads of a decoder work in (internal to decoder.cpp).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "fovea/kernels/cpu/decode/attention_decode_driver.h"
#include "fovea/kernels/cpu/decode/decoder.h"

namespace fovea::kernels {

/// Buffers of one thread: rows of the width, and its slice of the feed-forward.
template <class T>
struct ThreadBuffers {
  std::vector<T> x, y, sum, mixed, inner;  // x: the residual stream
  std::vector<float> wide, centred;        // inputs of products
  const T* attention_input = nullptr;
};

/// The attention of one layer, in pieces.
template <class T>
struct LayerAttention {
  AttentionDecode<T> problem;
  std::vector<RowVisits> seen;
  std::vector<int64_t> first_rows;
  Decode<T> work;

  explicit LayerAttention(const AttentionDecode<T>& of)
      : problem(of),
        seen(static_cast<size_t>(of.sizes.batch)),
        first_rows(seen.size()),
        work(problem) {
    problem.rows = seen;
    problem.first_rows = first_rows;
  }
  LayerAttention(const LayerAttention&) = delete;

  /// The cache of this step.
  void read(const DecoderLayerStep<T>& step) {
    work.read_from(step.caches);
    problem.keys_seen = {};
    for (size_t b = 0; b < seen.size(); ++b) {
      seen[b] = step.sequences[b].seen;
      first_rows[b] = step.sequences[b].first;
    }
    count_keys();
  }
  /// Some of the keys alone: one list a sequence, of at most as many keys as read() gave.
  void read(const IntRows& lists) {
    problem.keys_seen = lists;
    for (int64_t b = 0; b < lists.rows(); ++b)
      seen[b].near = {.begin = 0, .end = std::ssize(lists.of(b)), .shift = 0};
    count_keys();
  }

 private:
  void count_keys() {
    problem.sizes.keys = 0;
    for (const RowVisits& row : seen)
      problem.sizes.keys = std::max({problem.sizes.keys, row.near.end, row.far.end});
    work.count_chunks();
  }
};

}  // namespace fovea::kernels
