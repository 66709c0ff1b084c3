// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/cache_reads.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "fovea/attention/cache/streams.h"
#include "fovea/attention/key_rule.h"
#include "fovea/attention/mechanism.h"
#include "fovea/attention/visible_keys.h"

namespace fovea {
namespace {

/// Bytes of a row of the streams: of a key with its value, and of the states.
struct RowBytes {
  double pair = 0.0, state = 0.0;
};

RowBytes row_bytes(const AttentionSpec& spec, at::ScalarType dtype) {
  RowBytes bytes;
  for (const StreamSpec& s : cache_streams(spec, dtype)) {
    const int64_t elements =
        std::accumulate(s.row_shape.begin(), s.row_shape.end(), int64_t{1}, std::multiplies<>());
    const auto row = static_cast<double>(elements * int64_t(c10::elementSize(s.dtype)));
    if (s.name == stream::kKeys || s.name == stream::kValues) bytes.pair += row;
    if (s.state) bytes.state += row;
  }
  return bytes;
}

/// Keys that the last of `context` tokens reads; a part of a row counts as that part.
std::optional<double> keys_read(const AttentionSpec& spec, int64_t context,
                                const MeasuredReads& measured) {
  const double visible = visible_keys(spec, context - 1, context);
  if (spec.focus.active()) {
    const double local =
        std::min(visible, static_cast<double>(spec.focus.window + spec.focus.sinks));
    return local + measured.distant_kept.value_or(1.0) * (visible - local);
  }
  switch (key_rule(spec)) {
    case KeyRule::mask:
    case KeyRule::parts:
      return visible;
    case KeyRule::sums:
      return 0.0;
    case KeyRule::groups:
      return std::nullopt;
    case KeyRule::lists:
      return measured.chosen_keys;
    case KeyRule::selected: {
      const std::optional<FixedChoice> choice = fixed_choice(spec, visible);
      // Half of a pair's bytes are the key's.
      return choice ? visible * 0.5 * choice->searched + choice->keys : measured.chosen_keys;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<double> cache_bytes_read(const ModelConfig& config, int64_t context,
                                       at::ScalarType dtype, const MeasuredReads& measured) {
  double sum = 0.0;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const AttentionSpec spec = config.layer_attention(layer);
    if (!spec.mask.causal) return std::nullopt;  // no cache serves it
    const std::optional<double> keys = keys_read(spec, context, measured);
    if (!keys) return std::nullopt;
    const RowBytes bytes = row_bytes(spec, dtype);
    sum += *keys * bytes.pair + bytes.state;
  }
  return sum;
}

}  // namespace fovea
