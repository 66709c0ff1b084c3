// MaskPlan and BatchVisits: derived from the mask rule and the places of one batch, once for all
// layers.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <vector>

#include "fovea/attention/call.h"
#include "fovea/kernels/common/visits.h"

namespace fovea {

struct Places;  // places.h

/// A rectangle of the batch whose tokens attend causally among themselves only: batch rows
/// [row_begin, row_end), tokens [begin, end).
struct Segment {
  int64_t row_begin = 0, row_end = 0, begin = 0, end = 0;
};

struct MaskPlan {
  /// `full`: every pair; `causal`: the lower triangle; `segments`: causal inside each document,
  /// nothing across; `mask`: a tensor.
  enum class Kind { full, causal, segments, mask };

  Kind kind = Kind::mask;
  PlanName name;                  ///< for PathTaken
  std::vector<Segment> segments;  ///< kind segments: disjoint, covering every token
  /// Kind mask: float [b or 1, h or 1, t, s], position bias where allowed, else -inf.
  at::Tensor additive;
  bool empty_rows = false;  ///< some query has nothing to see
};

/// Which keys the queries of one batch visit; the kernels' counterpart of MaskPlan. Linear in
/// the tokens.
struct BatchVisits {
  PlanName name;               ///< for PathTaken
  std::vector<Visits> visits;  ///< one for all rows of the batch, or one each
};

/// Builds the plan of one call. T5 bias is not part of it, because its table learns.
std::shared_ptr<const MaskPlan> make_mask_plan(const AttentionSpec& spec,
                                               const AttentionContext& context,
                                               const CallShape& shape);

std::shared_ptr<const BatchVisits> make_batch_visits(const AttentionSpec& spec,
                                                     const AttentionContext& context,
                                                     const CallShape& shape,
                                                     const TileSizes& sizes);

/// The plan's restriction, for PathTaken: full, causal, documents, documents and window, ...
PlanName plan_name(const AttentionSpec& spec, const Places& places, int64_t keys);

/// Plans of one batch by the settings that they depend on. Safe for use from several threads.
class PlanCache {
 public:
  std::shared_ptr<const MaskPlan> get(const AttentionSpec& spec, const AttentionContext& context,
                                      const CallShape& shape);
  /// The same for the fused kernels.
  std::shared_ptr<const BatchVisits> visits(const AttentionSpec& spec,
                                            const AttentionContext& context, const CallShape& shape,
                                            const TileSizes& sizes);

 private:
  struct Entry {
    MaskRule rule;
    BiasSpec bias;
    int64_t heads = 0;
    CallShape shape;
    std::shared_ptr<const MaskPlan> plan;
    std::shared_ptr<const BatchVisits> visits;
    TileSizes sizes;  ///< of `visits`
  };
  Entry& entry_of(const AttentionSpec& spec, const CallShape& shape);

  std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace fovea
