// Decoding: which calls it is for, and their checks.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "fovea/base/error.h"
#include "fovea/kernels/cpu/decode/attention_decode_driver.h"
#include "fovea/kernels/cpu/pointwise/isolation.h"

namespace fovea::kernels {

bool prefers_decode(const AttentionSizes& s) {
  return s.kv_heads > 0 && s.heads / s.kv_heads * s.queries <= kDecodeRows;
}

template <class T>
void run(const AttentionDecode<T>& problem, const AttentionTable<T>* table) {
  const AttentionSizes& s = problem.sizes;
  check_sizes(s, problem.rule.gate);
  require<ShapeError>(std::ssize(problem.rows) == s.batch * s.queries, "attention kernel",
                      "expected the visits of {} rows; got {}", s.batch * s.queries,
                      problem.rows.size());
  require<UnsupportedError>(problem.rule.dropout == 0.0f, "attention kernel",
                            "decoding has no dropout; got {}", problem.rule.dropout);
  require<ShapeError>(
      problem.keys_seen.rows() == 0 || (problem.keys_seen.rows() == s.batch && s.queries == 1),
      "attention kernel",
      "lists of keys are for one query each of {} rows; got {} lists, {} queries", s.batch,
      problem.keys_seen.rows(), s.queries);
  require<ShapeError>(problem.first_rows.empty() || std::ssize(problem.first_rows) == s.batch,
                      "attention kernel", "expected the first rows of {} sequences; got {}",
                      s.batch, problem.first_rows.size());
  for (int64_t b = 0; b < problem.keys_seen.rows(); ++b) {
    require<ShapeError>(problem.rows[b].near.end <= std::ssize(problem.keys_seen.of(b)) &&
                            problem.rows[b].far.end <= std::ssize(problem.keys_seen.of(b)),
                        "attention kernel", "row {} of the batch has {} keys in its list; got {}",
                        b, problem.keys_seen.of(b).size(), problem.rows[b].near.end);
  }
  for (const RowVisits& row : problem.rows) {
    for (const KeyRange& range : {row.near, row.far}) {
      require<ShapeError>(range.begin >= range.end || (range.begin >= 0 && range.end <= s.keys),
                          "attention kernel", "rows see keys [0, {}); got [{}, {})", s.keys,
                          range.begin, range.end);
    }
  }
  if (s.batch * s.heads * s.queries == 0) return;
  const auto run_once = [table](const AttentionDecode<T>& p) { Decode<T>(p, table).run(); };
  run_once(problem);
  for (int64_t n = 0; n < s.batch * s.heads * s.queries; ++n) {
    const T* const row =
        problem.out.at(n / s.queries / s.heads, n / s.queries % s.heads, n % s.queries);
    if (!all_finite(row, s.value_dim))
      return ForwardIsolation<AttentionDecode, T>(problem).repair(run_once);
  }
}
template void run(const AttentionDecode<float>&, const AttentionTable<float>*);
template void run(const AttentionDecode<BFloat16>&, const AttentionTable<BFloat16>*);

}  // namespace fovea::kernels
