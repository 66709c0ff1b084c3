// float64 O(T^2) reference of Multi-Token Attention, forward and backward, from the definition
// (scale, Mask0, conv pre, head mix pre, mask, softmax, Mask0, conv post, Mask0, head mix post,
// values). One batch element. Empty kernels / matrices: that stage is the identity. eager_bf16:
// every map, kernel and result is rounded to bf16, as eager tensor code at that dtype does (sums
// stay float64: kind to it).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

using Vec = std::vector<double>;
struct RefProblem {
  int H, Hkv, T, D, cq1 = 0, ck1 = 0, cq2 = 0, ck2 = 0;
  double scale;
  Vec q, k, v, d_o, pre, post, mix_pre,
      mix_post;          // [H][T][D], ..., [H][cq][ck], mix_pre[o][h], mix_post[o][h]
  std::vector<int> doc;  // first key of the query's document, or empty
  bool eager_bf16 = false;
};
struct RefResult {
  Vec o, lse, dq, dk, dv, d_pre, d_post, d_mix_pre, d_mix_post;
};

inline void round_bf16(Vec& x) {
  for (double& d : x) {
    float f = (float)d;
    uint32_t u;
    std::memcpy(&u, &f, 4);
    u = (u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000u;
    std::memcpy(&f, &u, 4);
    d = f;
  }
}

inline RefResult reference(const RefProblem& problem) {
  RefProblem p = problem;
  auto rd = [&](Vec& x) {
    if (p.eager_bf16) round_bf16(x);
  };
  rd(p.pre);
  rd(p.post);
  rd(p.mix_pre);
  rd(p.mix_post);
  int H = p.H, T = p.T, D = p.D, rep = H / p.Hkv;
  size_t N = (size_t)T * T;
  auto lo = [&](int i) { return p.doc.empty() ? 0 : p.doc[i]; };
  auto ok = [&](int i, int j) { return j <= i && j >= lo(i); };
  RefResult r;
  Vec s(H * N, 0.0), l, w(H * N, 0.0), y, z;
  r.o.assign((size_t)H * T * D, 0);
  r.lse.assign((size_t)H * T, 0);
  auto conv = [&](const Vec& x, const Vec& taps, int cq, int ck, bool adjoint) {
    if (taps.empty()) return x;
    Vec out(H * N, 0.0);
    int older = (ck - 1) / 2;
    for (int h = 0; h < H; h++)
      for (int i = 0; i < T; i++)
        for (int a = 0; a < cq; a++) {
          int ii = i + a - (cq - 1);
          if (ii < lo(i) || ii < 0) continue;  // another document
          for (int j = 0; j < T; j++)
            for (int b = 0; b < ck; b++) {
              int jj = j + b - older;
              if (jj < 0 || jj >= T) continue;
              double c = taps[((size_t)h * cq + a) * ck + b];
              if (!adjoint)
                out[h * N + (size_t)i * T + j] += c * x[h * N + (size_t)ii * T + jj];
              else
                out[h * N + (size_t)ii * T + jj] += c * x[h * N + (size_t)i * T + j];
            }
        }
    return out;
  };
  auto taps_grad = [&](const Vec& dy, const Vec& x, int cq, int ck) {
    Vec g((size_t)H * cq * ck, 0.0);
    int older = (ck - 1) / 2;
    for (int h = 0; h < H; h++)
      for (int i = 0; i < T; i++)
        for (int a = 0; a < cq; a++) {
          int ii = i + a - (cq - 1);
          if (ii < lo(i) || ii < 0) continue;
          for (int b = 0; b < ck; b++)
            for (int j = 0; j < T; j++) {
              int jj = j + b - older;
              if (jj >= 0 && jj < T)
                g[((size_t)h * cq + a) * ck + b] +=
                    dy[h * N + (size_t)i * T + j] * x[h * N + (size_t)ii * T + jj];
            }
        }
    return g;
  };
  auto mix = [&](const Vec& x, const Vec& m, bool adjoint) {
    if (m.empty()) return x;
    Vec out(H * N, 0.0);
    for (int o = 0; o < H; o++)
      for (int h = 0; h < H; h++)
        for (size_t e = 0; e < N; e++) {
          if (!adjoint)
            out[o * N + e] += m[o * H + h] * x[h * N + e];
          else
            out[h * N + e] += m[o * H + h] * x[o * N + e];
        }
    return out;
  };
  auto mix_grad = [&](const Vec& dy, const Vec& x) {
    Vec g((size_t)H * H, 0.0);
    for (int o = 0; o < H; o++)
      for (int h = 0; h < H; h++)
        for (size_t e = 0; e < N; e++) g[o * H + h] += dy[o * N + e] * x[h * N + e];
    return g;
  };
  auto mask = [&](Vec& x) {
    for (int h = 0; h < H; h++)
      for (int i = 0; i < T; i++)
        for (int j = 0; j < T; j++)
          if (!ok(i, j)) x[h * N + (size_t)i * T + j] = 0;
  };
  for (int h = 0; h < H; h++)
    for (int i = 0; i < T; i++)
      for (int j = 0; j <= i; j++)
        if (ok(i, j)) {
          double x = 0;
          for (int c = 0; c < D; c++)
            x += p.q[((size_t)h * T + i) * D + c] * p.k[((size_t)(h / rep) * T + j) * D + c];
          s[h * N + (size_t)i * T + j] = x * p.scale;
        }
  rd(s);
  Vec s1 = conv(s, p.pre, p.cq1, p.ck1, false);
  rd(s1);
  mask(s1);
  l = mix(s1, p.mix_pre, false);
  rd(l);
  for (int h = 0; h < H; h++)
    for (int i = 0; i < T; i++) {
      double m = -1e300, z0 = 0;
      for (int j = lo(i); j <= i; j++) m = std::max(m, l[h * N + (size_t)i * T + j]);
      for (int j = lo(i); j <= i; j++) z0 += std::exp(l[h * N + (size_t)i * T + j] - m);
      r.lse[h * T + i] = m + std::log(z0);
      for (int j = lo(i); j <= i; j++)
        w[h * N + (size_t)i * T + j] = std::exp(l[h * N + (size_t)i * T + j] - r.lse[h * T + i]);
    }
  rd(w);
  y = conv(w, p.post, p.cq2, p.ck2, false);
  rd(y);
  mask(y);
  z = mix(y, p.mix_post, false);
  rd(z);
  for (int h = 0; h < H; h++)
    for (int i = 0; i < T; i++)
      for (int j = 0; j <= i; j++)
        for (int c = 0; c < D; c++)
          r.o[((size_t)h * T + i) * D + c] +=
              z[h * N + (size_t)i * T + j] * p.v[((size_t)(h / rep) * T + j) * D + c];
  rd(r.o);
  if (p.d_o.empty()) return r;
  r.dq.assign(p.q.size(), 0);
  r.dk.assign(p.k.size(), 0);
  r.dv.assign(p.v.size(), 0);
  Vec dz(H * N, 0.0);
  for (int h = 0; h < H; h++)
    for (int i = 0; i < T; i++)
      for (int j = 0; j <= i; j++)
        if (ok(i, j)) {
          double x = 0;
          for (int c = 0; c < D; c++) {
            x += p.d_o[((size_t)h * T + i) * D + c] * p.v[((size_t)(h / rep) * T + j) * D + c];
            r.dv[((size_t)(h / rep) * T + j) * D + c] +=
                z[h * N + (size_t)i * T + j] * p.d_o[((size_t)h * T + i) * D + c];
          }
          dz[h * N + (size_t)i * T + j] = x;
        }
  rd(dz);
  if (!p.mix_post.empty()) r.d_mix_post = mix_grad(dz, y);
  Vec dy = mix(dz, p.mix_post, true);
  rd(dy);
  mask(dy);
  if (!p.post.empty()) r.d_post = taps_grad(dy, w, p.cq2, p.ck2);
  Vec dw = conv(dy, p.post, p.cq2, p.ck2, true), dl(H * N, 0.0);
  rd(dw);
  for (int h = 0; h < H; h++)
    for (int i = 0; i < T; i++) {
      double d = 0;
      for (int j = lo(i); j <= i; j++)
        d += w[h * N + (size_t)i * T + j] * dw[h * N + (size_t)i * T + j];
      for (int j = lo(i); j <= i; j++)
        dl[h * N + (size_t)i * T + j] =
            w[h * N + (size_t)i * T + j] * (dw[h * N + (size_t)i * T + j] - d);
    }
  rd(dl);
  if (!p.mix_pre.empty()) r.d_mix_pre = mix_grad(dl, s1);
  Vec ds1 = mix(dl, p.mix_pre, true);
  rd(ds1);
  if (!p.pre.empty()) r.d_pre = taps_grad(ds1, s, p.cq1, p.ck1);
  Vec ds = conv(ds1, p.pre, p.cq1, p.ck1, true);
  rd(ds);
  mask(ds);
  for (int h = 0; h < H; h++)
    for (int i = 0; i < T; i++)
      for (int j = 0; j <= i; j++)
        for (int c = 0; c < D; c++) {
          double x = ds[h * N + (size_t)i * T + j] * p.scale;
          r.dq[((size_t)h * T + i) * D + c] += x * p.k[((size_t)(h / rep) * T + j) * D + c];
          r.dk[((size_t)(h / rep) * T + j) * D + c] += x * p.q[((size_t)h * T + i) * D + c];
        }
  rd(r.dq);
  rd(r.dk);
  rd(r.dv);
  return r;
}
