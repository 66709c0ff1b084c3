// The CUDA kernels on a CPU, for tests without a GPU: a fiber a thread, instructions of a warp as
// meetings of 32 fibers.
//
// It checks index maps, fragment layouts, masks and the order of waits: an asynchronous copy lands
// only when its group is waited for. It cannot see missing barriers reliably, and says nothing of
// speed. One block runs at a time.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <vector>

struct float2 {
  float x, y;
};
struct uint4 {
  uint32_t x, y, z, w;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

#define FOVEA_DEVICE inline
#define FOVEA_ANYWHERE inline
#define FOVEA_KERNEL(threads, blocks) inline void
#define __device__
#define __grid_constant__
#define __restrict__

namespace fovea::kernels::cuda {

namespace emulation {

struct PendingCopy {
  uint32_t to;
  const void* from;
  int bytes, group;
  bool valid;
};

struct Fiber {
  ucontext_t context;  ///< where it starts
  jmp_buf at;          ///< where it goes on: without the system call that a context's switch makes
  std::vector<char> stack;
  bool started = false, done = false;
  std::vector<PendingCopy> copies;
  int committed = 0, landed = 0;
  uint64_t in[12];  // arguments of the current warp instruction
  uint32_t out[4];
};

/// Those who wait for the rest of a warp or block.
struct Meeting {
  int waiting = 0;
  long generation = 0;

  void end() {
    waiting = 0;
    ++generation;
  }
};

struct Machine {
  std::vector<unsigned char> shared;
  std::vector<Fiber> fibers;
  std::vector<Meeting> warps;
  Meeting block_meeting;
  int running = 0;  ///< fibers that are not done
  jmp_buf scheduler;
  int current = 0;
  dim3 block, grid, block_dim;
  std::function<void()> body;
};
inline Machine& machine() {
  static Machine m;
  return m;
}
inline Fiber& self() { return machine().fibers[machine().current]; }
inline void yield() {
  if (_setjmp(self().at) == 0) _longjmp(machine().scheduler, 1);
}
/// Lets a fiber go on until it yields. Not inlined: nothing of the caller lives across the jump.
[[gnu::noinline]] inline void resume(int fiber) {
  Machine& m = machine();
  m.current = fiber;
  if (_setjmp(m.scheduler) != 0) return;
  Fiber& f = m.fibers[static_cast<size_t>(fiber)];
  if (f.started) _longjmp(f.at, 1);
  f.started = true;
  setcontext(&f.context);
}

/// All 32 lanes reach the same meeting; `work(first lane)` runs once, in the last one. Callers meet
/// again before arguments that are still needed are written over.
template <class Work>
void meet_warp(Work work) {
  Machine& m = machine();
  const size_t warp = static_cast<size_t>(m.current) / 32;
  Meeting& meeting = m.warps[warp];
  if (++meeting.waiting == 32) {
    work(&m.fibers[warp * 32]);
    meeting.end();
    return;
  }
  const long mine = meeting.generation;
  while (meeting.generation == mine) yield();
}

inline void trampoline() {
  Machine& m = machine();
  m.body();
  self().done = true;
  if (--m.running > 0 && m.block_meeting.waiting == m.running) m.block_meeting.end();
  while (true) yield();
}

template <class Kernel>
void run(dim3 grid, int threads, int shared_bytes, Kernel kernel) {
  Machine& m = machine();
  m.grid = grid;
  m.block_dim = {static_cast<unsigned>(threads), 1, 1};
  m.body = kernel;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        m.block = {x, y, z};
        m.shared.assign(shared_bytes + 1024, 0xff);
        if (m.fibers.size() != static_cast<size_t>(threads)) {
          m.fibers.clear();
          m.fibers.resize(threads);
        }
        for (Fiber& f : m.fibers) {
          f.stack.resize(256 * 1024);
          f.started = f.done = false;
          f.copies.clear();
          f.committed = f.landed = 0;
          getcontext(&f.context);
          f.context.uc_stack.ss_sp = f.stack.data();
          f.context.uc_stack.ss_size = f.stack.size();
          f.context.uc_link = nullptr;
          makecontext(&f.context, trampoline, 0);
        }
        m.warps.assign(static_cast<size_t>(threads + 31) / 32, {});
        m.block_meeting = {};
        m.running = threads;
        int left = threads, turn = 0;
        while (left) {
          left = 0;
          ++turn;
          for (int n = 0; n < threads; ++n) {
            const int i = turn % 2 ? n : threads - 1 - n;  // both orders
            if (m.fibers[i].done) continue;
            resume(i);
            left += !m.fibers[i].done;
          }
        }
      }
}

struct Index {
  int which;
  struct Axis {
    int which, axis;
    operator int() const {
      const Machine& m = machine();
      const dim3& d = which == 1 ? m.block : which == 2 ? m.grid : m.block_dim;
      if (which == 0) return axis == 0 ? m.current : 0;
      return axis == 0 ? d.x : axis == 1 ? d.y : d.z;
    }
  };
  Axis x{which, 0}, y{which, 1}, z{which, 2};
  constexpr Index(int w) : which(w), x{w, 0}, y{w, 1}, z{w, 2} {}
};

}  // namespace emulation

inline const emulation::Index threadIdx{0}, blockIdx{1}, gridDim{2}, blockDim{3};

inline unsigned char* at_shared(uint32_t a) { return emulation::machine().shared.data() + a; }
inline uint32_t shared_base() { return 0; }
inline void store_shared(uint32_t at, uint32_t v) { std::memcpy(at_shared(at), &v, 4); }
inline void store_shared_4(uint32_t at, float a, float b, float c, float d) {
  const float v[4] = {a, b, c, d};
  std::memcpy(at_shared(at), v, 16);
}
inline void store_shared_float(uint32_t at, float v) { std::memcpy(at_shared(at), &v, 4); }
inline void store_shared_8(uint32_t at, uint64_t v) { std::memcpy(at_shared(at), &v, 8); }
inline uint64_t load_shared_8(uint32_t at) {
  uint64_t v;
  std::memcpy(&v, at_shared(at), 8);
  return v;
}
inline uint32_t load_shared(uint32_t at) {
  uint32_t v;
  std::memcpy(&v, at_shared(at), 4);
  return v;
}
inline float2 load_shared_float2(uint32_t at) {
  float2 v;
  std::memcpy(&v, at_shared(at), 8);
  return v;
}
inline uint4 load_shared_16(uint32_t at) {
  uint4 v;
  std::memcpy(&v, at_shared(at), 16);
  return v;
}

inline void copy_async_16(uint32_t to, const void* from, bool valid) {
  if (reinterpret_cast<uintptr_t>(from) % 16 || to % 16) throw std::logic_error("unaligned copy");
  auto& f = emulation::self();
  f.copies.push_back({to, from, 16, f.committed, valid});
}
inline void copy_async_4(uint32_t to, const void* from) {
  auto& f = emulation::self();
  f.copies.push_back({to, from, 4, f.committed, true});
}
inline void copy_commit() { ++emulation::self().committed; }
template <int kPending>
void copy_wait() {
  auto& f = emulation::self();
  std::vector<emulation::PendingCopy> rest;
  for (auto& c : f.copies) {
    if (c.group < f.committed - kPending) {
      if (c.valid)
        std::memcpy(at_shared(c.to), c.from, c.bytes);
      else
        std::memset(at_shared(c.to), 0, c.bytes);
    } else {
      rest.push_back(c);
    }
  }
  f.copies.swap(rest);
}

namespace emulation {
inline void fill_matrix(bool transposed, uint32_t (&r)[4], uint32_t at) {
  Fiber& me = self();
  me.in[0] = at;
  meet_warp([transposed](Fiber* lanes) {
    for (int l = 0; l < 32; ++l)
      for (int x = 0; x < 4; ++x) {
        uint16_t pair[2];
        for (int e = 0; e < 2; ++e) {
          const int row = transposed ? 2 * (l % 4) + e : l / 4;
          const int col = transposed ? l / 4 : 2 * (l % 4) + e;
          std::memcpy(&pair[e], at_shared(lanes[8 * x + row].in[0]) + 2 * col, 2);
        }
        std::memcpy(&lanes[l].out[x], pair, 4);
      }
  });
  for (int x = 0; x < 4; ++x) r[x] = me.out[x];
  meet_warp([](Fiber*) {});
}
inline float bf16_to_float(uint16_t v) {
  const uint32_t u = uint32_t(v) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
inline uint16_t float_to_bf16(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}
inline float half_of(uint64_t v, int e) {
  return bf16_to_float(static_cast<uint16_t>(v >> (16 * e)));
}

// d += a b of 16-bit elements, whose numbers kNumber gives.
template <float (*kNumber)(uint16_t)>
void product(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  Fiber& me = self();
  for (int x = 0; x < 4; ++x) me.in[x] = a[x];
  me.in[4] = b0;
  me.in[5] = b1;
  for (int x = 0; x < 4; ++x) std::memcpy(&me.in[6 + x], &d[x], 4);
  meet_warp([](Fiber* lanes) {
    float A[16][16], B[16][8];
    for (int l = 0; l < 32; ++l)
      for (int x = 0; x < 4; ++x)
        for (int e = 0; e < 2; ++e) {
          const int g = l / 4, t = l % 4;
          A[g + 8 * (x % 2)][2 * t + e + 8 * (x / 2)] =
              kNumber(static_cast<uint16_t>(lanes[l].in[x] >> (16 * e)));
          if (x < 2)
            B[2 * t + e + 8 * x][g] =
                kNumber(static_cast<uint16_t>(lanes[l].in[4 + x] >> (16 * e)));
        }
    for (int l = 0; l < 32; ++l)
      for (int x = 0; x < 4; ++x) {
        const int row = l / 4 + 8 * (x / 2), col = 2 * (l % 4) + x % 2;
        float c;
        std::memcpy(&c, &lanes[l].in[6 + x], 4);
        for (int k = 0; k < 16; ++k) c += A[row][k] * B[k][col];
        std::memcpy(&lanes[l].out[x], &c, 4);
      }
  });
  for (int x = 0; x < 4; ++x) std::memcpy(&d[x], &me.out[x], 4);
  meet_warp([](Fiber*) {});
}
}  // namespace emulation

inline void load_matrix(uint32_t (&r)[4], uint32_t at) { emulation::fill_matrix(false, r, at); }
inline void load_matrix_transposed(uint32_t (&r)[4], uint32_t at) {
  emulation::fill_matrix(true, r, at);
}

inline void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulation::product<emulation::bf16_to_float>(d, a, b0, b1);
}

inline uint32_t transpose(uint32_t v) {
  using namespace emulation;
  self().in[0] = v;
  meet_warp([](Fiber*) {});
  const Fiber* lanes = &machine().fibers[machine().current / 32 * 32];
  const int l = machine().current % 32, row = l / 4, column = 2 * (l % 4);
  const auto element = [&](int from) {
    return static_cast<uint32_t>(lanes[from * 4 + row / 2].in[0] >> (16 * (row % 2))) & 0xffffu;
  };
  const uint32_t r = element(column) | element(column + 1) << 16;
  meet_warp([](Fiber*) {});
  return r;
}

inline uint32_t pack(float low, float high) {
  return emulation::float_to_bf16(low) | uint32_t(emulation::float_to_bf16(high)) << 16;
}
inline float2 unpack(uint32_t v) { return {emulation::half_of(v, 0), emulation::half_of(v, 1)}; }

inline float exp2_fast(float x) { return std::exp2(x); }
inline float log2_fast(float x) { return std::log2(x); }
inline float divide_fast(float x, float y) { return x / y; }
inline float tanh_exact(float x) { return std::tanh(x); }
inline float infinity() { return INFINITY; }
inline float max_of(float a, float b) { return std::fmax(a, b); }
inline float min_of(float a, float b) { return a < b ? a : b; }
inline float absolute(float a) { return std::fabs(a); }

inline float shuffle_xor(float v, int mask) {
  using namespace emulation;
  Fiber& me = self();
  std::memcpy(&me.in[0], &v, 4);
  float r = 0;
  meet_warp([](Fiber*) {});
  std::memcpy(&r, &machine().fibers[machine().current ^ mask].in[0], 4);
  meet_warp([](Fiber*) {});
  return r;
}
inline int shuffle(int v, int lane) {
  using namespace emulation;
  self().in[0] = static_cast<uint32_t>(v);
  meet_warp([](Fiber*) {});
  const int r = static_cast<int>(machine().fibers[machine().current / 32 * 32 + lane].in[0]);
  meet_warp([](Fiber*) {});
  return r;
}
inline uint32_t ballot(bool v) {
  using namespace emulation;
  self().in[0] = v;
  meet_warp([](Fiber*) {});
  uint32_t r = 0;
  const int first = machine().current / 32 * 32;
  for (int l = 0; l < 32; ++l) r |= uint32_t(machine().fibers[first + l].in[0] & 1) << l;
  meet_warp([](Fiber*) {});
  return r;
}
inline bool any_lane(bool v) { return ballot(v) != 0; }
inline int popcount(uint32_t v) { return __builtin_popcount(v); }
inline int lowest_bit(uint64_t v) { return __builtin_ctzll(v); }
inline int popcount64(uint64_t v) { return __builtin_popcountll(v); }
inline void sync_warp() {
  emulation::meet_warp([](emulation::Fiber*) {});
}
inline void sync_block() {
  using namespace emulation;
  Machine& m = machine();
  if (++m.block_meeting.waiting == m.running) return m.block_meeting.end();
  const long mine = m.block_meeting.generation;
  while (m.block_meeting.generation == mine) yield();
}

inline void add_global(float* at, float v) { *at += v; }
inline void add_global_4(float* at, float a, float b, float c, float d) {
  at[0] += a;
  at[1] += b;
  at[2] += c;
  at[3] += d;
}
template <class T>
T load_read_only(const T* at) {
  return *at;
}

}  // namespace fovea::kernels::cuda
