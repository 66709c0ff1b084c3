// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cuda/attention/band_mask.h"

#include <algorithm>

namespace fovea::kernels::cuda {
namespace {

BandMask refused(const char* why) {
  BandMask mask;
  mask.why_not = why;
  return mask;
}

// The key that stands where query 0 does; -1: none.
int64_t key_of_first_query(const Visits& v) {
  const auto same = [&v](int64_t key) {
    return v.key.position[key] == v.query.position[0] && v.key.document[key] == v.query.document[0];
  };
  const int64_t last = v.keys - v.queries;  // queries are the last keys, most often
  if (last >= 0 && same(last)) return last;
  for (int64_t n = 0; n <= last; ++n)
    if (same(n)) return n;
  return -1;
}

bool queries_are_keys(const Visits& v, int64_t offset) {
  const auto equal = [&](std::span<const int32_t> query, std::span<const int32_t> key) {
    return std::equal(query.begin(), query.begin() + v.queries, key.begin() + offset);
  };
  return equal(v.query.position, v.key.position) && equal(v.query.document, v.key.document);
}

// First keys of the documents of all keys; empty where positions leave a gap.
std::vector<int32_t> document_starts(const Visits& v) {
  std::vector<int32_t> start(static_cast<size_t>(v.keys), 0);
  for (int64_t n = 1; n < v.keys; ++n) {
    if (v.key.document[n] != v.key.document[n - 1]) {
      start[n] = static_cast<int32_t>(n);
    } else if (v.key.position[n] == v.key.position[n - 1] + 1) {
      start[n] = start[n - 1];
    } else {
      return {};
    }
  }
  return start;
}

BandMask full_mask(const Visits& v) {
  if (v.rule.limited) return refused("windows on both sides");
  for (const auto& [documents, count] :
       {std::pair{v.query.document, v.queries}, {v.key.document, v.keys}})
    for (int64_t n = 0; n < count; ++n)
      if (documents[n] != v.key.document[0]) return refused("documents without a causal mask");
  BandMask mask;
  mask.causal = false;
  return mask;
}

BandMask band_of(const Visits& v) {
  if (v.queries == 0 || v.keys == 0) return refused("no pairs");
  if (v.rule.patterned || v.rule.members != MemberRule::ignored)
    return refused("strided and fixed masks");
  if (!v.rule.causal) return full_mask(v);
  BandMask mask;
  mask.query_offset = key_of_first_query(v);
  if (!v.ordered || mask.query_offset < 0 || !queries_are_keys(v, mask.query_offset))
    return refused("queries that are not neighbouring keys, or keys of unequal lengths");
  const std::vector<int32_t> starts = document_starts(v);
  if (starts.empty()) return refused("gaps between the positions of keys");
  for (int64_t n = 0; n < v.keys; ++n) mask.from_start &= starts[n] != n || v.key.position[n] == 0;
  mask.window = v.rule.limited ? v.rule.reach : 0;
  if (v.rule.limited && v.rule.reach < 1) return refused("an empty window");
  for (int64_t n = 0; v.rule.limited && v.rule.opens && n < v.keys; ++n) {
    if ((v.key.open[n] & TokenColumns::kOpenBefore) == 0) continue;
    if (v.key.position[starts[n]] != 0) return refused("sinks of a document that lacks its start");
    mask.sinks = std::max<int64_t>(mask.sinks, v.key.position[n] + 1);
  }
  const auto first = starts.begin() + mask.query_offset;
  if (std::any_of(first, first + v.queries, [](int32_t start) { return start > 0; }))
    mask.doc_start.assign(first, first + v.queries);
  return mask;
}

}  // namespace

BandMask band_mask_of(std::span<const Visits> visits) {
  if (visits.empty()) return refused("no pairs");
  std::vector<BandMask> rows;
  bool documents = false;
  for (const Visits& v : visits) {
    rows.push_back(band_of(v));
    if (rows.back().why_not) return rows.back();
    if (rows.back().query_offset != rows.front().query_offset)
      return refused("rows of the batch that continue different lengths");
    documents |= !rows.back().doc_start.empty();
  }
  BandMask all = rows.front();
  all.doc_start.clear();
  for (const BandMask& row : rows) {
    all.from_start &= row.from_start;
    all.sinks = std::max(all.sinks, row.sinks);  // documents shorter than the sinks show fewer
    if (!documents) continue;
    if (row.doc_start.empty()) {
      all.doc_start.resize(all.doc_start.size() + static_cast<size_t>(visits.front().queries), 0);
    } else {
      all.doc_start.insert(all.doc_start.end(), row.doc_start.begin(), row.doc_start.end());
    }
  }
  return all;
}

}  // namespace fovea::kernels::cuda
