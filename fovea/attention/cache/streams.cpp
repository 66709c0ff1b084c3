// Keys and values, and the streams that mechanisms add.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/cache/streams.h"

#include <algorithm>

#include "fovea/attention/cache/huge_pages.h"
#include "fovea/attention/mechanism.h"
#include "fovea/attention/stream_rows.h"
#include "fovea/base/error.h"

namespace fovea {

// Twice the kept rows let most appends write in place: rows move once in keep_last tokens.
int64_t resting_rows(const StreamSpec& spec, int64_t capacity) {
  if (spec.state) return 1;
  return spec.keep_last > 0 ? std::min(capacity, 2 * spec.keep_last) : capacity;
}

std::vector<int64_t> rows_shape(const StreamSpec& spec, int64_t batch, int64_t rows) {
  std::vector<int64_t> shape{batch, rows};
  shape.insert(shape.end(), spec.row_shape.begin(), spec.row_shape.end());
  return shape;
}

namespace {

// First and last rows of the text that any later query may see.
KeptKeys kept_keys(const AttentionSpec& spec) {
  if (const KeyPattern* pattern = key_pattern(spec)) return pattern->kept_keys(spec);
  const MaskRule& rule = spec.mask;
  if (rule.sparsity != MaskRule::Sparsity::full || rule.window == 0) return {};
  // The oldest query of a convolution has a window of its own.
  return {.first = rule.sinks, .last = rule.window + earlier_rows(spec).all};
}

}  // namespace

std::vector<StreamSpec> cache_streams(const AttentionSpec& given, at::ScalarType dtype) {
  given.check();
  const AttentionSpec spec = in_mask_terms(given);
  require<UnsupportedError>(spec.mask.causal, "cache",
                            "a cache needs mask.causal: later tokens must not change earlier rows");
  const KeptKeys kept = kept_keys(spec);
  StreamSpec keys{.name = stream::kKeys,
                  .row_shape = {spec.kv_heads, spec.head_dim},
                  .dtype = dtype,
                  .keep_first = kept.first,
                  .keep_last = kept.last,
                  .by_head = spec.focus.gate != FocusSpec::Gate::hard,
                  .new_rows = new_rows_of<&AttentionCall::k>,
                  .set_rows = set_rows_of<&AttentionCall::k>};
  StreamSpec values = keys;
  values.name = stream::kValues;
  values.row_shape = {spec.value_heads(), spec.value_width()};
  values.new_rows = new_rows_of<&AttentionCall::v>;
  values.set_rows = set_rows_of<&AttentionCall::v>;
  std::vector<StreamSpec> streams{keys, values};
  add_mechanism_streams(spec, keys, streams);
  return streams;
}

int64_t cache_bytes(const std::vector<StreamSpec>& streams, int64_t batch, int64_t capacity) {
  int64_t total = 0;
  for (const StreamSpec& spec : streams) {
    const auto bytes = [&](int64_t rows) {
      int64_t all = static_cast<int64_t>(at::elementSize(spec.dtype));
      for (const int64_t n : rows_shape(spec, batch, rows)) all *= n;
      return all;
    };
    total += bytes(spec.keep_first) + HugePages::padded(bytes(resting_rows(spec, capacity)));
  }
  return total;
}

}  // namespace fovea
