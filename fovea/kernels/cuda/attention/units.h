// The compiled attention kernels of a build: launches by form, and their list.
//
// Each explicit instantiation of a launch is a unit of its own (cmake/FoveaCuda.cmake makes the
// units and the list). A launch returns 0 or a cudaError_t.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "fovea/kernels/cuda/attention/forms.h"
#include "fovea/kernels/cuda/attention/problem.h"
#include "fovea/kernels/cuda/stream.h"

namespace fovea::kernels::cuda {

using Launch = int (*)(const Problem&, Stream);

// Defined in launch_mma.cuh and launch_wgmma.cuh.
template <int D, ScoreForm, MaskForm>
int mma_forward(const Problem& p, Stream stream);
template <int D, ScoreForm, MaskForm>
int mma_backward(const Problem& p, Stream stream);
template <int D, ScoreForm, MaskForm>
int wgmma_forward(const Problem& p, Stream stream);
/// dq_sum and dq_entries are zeros.
template <int D, ScoreForm, MaskForm>
int wgmma_backward(const Problem& p, Stream stream);

// Defined in launch_rows.cuh.

/// lse2, delta and d_sink_logit, before the backward kernels.
template <int D>
int before_backward(const Problem& p, Stream stream);
/// dq and d_temperature from dq_sum, after them; dk and dv too where `focus`. `per_row`: the
/// kernel's score has a scale of each row.
template <int D>
int after_mma_backward(const Problem& p, bool per_row, bool focus, Stream stream);
template <int D>
int after_wgmma_backward(const Problem& p, bool per_row, bool focus, Stream stream);

// Defined in plan.cuh.

/// The plan of hard Focus: entry_token to segment_end, from `membership`. `plans`: heads with sets
/// of their own (1 where all share them).
int sort_groups(const Problem& p, int plans, Stream stream);

// Defined in gate_rows.cuh.

/// The factors of one side of a gate, [b, tokens, columns], and where they go packed: [b, chunk or
/// token, ...] of `padded` tokens (gate.cuh).
struct GatePacking {
  const float* from;
  int64_t from_batch;
  int32_t batch, tokens, padded, columns, chunks;
  uint64_t *rows, *pairs;
};
int pack_gate(const GatePacking& p, Stream stream);
/// d_gate_query from gate_query_sum.
int finish_gate(const Problem& p, Stream stream);

struct Unit {
  Generation generation;
  int head_dim;
  ScoreForm score;
  MaskForm mask;
  int forward_shared_bytes, backward_shared_bytes;
  Launch forward, backward;
  Launch before;
  int (*after)(const Problem&, bool per_row, bool focus, Stream);

  bool per_row() const {
    return score == ScoreForm::temperature || score == ScoreForm::any ||
           score == ScoreForm::gate_any;
  }
};

/// Smaller forms come first.
std::span<const Unit> units();

}  // namespace fovea::kernels::cuda
