// The instructions of wgmma.cuh on a CPU. Products run when they are issued: layouts and
// descriptors are checked, missing waits are not.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>

#include "fovea/kernels/cuda/emulate.h"

namespace fovea::kernels::cuda {

struct TensorMap {
  const uint16_t* data;
  int64_t size[4];    // c, rows, heads, batch
  int64_t stride[3];  // row, head, batch
  int box_rows;
};

namespace emulation {
struct Barrier {
  int arrivals = 0, pending = 0, phase = 0;
  int64_t bytes = 0;
};
struct Named {
  int arrived = 0, generation = 0;
};
struct Extra {
  std::map<uint32_t, Barrier> barriers;
  std::map<int, Named> named;
  std::vector<int> meetings;
};
inline Extra& extra() {
  static Extra e;
  return e;
}
inline void flip(Barrier& b) {
  if (b.pending == 0 && b.bytes == 0) {
    ++b.phase;
    b.pending = b.arrivals;
  }
}
// 128 threads of a warpgroup meet; `work` runs once.
template <class Work>
void meet_group(Work work) {
  Machine& m = machine();
  auto& meetings = extra().meetings;
  if (meetings.size() != m.fibers.size()) meetings.assign(m.fibers.size(), 0);
  const int me = m.current, first = me / 128 * 128, mine = ++meetings[me];
  const auto all = [&] {
    for (int l = first; l < first + 128; ++l)
      if (meetings[l] < mine) return false;
    return true;
  };
  if (all()) work(&m.fibers[first]);
  while (!all()) yield();
}
// Element (row, k) of a k-major operand, or (k, column) of an mn-major one.
inline float operand(uint64_t d, bool mn_major, int k, int other) {
  const uint32_t start = (d & 0x3fff) << 4, leading = ((d >> 16) & 0x3fff) << 4,
                 stride = ((d >> 32) & 0x3fff) << 4;
  uint32_t at = mn_major
                    ? start + other / 64 * leading + k / 8 * stride + k % 8 * 128 + other % 64 * 2
                    : start + other / 8 * stride + other % 8 * 128 + k * 2;
  at ^= ((at >> 7) & 7) << 4;
  uint16_t v;
  std::memcpy(&v, at_shared(at), 2);
  return bf16_to_float(v);
}
template <int N>
void product(float (&d)[N][4], const uint32_t* a_registers, uint64_t a, uint64_t b, bool accumulate,
             bool mn_major = false) {
  static float A[64][16], B[16][8 * N];
  static float* out_of[1024];
  Fiber& me = self();
  if (a_registers)
    for (int x = 0; x < 4; ++x) me.in[x] = a_registers[x];
  out_of[machine().current] = &d[0][0];
  me.in[4] = a;
  me.in[5] = b;
  meet_group([&](Fiber* lanes) {
    float** out = out_of + machine().current / 128 * 128;
    for (int k = 0; k < 16; ++k) {
      for (int c = 0; c < 8 * N; ++c)
        B[k][c] = operand(lanes[0].in[5], mn_major || a_registers, k, c);
      if (!a_registers)
        for (int r = 0; r < 64; ++r) A[r][k] = operand(lanes[0].in[4], mn_major, k, r);
    }
    if (a_registers)
      for (int l = 0; l < 128; ++l)
        for (int x = 0; x < 4; ++x)
          for (int e = 0; e < 2; ++e)
            A[l / 32 * 16 + l % 32 / 4 + 8 * (x % 2)][2 * (l % 4) + e + 8 * (x / 2)] =
                half_of(lanes[l].in[x], e);
    for (int l = 0; l < 128; ++l)
      for (int n = 0; n < N; ++n)
        for (int e = 0; e < 4; ++e) {
          const int row = l / 32 * 16 + l % 32 / 4 + 8 * (e / 2), col = 8 * n + 2 * (l % 4) + e % 2;
          float sum = accumulate ? out[l][4 * n + e] : 0.0f;
          for (int k = 0; k < 16; ++k) sum += A[row][k] * B[k][col];
          out[l][4 * n + e] = sum;
        }
  });
  meet_group([](Fiber*) {});
}
}  // namespace emulation

inline void barrier_init(uint32_t at, int arrivals) {
  emulation::extra().barriers[at] = {arrivals, arrivals, 0, 0};
}
inline void barrier_fence_init() {}
inline void barrier_arrive(uint32_t at) {
  auto& b = emulation::extra().barriers[at];
  --b.pending;
  emulation::flip(b);
}
inline void barrier_expect(uint32_t at, int bytes) {
  emulation::extra().barriers[at].bytes += bytes;
  barrier_arrive(at);
}
inline void barrier_wait(uint32_t at, uint32_t parity) {
  while ((emulation::extra().barriers[at].phase & 1) == static_cast<int>(parity))
    emulation::yield();
}
inline void named_arrive(int id, int threads) {
  auto& n = emulation::extra().named[id];
  if (++n.arrived == threads) {
    n.arrived = 0;
    ++n.generation;
  }
}
inline void named_sync(int id, int threads) {
  auto& n = emulation::extra().named[id];
  const int mine = n.generation;
  named_arrive(id, threads);
  while (n.generation == mine) emulation::yield();
}
inline void tensor_copy(uint32_t to, const TensorMap* map, uint32_t barrier, int c, int row,
                        int head, int b) {
  for (int r = 0; r < map->box_rows; ++r)
    for (int x = 0; x < 64; ++x) {
      uint16_t v = 0;
      if (row + r < map->size[1] && c + x < map->size[0])
        v = map->data[b * map->stride[2] + head * map->stride[1] + (row + r) * map->stride[0] + c +
                      x];
      uint32_t at = to + r * 128 + x * 2;
      at ^= ((at >> 7) & 7) << 4;
      std::memcpy(at_shared(at), &v, 2);
    }
  auto& state = emulation::extra().barriers[barrier];
  state.bytes -= map->box_rows * 128;
  emulation::flip(state);
}
template <int kRegisters>
void registers_down() {}
template <int kRegisters>
void registers_up() {}
inline void fence_async() {}
inline void bulk_add(float* to, uint32_t from, int bytes) {
  for (int x = 0; x < bytes / 4; ++x) {
    float v;
    std::memcpy(&v, at_shared(from) + 4 * x, 4);
    to[x] += v;
  }
}
inline void bulk_wait_read() {}
inline void bulk_wait() {}
inline void launch_dependents() {}
inline void wait_for_primary() {}
inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int kPending>
void wgmma_wait() {}
template <int N>
void wgmma_pin(float (&)[N][4]) {}
template <bool kMnMajor = false, int N>
void wgmma_ss(float (&d)[N][4], uint64_t a, uint64_t b, bool accumulate) {
  emulation::product(d, nullptr, a, b, accumulate, kMnMajor);
}
template <int N>
void wgmma_rs(float (&d)[N][4], const uint32_t (&a)[4], uint64_t b) {
  emulation::product(d, a, 0, b, true);
}

}  // namespace fovea::kernels::cuda
