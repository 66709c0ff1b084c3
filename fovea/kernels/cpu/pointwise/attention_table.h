// The kernels of one instruction set as the driver (attention.cpp) calls them: plain structs and
// function pointers (internal to kernels/cpu).
//
// No inline functions and no containers here: sources compiled with wide instructions include it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/kernels/common/bfloat16.h"
#include "fovea/kernels/common/pair_gate.h"
#include "fovea/kernels/common/tile_ranges.h"
#include "fovea/kernels/common/turn_sums.h"
#include "fovea/kernels/common/visits.h"
#include "fovea/kernels/cpu/tile_sizes.h"

namespace fovea::kernels {

/// 32 bits of a packed operand: one float32 or two neighbouring bfloat16 (attention_product.h).
using Word = float;

constexpr int64_t kWidestHead = 256;  ///< elements of a row of q, k or v, at most

/// One width (of q and k, or of v) in all its roundings.
struct PackedWidth {
  int64_t elements = 0;  ///< as the tensor has it
  int64_t words = 0;     ///< depth of a product over it
  int64_t pitch = 0;     ///< words of a row in layout `natural`
  int64_t columns = 0;   ///< columns in layout `rows` and of sums
};

template <class T>
struct PanelSource {
  const T* data = nullptr;
  int64_t stride = 0;              ///< elements from row to row
  int64_t rows = 0;                ///< rows that exist, at most one panel
  const int32_t* index = nullptr;  ///< where the rows are, -1 for a row of zeros; null: 0, 1, ...
  int64_t next_rows = 0;           ///< rows that follow these and come next: they are fetched
};

struct PanelLayouts {
  Word* natural = nullptr;
  Word* columns = nullptr;
  Word* rows = nullptr;
};

/// From a scaled product to the logit, for one head; neutral values switch a part off.
struct HeadRule {
  float soft_cap = 0.0f;
  float cap_exponent = 0.0f;             ///< 2 log2(e) / soft_cap, where there is one
  float alibi = 0.0f;                    ///< slope
  const float* distance_bias = nullptr;  ///< by distance i - j, the ends also stand for all beyond
  int32_t bias_first = 0, bias_count = 0;
  float dropout = 0.0f;  ///< probability of dropping a weight
  uint64_t dropout_seed = 0;
  uint64_t dropout_stream = 0;  ///< layer and head
};

/// PairGate for the kernels; `pitch` is the number of columns with zeros behind them, in fours.
struct GateRule {
  PairGate::Form form = PairGate::Form::none;
  float offset = 0.0f;
  int32_t window = 0, sinks = 0;
  int64_t pitch = 0;

  bool active() const { return form != PairGate::Form::none; }
};

/// Gate factors and positions of one sequence, a panel of tokens after the other.
struct GatePanels {
  const float* columns = nullptr;                   ///< [panel][pitch][tokens of a panel]
  const int32_t *first = nullptr, *last = nullptr;  ///< smallest and largest position of each panel
};

/// The integers of `keys` (or queries) in the visit rule, from VisitRule's columns.
struct PlaceColumns {
  const int32_t *position = nullptr, *document = nullptr, *pattern_id = nullptr, *open = nullptr;
  /// Bits 0 to 31 and 32 to 63 of the memberships, where the rule reads them; the second may be
  /// null.
  const int32_t *members_low = nullptr, *members_high = nullptr;
};

/// The softmax of a row over some keys, beside the sums O of their weighted values. States of
/// disjoint keys merge (row_state.h).
struct RowState {
  float reference = 0.0f;  ///< in log 2: a key weighs 2^(logit - reference)
  float total = 0.0f;      ///< of the weights; 0: no key seen
  /// Telemetry: sum of weight x (logit - reference), the largest logit - reference, the weight of
  /// the document's first position.
  float spread = 0.0f, largest = 0.0f, first = 0.0f;
};

/// Floats of a row between two passes: O [value columns], RowState; whole cache lines.
constexpr int64_t row_state(const PackedWidth& value) { return value.columns + 16; }
/// The state behind the sums of a row.
FOVEA_INLINE RowState& state_behind(float* sums, const PackedWidth& value) {
  return *reinterpret_cast<RowState*>(sums + value.columns);
}
FOVEA_INLINE const RowState& state_behind(const float* sums, const PackedWidth& value) {
  return *reinterpret_cast<const RowState*>(sums + value.columns);
}

/// Rows to prefetch, because they are read or written soon: row index[n] - first, or n without an
/// index, for n below `count`. Sizes are in bytes.
struct PrefetchRows {
  const void* rows = nullptr;
  int64_t stride = 0, bytes = 0, count = 0;
  const int32_t* index = nullptr;
  int64_t first = 0;
};

/// Results of a pass: finished rows, or the states of rows that later passes merge.
enum class ForwardResult { output, states };
/// Results of a pass: finished gradients, or sums that later passes begin with.
enum class BackwardResult { gradients, sums };

/// A block of at most kQueryBlock query rows (of one head, or of all heads of a key head where
/// there are few queries) against the keys of one sequence.
template <class T>
struct ForwardBlock {
  PackedWidth key_width, value_width;
  const Word *keys = nullptr, *values = nullptr;  ///< packed panels: columns and rows
  /// Key n stands at n of them below `kept`, else at kept + (n & wrap).
  int64_t kept = 0, wrap = -1;
  int64_t key_count = 0;
  const TileRange* ranges = nullptr;
  int64_t range_count = 0;
  VisitRule rule;
  PlaceColumns key_places;
  /// Keys of a panel and rows stand document by document, positions ascending in each: the ends of
  /// a tile then tell whether all of it is seen, or nothing.
  bool ordered = false;
  bool plain = true;  ///< no soft-cap, bias or dropout: scaled products, times a gate at most
  GateRule gate;
  GatePanels key_gates;
  bool* not_finite = nullptr;  ///< becomes true where a result is NaN or infinite

  int64_t rows = 0;
  const T* q[kQueryBlock];
  T* out[kQueryBlock];
  T* rest[kQueryBlock];  ///< the part of out that rounding took, or null
  float* lse[kQueryBlock];
  float* stats[kQueryBlock];  ///< kRowStats numbers of the row, or null for all rows
  int32_t position[kQueryBlock], document[kQueryBlock], pattern_id[kQueryBlock];
  float scale[kQueryBlock];              ///< of the raw product
  float sink[kQueryBlock];               ///< logit of the sink, -inf without
  int64_t index[kQueryBlock];            ///< of the query in the sequence, for dropout
  const float* query_gate[kQueryBlock];  ///< [pitch] factors of the row
  const HeadRule* head[kQueryBlock];
  int32_t members_low[kQueryBlock], members_high[kQueryBlock];

  /// Passes over disjoint keys: a row begins with the merge of earlier row states, the entries of
  /// `states` that `earlier` names. With `result` states, it writes its state to `state_out`
  /// instead of out, lse and stats.
  const float* states = nullptr;
  const int32_t* earlier[kQueryBlock];
  int64_t earlier_count[kQueryBlock];
  float* state_out[kQueryBlock];
  ForwardResult result = ForwardResult::output;

  /// Rows that this block writes and the next one reads. Prefetches are spread over the tiles:
  /// issued together, they stall the loads that follow.
  PrefetchRows prefetch[6];
  int64_t prefetch_count = 0;
};

/// All queries of one head, packed for the backward pass.
struct BackwardHead {
  const Word *q_columns = nullptr, *q_rows = nullptr, *dout_columns = nullptr, *dout_rows = nullptr;
  const float* lse2 = nullptr;   ///< [padded queries], in units of log 2; +inf for empty rows
  const float* delta = nullptr;  ///< dO.O - dlse
  const float* scale = nullptr;  ///< of the raw product
  float* dq = nullptr;           ///< this partition's sums [padded queries][dq_columns]
  double* dbias = nullptr;       ///< this partition's sums by distance, null without
  float* dgate = nullptr;        ///< this partition's sums [panel][pitch][queries of a panel]
  HeadRule rule;
};

/// A block of kKeyBlock keys against the queries of every head that reads them.
template <class T>
struct BackwardBlock {
  PackedWidth key_width, value_width;
  int64_t dq_columns = 0;                ///< query_columns()
  int64_t key_begin = 0, key_count = 0;  ///< first key of the block; keys of the sequence
  int64_t first_index = 0;               ///< index of query 0 in the sequence, for dropout
  const Word *k_natural = nullptr, *k_rows = nullptr, *v_natural = nullptr;  ///< of the sequence
  const TileRange* ranges = nullptr;                                         ///< of queries
  int64_t range_count = 0;
  VisitRule rule;
  PlaceColumns query_places, key_places;
  bool ordered = false;  ///< as in ForwardBlock
  bool plain = true;
  GateRule gate;
  GatePanels query_gates;
  const float* key_gates = nullptr;  ///< [padded keys][pitch]
  const BackwardHead* heads = nullptr;
  int64_t head_count = 0;
  int64_t wrap = -1;    ///< query n stands at n & wrap of packed operands and of dq
  bool fetches = true;  ///< prefetches the next panel: not where operands are in the cache
  T *dk = nullptr, *dv = nullptr;  ///< row 0 of the sequence
  int64_t dk_row = 0, dv_row = 0;
  float* dgate = nullptr;  ///< [padded keys][pitch]
  BackwardResult result = BackwardResult::gradients;
  /// [keys][columns] of the sequence: with `result` sums, they go here instead of to dk and dv.
  float *dk_sums = nullptr, *dv_sums = nullptr;
  /// Sums of other passes to begin with, if not null: of key n the rows `before` names from
  /// before_begin[n] to before_begin[n + 1].
  const float *dk_before = nullptr, *dv_before = nullptr;
  const int32_t *before_begin = nullptr, *before = nullptr;
  bool* not_finite = nullptr;  ///< becomes true where a result is NaN or infinite
};

/// Rows as sums of float32 rows, in order, and what the gradient of a temperature by rows needs:
/// their kTurnSums, or -(q.row) / tau itself.
template <class T>
struct JoinRows {
  const float* const* parts = nullptr;
  const int32_t* part_begin = nullptr;  ///< parts of row r: [part_begin[r], part_begin[r + 1])
  int64_t rows = 0, width = 0;
  float* sums = nullptr;  ///< [rows][columns]: where sums go instead of out, if not null
  int64_t columns = 0;
  T* out = nullptr;
  int64_t out_row = 0;
  float* turns = nullptr;  ///< [rows][kTurnSums], of the parts' columns from `turn` on; null: none
  int64_t turn = 0;
  const T* q = nullptr;
  int64_t q_row = 0;
  const float* tau = nullptr;  ///< null: no gradient from q
  float* dtau = nullptr;
  bool* not_finite = nullptr;  ///< becomes true where a result is NaN or infinite
};

/// dO.O - dlse of some rows.
template <class T>
struct DeltaRows {
  const T *out = nullptr, *dout = nullptr;
  const T* rest = nullptr;  ///< the part of out that rounding took; may be null
  int64_t out_row = 0, dout_row = 0, rest_row = 0;
  const float *dlse = nullptr, *lse = nullptr;  ///< dlse may be null
  int64_t rows = 0, width = 0;
  float *delta = nullptr, *lse2 = nullptr;
};

/// dq of some rows from its partitions, and their kTurnSums.
template <class T>
struct QueryGradientRows {
  const float* parts = nullptr;  ///< partition p at parts + p * part_size
  int64_t part_size = 0, part_count = 0;
  int64_t rows = 0, width = 0, columns = 0;
  T* dq = nullptr;
  int64_t dq_row = 0;
  float* turns = nullptr;  ///< [rows][kTurnSums], of the columns from `turn` on; null: none
  int64_t turn = 0;
  bool* not_finite = nullptr;  ///< becomes true where a result is NaN or infinite
};

/// Most rows (queries of the heads that share a key head) that read keys where they lie.
constexpr int64_t kDecodeRows = 16;
/// Keys from use to prefetch, at most.
constexpr int64_t kDecodeAhead = 128;

/// A chunk of the keys of one sequence and of some key heads, read where they lie, for a few rows.
/// A row sees the keys of its two ranges; the result of a chunk is a part of a softmax: sums,
/// largest logit, total.
template <class T>
struct DecodeBlock {
  PackedWidth key_width, value_width;
  const T *k = nullptr, *v = nullptr;  ///< row 0 of the sequence, first key head
  int64_t k_row = 0, v_row = 0;
  int64_t k_head = 0, v_head = 0;      ///< from a key head to the next
  int64_t key_begin = 0, key_end = 0;  ///< keys of the chunk that some row sees
  int64_t key_limit = 0;               ///< keys that are worth prefetching end here
  const int32_t* index = nullptr;      ///< key n of ranges and chunk is row index[n]; null: row n
  /// If not null, listed keys lie in several buffers: key n is at k + k_offsets[n - offsets_begin],
  /// its value likewise. As many as are prefetched behind the chunk are there.
  const int64_t *k_offsets = nullptr, *v_offsets = nullptr;
  int64_t offsets_begin = 0;
  bool plain = true;
  int64_t heads = 1;  ///< key heads; 1 with several buffers
  int64_t rows = 0;   ///< of all key heads, the same number for each, head by head
  const T* q[kDecodeRows];
  KeyRange near[kDecodeRows], far[kDecodeRows];
  int32_t position[kDecodeRows];
  float scale[kDecodeRows];  ///< of the raw product
  const HeadRule* head[kDecodeRows];
  PairGate::Form gate_form = PairGate::Form::none;
  const float* gate[kDecodeRows];  ///< of every key of the sequence, by index (GateRow)
  /// [row_state()] of each row: sums and RowState; its reference is the maximum. Those of a key
  /// head lie side by side.
  float* part[kDecodeRows];
};

/// One row from its parts, in their order.
template <class T>
struct DecodeRow {
  const float* parts = nullptr;  ///< part n at parts + n * stride
  int64_t stride = 0, count = 0;
  PackedWidth value_width;
  float sink = 0.0f;  ///< logit of the sink, -inf without
  T* out = nullptr;
  float* lse = nullptr;  ///< may be null
};

/// The gate of one query and keys [begin, end): `values` by index of the key, 1 for local pairs.
struct GateRow {
  GateRule rule;
  int64_t columns = 0;
  const float *query = nullptr, *keys = nullptr;  ///< [columns], [all keys][columns]
  KeyRange near, far;
  int64_t position = 0, begin = 0, end = 0;
  float* values = nullptr;
};

/// Keys [begin, end) whose memberships meet `query_members`, ascending.
struct MemberScan {
  const uint64_t* members = nullptr;
  int64_t begin = 0, end = 0;
  uint64_t query_members = 0;
  int32_t* out = nullptr;  ///< room for end - begin + 8
};

/// The passes with a gate of pairs. They are units by themselves: their kernels take longer to
/// compile than all others.
template <class T>
struct GatedPasses {
  void (*forward)(const ForwardBlock<T>&, float* scratch) = nullptr;
  void (*backward)(const BackwardBlock<T>&, float* scratch) = nullptr;
};

template <class T>
struct AttentionTable {
  const char* isa = "";
  int64_t panel = 0;     ///< rows of a packed panel, a divisor of kVisitTile
  int64_t elements = 0;  ///< of a word
  int64_t lanes = 0;     ///< granularity of columns and pitch
  int64_t (*forward_scratch)(const PackedWidth& key, const PackedWidth& value) = nullptr;  // floats
  int64_t (*backward_scratch)(const PackedWidth& key, const PackedWidth& value,
                              const GateRule& gate) = nullptr;
  void (*pack)(const PanelSource<T>&, const PackedWidth&, const PanelLayouts&,
               Word* scratch) = nullptr;
  void (*forward)(const ForwardBlock<T>&, float* scratch) = nullptr;  // without a gate
  void (*delta)(const DeltaRows<T>&) = nullptr;
  void (*backward)(const BackwardBlock<T>&, float* scratch) = nullptr;  // without a gate
  GatedPasses<T> gated;
  void (*query_gradient)(const QueryGradientRows<T>&) = nullptr;
  void (*join)(const JoinRows<T>&) = nullptr;
  int64_t (*scan)(const MemberScan&) = nullptr;                 // the number of keys
  int64_t decode_heads = 1;                                     ///< key heads of a block, at most
  int64_t decode_fetched = 0;                                   ///< bytes fetched before decoding
  int64_t (*decode_scratch)(const PackedWidth& key) = nullptr;  // floats
  void (*decode)(const DecodeBlock<T>&, float* scratch) = nullptr;
  void (*finish_decode)(const DecodeRow<T>&) = nullptr;
  void (*gate_row)(const GateRow&) = nullptr;
};

}  // namespace fovea::kernels
