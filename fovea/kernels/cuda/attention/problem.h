// The arguments of one launch of the CUDA attention kernels: pointers to memory of the device,
// strides in elements, and the data of the settings.
//
// Legend: b batch, h query head, g key/value head (g = h / (heads / kv_heads)), i query row, j key
// row, c head size. Query row i stands at query_offset + i, key row j at j.
//
//   logit[i,j] = cap(scale_i q_i.k_j) + slope_h (j - i - query_offset);   masked logits are -inf
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace fovea::kernels::cuda {

/// One tensor [b, heads, rows, c] of bfloat16, c contiguous, rows 16-byte aligned.
struct Rows {
  void* data;
  int64_t batch, head, row;
};

/// The soft gate of Focus (kernels/common/pair_gate.h): what z does to a pair.
///   weight         its weight times min(z, gate_most)
///   log_sigmoid    its logit plus ln sigma(z)
///   sigmoid_logit  its logit, before biases, times sigma(z)
enum class GateKind : int32_t { none, weight, log_sigmoid, sigmoid_logit };

/// Factors of the gate of all tokens, packed (gate.cuh); tokens beyond the last are zeros.
struct GateFactors {
  const uint64_t *rows, *pairs;
  int64_t batch;  ///< elements of one row of the batch
};

/// Members without a comment about null are always given where a launch reads them.
struct Problem {
  Rows q, k, v, o;  ///< q, o [b,h,i,c]; k, v [b,g,j,c]
  /// As o, or null: the part of o that rounding took. Where one weight is near 1, dP - delta
  /// cancels, and delta needs more digits than o has.
  Rows o_rest;
  float* lse;  ///< [b,h,i], natural logarithm; -inf for an empty row
  int32_t batch, heads, kv_heads, queries, keys, query_offset;

  float scale;               ///< in place of the temperature
  const float* temperature;  ///< [b,i] or null: scale_i = 1 / temperature
  float softcap;             ///< cap(x) = softcap tanh(x / softcap); 0: no cap
  const float* slopes;       ///< [h] or null: ALiBi
  const float* sink_logit;   ///< [h] or null: one more key of value 0

  int32_t window, sinks;  ///< seen: i - j < window, or j among the first `sinks` of its document
  /// [b,i] or null: the first key of the document of row i, ascending in i.
  const int32_t* doc_start;
  int64_t doc_batch;  ///< 0: one row for all of the batch

  GateKind gate;
  float gate_offset, gate_most;
  int32_t gate_window, gate_sinks;    ///< local: i - j < window, or among the first of its document
  int32_t gate_columns, gate_chunks;  ///< columns come in chunks of 8
  GateFactors gate_query, gate_key;
  float *d_gate_query, *d_gate_key;  ///< [b,h,i,columns], [b,g,j,columns], or both null
  float* gate_query_sum;  ///< zeros where these are given; [b,h,chunk,padded,8] in fragment order

  /// Hard Focus: bit n of membership[b, g, token] says that the token belongs to group n.
  const uint64_t* membership;
  int64_t membership_batch, membership_head;
  int32_t groups;

  /// Hard Focus, the pass over groups: entries (token, group) sorted by group, then token. Every
  /// group starts at a multiple of kEntryAlign. Arrays [b, g] of `entries` elements.
  const int32_t* entry_token;  ///< -1: padding
  const int32_t* entry_row;    ///< slot * queries + token; slot: how many lower groups hold it
  const uint64_t* entry_set;   ///< the set of the token; 0: padding
  /// Groups of the token below the group of the entry: a pair that shares one is counted there.
  const uint64_t* entry_hides;
  const int32_t* row_entry;      ///< zeros before the plan; the inverse of entry_row
  const int32_t* segment_start;  ///< [entries / kEntryAlign] first entry of the group; -1: unused
  const int32_t* segment_end;    ///< [entries / kEntryAlign] one past the last real entry
  int64_t entries, plan_batch, plan_head;  ///< plan strides count (b, g) pairs

  /// Results of the pass over groups, which the local pass joins.
  Rows partial;        ///< [b,h, slot * queries + token, c]
  float* partial_lse;  ///< [b,h, slots * queries]
  int32_t slots;       ///< most groups of a token

  Rows d_o, dq, dk, dv;
  const float* d_lse;  ///< [b,h,i] or null: zeros
  float* lse2;         ///< [b,h,padded] lse log2(e); +inf where a row adds nothing
  float* delta;        ///< [b,h,padded] sum_c (o + o_rest) d_o - d_lse
  int64_t padded;      ///< > queries, a multiple of kEntryAlign
  float* dq_sum;       ///< zeros; mma.sync: [b,h,queries,c], wgmma: [b,h,padded,c] in tile order
  float* dq_entries;   ///< zeros; wgmma, pass over groups: [b,h,entries,c] in tile order
  float *dk_sum, *dv_sum;  ///< zeros, [b,g,keys,c], where several launches add to dk and dv
  float* d_temperature;    ///< [b,h,i] or null
  float* temperature_sum;  ///< zeros where that is given; [b,h,padded] sum_j d_s s (score.cuh,
                           ///< `scaled`)
  float* d_sink_logit;     ///< [b,h] or null
};

constexpr int kEntryAlign = 128;

}  // namespace fovea::kernels::cuda
