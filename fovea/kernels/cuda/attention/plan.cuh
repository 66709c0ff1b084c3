// The plan of hard Focus on the device: entries (token, group) sorted by group. One unit of a build
// includes it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cuda/attention/tile.cuh"
#include "fovea/kernels/cuda/attention/units.h"
#include "fovea/kernels/cuda/launch.cuh"

namespace fovea::kernels::cuda {

constexpr int kPlanThreads = 512, kPlanWarps = kPlanThreads / 32,
              kPlanShared = (kPlanWarps + 1) * 64 * 4;

// Grid (groups, plans of heads, batch): one block places the entries of one group. It counts the
// lower groups itself, so that the whole plan is one launch and needs no cleared memory.
static FOVEA_KERNEL(kPlanThreads, 1)
    sort_entries(const __grid_constant__ Problem p, int32_t* entry_token, int32_t* entry_row,
                 uint64_t* entry_set, uint64_t* entry_hides, int32_t* row_entry,
                 int32_t* segment_start, int32_t* segment_end) {
  const int group = blockIdx.x, tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int64_t plan = int64_t(blockIdx.z) * gridDim.y + blockIdx.y, first = plan * p.entries;
  const uint64_t* sets =
      p.membership + blockIdx.z * p.membership_batch + blockIdx.y * p.membership_head;
  const auto set_of = [&](int i) { return i < p.keys ? load_read_only(sets + i) : uint64_t{0}; };

  // Lane g of a warp counts groups g and g + 32 in the warp's share of the tokens.
  int low = 0, high = 0;
  for (int i0 = 0; i0 < p.keys; i0 += kPlanThreads) {
    const uint64_t set = set_of(i0 + tid);
    for (int g = 0; g <= group; ++g) {
      const int n = popcount(ballot((set >> g) & 1));
      if (lane == (g & 31)) (g < 32 ? low : high) += n;
    }
  }
  const uint32_t scratch = shared_base(), totals = scratch + kPlanWarps * 64 * 4;
  store_shared(scratch + (warp * 64 + lane) * 4, low);
  store_shared(scratch + (warp * 64 + lane + 32) * 4, high);
  sync_block();
  if (tid < 64) {
    uint32_t sum = 0;
    for (int w = 0; w < kPlanWarps; ++w) sum += load_shared(scratch + (w * 64 + tid) * 4);
    store_shared(totals + tid * 4, sum);
  }
  sync_block();
  int begin = 0;
  for (int g = 0; g < group; ++g)
    begin += tiles_for(load_shared(totals + g * 4), kEntryAlign) * kEntryAlign;
  const int end = begin + static_cast<int>(load_shared(totals + group * 4));
  const int tiles = tiles_for(end - begin, kEntryAlign), padded = begin + tiles * kEntryAlign;

  const int64_t segment = first / kEntryAlign + begin / kEntryAlign;
  // Memberships of more groups than promised must not write beyond the plan.
  const int room = static_cast<int>(p.entries),
            most_tiles = max_of(0, (room - begin) / kEntryAlign);
  for (int s = tid; s < min_of(tiles, most_tiles); s += kPlanThreads) {
    segment_start[segment + s] = begin;
    segment_end[segment + s] = min_of(end, room);
  }
  if (group == p.groups - 1)  // tiles that nobody uses
    for (int s = padded / kEntryAlign + tid; s < p.entries / kEntryAlign; s += kPlanThreads)
      segment_start[first / kEntryAlign + s] = -1;
  const auto place = [&](int entry, int token, int row, uint64_t set, uint64_t hides) {
    if (entry >= room) return;
    entry_token[first + entry] = token;
    entry_row[first + entry] = row;
    entry_set[first + entry] = set;
    entry_hides[first + entry] = hides;
  };
  for (int e = end + tid; e < padded; e += kPlanThreads) place(e, -1, -1, 0, 0);

  int next = begin;
  for (int i0 = 0; i0 < p.keys; i0 += kPlanThreads) {
    const int i = i0 + tid;
    const uint64_t set = set_of(i);
    const bool in = (set >> group) & 1;
    const uint32_t bits = ballot(in);
    if (lane == 0) store_shared(scratch + warp * 4, popcount(bits));
    sync_block();
    int rank = popcount(bits & ((1u << lane) - 1)), total = 0;
    for (int w = 0; w < kPlanWarps; ++w) {
      const int n = static_cast<int>(load_shared(scratch + w * 4));
      if (w < warp) rank += n;
      total += n;
    }
    sync_block();
    if (in) {
      const uint64_t hides = set & ((uint64_t{1} << group) - 1);
      const int slot = popcount64(hides), row = slot * p.keys + i, entry = next + rank;
      const bool fits = slot < p.slots;
      place(entry, fits ? i : -1, fits ? row : -1, fits ? set : 0, hides);
      if (fits && entry < room) row_entry[plan * p.slots * p.keys + row] = entry;
    }
    next += total;
  }
}

int sort_groups(const Problem& p, int plans, Stream stream) {
  return launch(sort_entries, grid_of(p.groups, plans, p.batch), kPlanThreads, kPlanShared, stream,
                p, const_cast<int32_t*>(p.entry_token), const_cast<int32_t*>(p.entry_row),
                const_cast<uint64_t*>(p.entry_set), const_cast<uint64_t*>(p.entry_hides),
                const_cast<int32_t*>(p.row_entry), const_cast<int32_t*>(p.segment_start),
                const_cast<int32_t*>(p.segment_end));
}

}  // namespace fovea::kernels::cuda
