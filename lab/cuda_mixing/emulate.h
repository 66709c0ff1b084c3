// Host emulation of the primitives in prims.cuh: every thread of a block is a fiber; warp
// collectives and block barriers are rendezvous. Slow and simple; for checking index maps, not
// timings.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <ucontext.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>
#define DEV inline
#define KERNEL(threads, blocks) inline void
using saddr = uint32_t;

namespace emu {
struct Copy {
  saddr to;
  const void* from;
  bool live;
};
struct Fiber {
  ucontext_t ctx;
  std::vector<char> stack;
  bool done = false;
  std::vector<std::vector<Copy>> copies;
};
// How adversarial the run is. schedule 0: threads in turn; 1, 2: each warp runs until it waits for
// another (from the first warp, from the last). late_copies: cp.async writes when it is waited for,
// not when it is issued. Missing barriers and waits then show as wrong results.
inline int schedule = 0;
inline bool late_copies = false;
inline long progress = 0;
inline std::vector<Fiber> fibers;
inline ucontext_t scheduler;
inline int current, threads, bx, by, gx, gy;
inline std::vector<unsigned char> smem;
inline std::function<void()> body;
struct Rendezvous {
  int arrived = 0;
  long generation = 0;
};
inline std::vector<Rendezvous> warp_sync;
inline Rendezvous block_sync;
struct Slot {
  uint32_t in[10];
};
inline std::vector<Slot> slots;
inline void yield() { swapcontext(&fibers[current].ctx, &scheduler); }
inline void meet(Rendezvous& r, int n) {
  long g = r.generation;
  progress++;
  if (++r.arrived == n) {
    r.arrived = 0;
    r.generation++;
    return;
  }
  while (r.generation == g) yield();
  progress++;
}
inline void meet_warp() { meet(warp_sync[current / 32], 32); }
inline void trampoline() {
  body();
  fibers[current].done = true;
  progress++;
  swapcontext(&fibers[current].ctx, &scheduler);
}
template <class F>
void run_block(int x, int y, int grid, int grid_height, int n, size_t smem_bytes, F f) {
  threads = n;
  bx = x;
  by = y;
  gx = grid;
  gy = grid_height;
  body = f;
  smem.assign(smem_bytes, 0xff);  // NaN patterns: unwritten shared memory shows
  fibers.resize(n);
  warp_sync.assign(n / 32, {});
  block_sync = {};
  slots.assign(n, {});
  for (int i = 0; i < n; i++) {
    Fiber& fb = fibers[i];
    if (fb.stack.empty()) fb.stack.resize(128 << 10);
    fb.done = false;
    fb.copies.assign(1, {});
    getcontext(&fb.ctx);
    fb.ctx.uc_stack.ss_sp = fb.stack.data();
    fb.ctx.uc_stack.ss_size = fb.stack.size();
    fb.ctx.uc_link = &scheduler;
    makecontext(&fb.ctx, trampoline, 0);
  }
  auto turn = [&](int i) {
    current = i;
    if (!fibers[i].done) swapcontext(&scheduler, &fibers[i].ctx);
    return !fibers[i].done;
  };
  for (int left = n; left > 0;) {
    left = 0;
    if (schedule == 0) {
      for (int i = 0; i < n; i++) left += turn(i);
      continue;
    }
    for (int w = 0; w < n / 32; w++) {
      int first = (schedule == 1 ? w : n / 32 - 1 - w) * 32, alive = 0;
      for (long before = -1; before != progress;) {
        before = progress;
        alive = 0;
        for (int i = 0; i < 32; i++) alive += turn(first + i);
      }
      left += alive;
    }
  }
}
inline float h2f(uint16_t x) {
  _Float16 h;
  std::memcpy(&h, &x, 2);
  return (float)h;
}
inline uint16_t f2h(float x) {
  _Float16 h = (_Float16)x;
  uint16_t r;
  std::memcpy(&r, &h, 2);
  return r;
}
inline float b2f(uint16_t x) {
  uint32_t u = (uint32_t)x << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
inline uint16_t f2b(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  if (x != x) return 0x7fff;
  return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
inline void check(saddr p, int n) {
  if (p + n > smem.size() || p % n) {
    std::printf("smem access %u size %d of %zu\n", p, n, smem.size());
    std::abort();
  }
}
}  // namespace emu

DEV saddr smem_base() { return 0; }
DEV void sts32(saddr p, uint32_t x) {
  emu::check(p, 4);
  std::memcpy(&emu::smem[p], &x, 4);
}
DEV uint32_t lds32(saddr p) {
  emu::check(p, 4);
  uint32_t x;
  std::memcpy(&x, &emu::smem[p], 4);
  return x;
}
DEV void lds128(uint32_t* r, saddr p) {
  emu::check(p, 16);
  std::memcpy(r, &emu::smem[p], 16);
}
DEV void sts128(saddr p, const uint32_t (&r)[4]) {
  emu::check(p, 16);
  std::memcpy(&emu::smem[p], r, 16);
}
DEV void load16(uint32_t (&r)[4], const void* g) {
  if ((uintptr_t)g % 16) std::abort();
  std::memcpy(r, g, 16);
}
DEV void ldsm(uint32_t (&r)[4], saddr p, bool trans) {
  using namespace emu;
  check(p, 16);
  slots[current].in[0] = p;
  meet_warp();
  int w = current / 32 * 32, l = current % 32;
  for (int m = 0; m < 4; m++)
    for (int e = 0; e < 2; e++) {
      int row = trans ? 2 * (l % 4) + e : l / 4, col = trans ? l / 4 : 2 * (l % 4) + e;
      uint16_t x;
      std::memcpy(&x, &smem[slots[w + 8 * m + row].in[0] + 2 * col], 2);
      r[m] = e ? (r[m] | (uint32_t)x << 16) : x;
    }
  meet_warp();
}
DEV void ldsm4(uint32_t (&r)[4], saddr p) { ldsm(r, p, false); }
DEV void ldsm4t(uint32_t (&r)[4], saddr p) { ldsm(r, p, true); }
DEV void stsm4t(saddr p, const uint32_t (&r)[4]) {
  using namespace emu;
  check(p, 16);
  slots[current].in[0] = p;
  meet_warp();
  int w = current / 32 * 32, l = current % 32;
  for (int m = 0; m < 4; m++)
    for (int e = 0; e < 2; e++) {
      uint16_t x = (uint16_t)(r[m] >> (16 * e));
      std::memcpy(&smem[slots[w + 8 * m + 2 * (l % 4) + e].in[0] + 2 * (l / 4)], &x, 2);
    }
  meet_warp();
}
DEV void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
             float (*cv)(uint16_t)) {
  using namespace emu;
  Slot& s = slots[current];
  for (int i = 0; i < 4; i++) s.in[i] = a[i];
  s.in[4] = b0;
  s.in[5] = b1;
  meet_warp();
  int w = current / 32 * 32, l = current % 32;
  for (int e = 0; e < 4; e++) {
    int row = l / 4 + (e / 2) * 8, col = 2 * (l % 4) + e % 2;
    float acc = 0;
    for (int k = 0; k < 16; k++) {
      uint32_t x = slots[w + (row % 8) * 4 + (k % 8) / 2].in[row / 8 + 2 * (k / 8)],
               y = slots[w + col * 4 + (k % 8) / 2].in[4 + k / 8];
      acc += cv((uint16_t)(x >> (16 * (k % 2)))) * cv((uint16_t)(y >> (16 * (k % 2))));
    }
    d[e] += acc;
  }
  meet_warp();
}
DEV void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma(d, a, b0, b1, emu::h2f);
}
DEV void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma(d, a, b0, b1, emu::b2f);
}
DEV uint32_t pack_f16(float lo, float hi) { return emu::f2h(lo) | (uint32_t)emu::f2h(hi) << 16; }
DEV void unpack_f16(float& lo, float& hi, uint32_t x) {
  lo = emu::h2f((uint16_t)x);
  hi = emu::h2f((uint16_t)(x >> 16));
}
DEV uint32_t pack_bf16(float lo, float hi) { return emu::f2b(lo) | (uint32_t)emu::f2b(hi) << 16; }
DEV float exp2_fast(float x) { return std::exp2(x); }
namespace emu {
inline void perform(const Copy& c) {
  if (c.live)
    std::memcpy(&smem[c.to], c.from, 16);
  else
    std::memset(&smem[c.to], 0, 16);
}
inline void finish_copies(size_t left) {  // the newest entry is the group not committed yet
  auto& g = fibers[current].copies;
  while (g.size() > left + 1) {
    for (const Copy& c : g.front()) perform(c);
    g.erase(g.begin());
  }
}
}  // namespace emu
DEV void copy16(saddr s, const void* g, bool live) {
  emu::check(s, 16);
  if (!emu::late_copies)
    emu::perform({s, g, live});
  else
    emu::fibers[emu::current].copies.back().push_back({s, g, live});
}
DEV void store16(void* g, const uint32_t (&r)[4]) {
  if ((uintptr_t)g % 16) std::abort();
  std::memcpy(g, r, 16);
}
DEV void copy_commit() { emu::fibers[emu::current].copies.push_back({}); }
DEV void copy_wait_all() {
  copy_commit();
  emu::finish_copies(0);
}
template <int N>
DEV void copy_wait() {
  emu::finish_copies(N);
}
DEV void sync_block() { emu::meet(emu::block_sync, emu::threads); }
DEV void sync_warp() { emu::meet_warp(); }
template <class X>
DEV X shfl_xor(X x, int m) {
  using namespace emu;
  std::memcpy(&slots[current].in[0], &x, 4);
  meet_warp();
  X r;
  std::memcpy(&r, &slots[current ^ m].in[0], 4);
  meet_warp();
  return r;
}
DEV void add2(float* p, float x, float y) {
  p[0] += x;
  p[1] += y;
}
DEV void add1(float* p, float x) { *p += x; }
DEV void add_shared(saddr p, float x) {
  float v;
  std::memcpy(&v, &emu::smem[p], 4);
  v += x;
  std::memcpy(&emu::smem[p], &v, 4);
}
DEV void max_nonnegative(float* p, float x) { *p = std::max(*p, x); }
DEV uint32_t float_bits(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return u;
}
DEV float bits_float(uint32_t x) {
  float f;
  std::memcpy(&f, &x, 4);
  return f;
}
DEV float log2_fast(float x) { return std::log2(x); }
DEV int tid() { return emu::current; }
DEV int block_x() { return emu::bx; }
DEV int block_y() { return emu::by; }
DEV int grid_x() { return emu::gx; }
DEV int grid_y() { return emu::gy; }
using std::floor;
using std::fmaxf;
