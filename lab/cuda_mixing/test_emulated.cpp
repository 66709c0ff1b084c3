// Checks the kernels' index maps on the CPU: the device code runs in the emulation and meets the
// float64 reference. g++ -O2 -std=c++20 -DFOVEA_EMULATE -x c++ test_emulated.cpp -o test_emulated
// && ./test_emulated
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <random>
#include "conv_mix_launch.h"
#include "reference.h"

static double error(const Vec& ref, const double* got) {  // relative to the largest value
  double e = 0, m = 0;
  for (size_t i = 0; i < ref.size(); i++) {
    m = std::max(m, std::abs(ref[i]));
    e = std::max(e, std::isfinite(got[i]) ? std::abs(ref[i] - got[i]) : 1e30);
  }
  return e / (m > 0 ? m : 1);
}
static Vec wide(const std::vector<float>& x) { return Vec(x.begin(), x.end()); }
static Vec wide_bf16(const std::vector<uint16_t>& x) {
  Vec r;
  for (auto u : x) r.push_back(emu::b2f(u));
  return r;
}

// "ours/eager": the rule is at most twice the error of eager bf16.
static int failures;
static void report(const char* name, const Vec& ref, const Vec& ours, const Vec& eager) {
  double a = error(ref, ours.data()), b = error(ref, eager.data());
  bool bad = !(a <= 2 * b + 1e-7);
  failures += bad;
  std::printf(" %s %.1e/%.1e%s", name, a, b, bad ? " WRONG" : "");
}

template <int D, int NW, int KB, bool DOC>
void check_conv(int T, int H, int Hkv, int cq1, int ck1, int cq2, int ck2) {
  std::mt19937 rng(T * 31 + D);
  std::normal_distribution<float> nd;
  auto draw = [&](size_t n, float sd) {
    std::vector<uint16_t> x(n);
    for (auto& u : x) u = emu::f2b(nd(rng) * sd);
    return x;
  };
  auto q = draw((size_t)H * T * D, 1), k = draw((size_t)Hkv * T * D, 1),
       v = draw((size_t)Hkv * T * D, 1), d_o = draw((size_t)H * T * D, 1e-5f);
  auto taps = [&](int cq, int ck) {
    std::vector<float> x((size_t)H * cq * ck);
    for (auto& u : x) u = 0.1f * nd(rng);
    for (int h = 0; h < H; h++) x[((size_t)h * cq + cq - 1) * ck + (ck - 1) / 2] += 1;
    return x;
  };
  auto pre = taps(cq1, ck1), post = taps(cq2, ck2);
  std::vector<int> doc;
  if (DOC) {
    doc.resize(T);
    for (int i = 0, s = 0; i < T; i++) {
      if (i == 37 || i == 39 || i == T / 2 || i == T - 20) s = i;
      doc[i] = s;
    }
  }
  RefProblem rp{H,
                Hkv,
                T,
                D,
                cq1,
                ck1,
                cq2,
                ck2,
                1 / std::sqrt((double)D),
                wide_bf16(q),
                wide_bf16(k),
                wide_bf16(v),
                wide_bf16(d_o),
                wide(pre),
                wide(post),
                {},
                {},
                doc};
  RefResult ref = reference(rp);
  rp.eager_bf16 = true;
  RefResult eag = reference(rp);
  std::vector<uint16_t> o(q.size(), 0xffff), dq(q.size(), 0xffff);
  std::vector<float> lse(H * T, NAN), delta(H * T, NAN), norms(2 * H), dk(k.size(), 0),
      dv(v.size(), 0), dpre(pre.size(), 0), dpost(post.size(), 0);
  Strides sq{(int64_t)H * T * D, (int64_t)T * D, D}, sk{(int64_t)Hkv * T * D, (int64_t)T * D, D};
  ConvForward f{q.data(),
                k.data(),
                v.data(),
                o.data(),
                lse.data(),
                sq,
                sk,
                sk,
                sq,
                {pre.data(), cq1, ck1},
                {post.data(), cq2, ck2},
                DOC ? doc.data() : nullptr,
                H,
                Hkv,
                T,
                1 / std::sqrt((float)D)};
  conv_lse<D, NW, KB, DOC, 1>(f, 1, 0);
  conv_out<D, NW, KB, DOC, 1>(f, 1, 0);
  ConvBackward g{q.data(),     k.data(),  v.data(),  d_o.data(), lse.data(),  delta.data(),
                 norms.data(), dq.data(), dk.data(), dv.data(),  dpre.data(), dpost.data(),
                 sq,           sk,        sk,        sq,         sq,          f.pre,
                 f.post,       f.doc,     H,         Hkv,        T,           f.scale};
  row_norms<D>(g, norms.data(), 1, 0);
  conv_value<D, NW, KB, DOC, 1>(g, 1, 0);
  conv_score<D, NW, KB, DOC, 1>(g, 1, 0);
  std::printf("conv D%d NW%d KB%d doc%d T%d %dx%d %dx%d:", D, NW, KB, DOC, T, cq1, ck1, cq2, ck2);
  report("lse", ref.lse, wide(lse), eag.lse);
  report("o", ref.o, wide_bf16(o), eag.o);
  report("dq", ref.dq, wide_bf16(dq), eag.dq);
  report("dk", ref.dk, wide(dk), eag.dk);
  report("dv", ref.dv, wide(dv), eag.dv);
  report("dpre", ref.d_pre, wide(dpre), eag.d_pre);
  report("dpost", ref.d_post, wide(dpost), eag.d_post);
  std::printf("\n");
  std::fflush(stdout);
}
template <int D, bool DOC>
void check_mix(int T, int Hkv, int rows) {
  constexpr int H = kHeads;
  std::mt19937 rng(T * 31 + D);
  std::normal_distribution<float> nd;
  auto draw = [&](size_t n, float sd) {
    std::vector<uint16_t> x(n);
    for (auto& u : x) u = emu::f2b(nd(rng) * sd);
    return x;
  };
  auto q = draw((size_t)H * T * D, 1), k = draw((size_t)Hkv * T * D, 1),
       v = draw((size_t)Hkv * T * D, 1), d_o = draw((size_t)H * T * D, 1e-5f);
  std::vector<float> pre(256), post(256);
  for (int i = 0; i < 256; i++)
    pre[i] = 0.1f * nd(rng) + (i % 17 == 0), post[i] = 0.1f * nd(rng) + (i % 17 == 0);
  std::vector<int> doc;
  if (DOC) {
    doc.resize(T);
    for (int i = 0, s = 0; i < T; i++) {
      if (i == 37 || i == 39 || i == T / 2 || i == T - 20) s = i;
      doc[i] = s;
    }
  }
  RefProblem rp{H,
                Hkv,
                T,
                D,
                0,
                0,
                0,
                0,
                1 / std::sqrt((double)D),
                wide_bf16(q),
                wide_bf16(k),
                wide_bf16(v),
                wide_bf16(d_o),
                {},
                {},
                wide(pre),
                wide(post),
                doc};
  RefResult ref = reference(rp);
  rp.eager_bf16 = true;
  RefResult eag = reference(rp);
  std::vector<uint16_t> o(q.size(), 0xffff), dq(q.size(), 0xffff),
      slab((size_t)rows * H * slab_pitch(T), 0xffff), slab_g(slab.size(), 0xffff);
  std::vector<float> lse(H * T, NAN), norms(2 * H), ex(2 * H), dk(k.size(), 0), dv(v.size(), 0),
      dpre(256, 0), dpost(256, 0);
  Strides sq{(int64_t)H * T * D, (int64_t)T * D, D}, sk{(int64_t)Hkv * T * D, (int64_t)T * D, D};
  MixTensors m{{q.data(), sq, 1},
               {k.data(), sk, H / Hkv},
               {v.data(), sk, H / Hkv},
               {d_o.data(), sq, 1},
               o.data(),
               dq.data(),
               sq,
               sq,
               dk.data(),
               dv.data()};
  MixProblem p{pre.data(),
               post.data(),
               lse.data(),
               DOC ? doc.data() : nullptr,
               1,
               T,
               1 / std::sqrt((float)D),
               ex.data(),
               dpre.data(),
               dpost.data()};
  mix_forward<D>(m, p, slab.data(), rows, 0);
  mix_backward<D>(m, p, slab.data(), slab_g.data(), rows, norms.data(), ex.data(), Hkv, 0);
  std::printf("mix D%d doc%d T%d:", D, DOC, T);
  report("lse", ref.lse, wide(lse), eag.lse);
  report("o", ref.o, wide_bf16(o), eag.o);
  report("dq", ref.dq, wide_bf16(dq), eag.dq);
  report("dk", ref.dk, wide(dk), eag.dk);
  report("dv", ref.dv, wide(dv), eag.dv);
  report("dpre", ref.d_mix_pre, wide(dpre), eag.d_mix_pre);
  report("dpost", ref.d_mix_post, wide(dpost), eag.d_mix_post);
  std::printf("\n");
  std::fflush(stdout);
}
// Results of a batch: maps one after the other, kernel gradients summed.
static RefResult batch_reference(const RefProblem& p, int B) {
  RefResult all;
  auto part = [&](const Vec& x, int b) {
    return x.empty() ? x : Vec(x.begin() + x.size() / B * b, x.begin() + x.size() / B * (b + 1));
  };
  for (int b = 0; b < B; b++) {
    RefProblem one = p;
    one.q = part(p.q, b);
    one.k = part(p.k, b);
    one.v = part(p.v, b);
    one.d_o = part(p.d_o, b);
    if (!p.doc.empty()) one.doc.assign(p.doc.begin() + b * p.T, p.doc.begin() + (b + 1) * p.T);
    RefResult r = reference(one);
    auto append = [](Vec& to, const Vec& x) { to.insert(to.end(), x.begin(), x.end()); };
    auto add = [](Vec& to, const Vec& x) {
      to.resize(x.size(), 0.0);
      for (size_t i = 0; i < x.size(); i++) to[i] += x[i];
    };
    append(all.o, r.o);
    append(all.lse, r.lse);
    append(all.dq, r.dq);
    append(all.dk, r.dk);
    append(all.dv, r.dv);
    add(all.d_pre, r.d_pre);
    add(all.d_post, r.d_post);
    add(all.d_mix_pre, r.d_mix_pre);
    add(all.d_mix_post, r.d_mix_post);
  }
  return all;
}
template <int D, bool DOC>
void check_conv_mix(int B, int T, int Hkv, int rows, int cq, int ck) {
  constexpr int H = kHeads;
  std::mt19937 rng(T * 31 + D);
  std::normal_distribution<float> nd;
  auto draw = [&](size_t n, float sd) {
    std::vector<uint16_t> x(n);
    for (auto& u : x) u = emu::f2b(nd(rng) * sd);
    return x;
  };
  size_t nq = (size_t)B * H * T * D, nk = (size_t)B * Hkv * T * D;
  auto q = draw(nq, 1), k = draw(nk, 1), v = draw(nk, 1), d_o = draw(nq, 1e-5f);
  std::vector<float> pre(256), post(256), kpre(H * cq * ck), kpost(H * cq * ck);
  for (int i = 0; i < 256; i++)
    pre[i] = 0.1f * nd(rng) + (i % 17 == 0), post[i] = 0.1f * nd(rng) + (i % 17 == 0);
  for (int i = 0; i < H * cq * ck; i++) {
    bool centre = i % (cq * ck) == (cq - 1) * ck + (ck - 1) / 2;
    kpre[i] = 0.1f * nd(rng) + centre;
    kpost[i] = 0.1f * nd(rng) + centre;
  }
  std::vector<int> doc;
  if (DOC)
    for (int b = 0; b < B; b++)
      for (int i = 0, s = 0; i < T; i++) {
        if (i == 37 + b || i == 39 || i == T / 2 + b || i == T - 20) s = i;
        doc.push_back(s);
      }
  RefProblem rp{H,
                Hkv,
                T,
                D,
                cq,
                ck,
                cq,
                ck,
                1 / std::sqrt((double)D),
                wide_bf16(q),
                wide_bf16(k),
                wide_bf16(v),
                wide_bf16(d_o),
                wide(kpre),
                wide(kpost),
                wide(pre),
                wide(post),
                doc};
  RefResult ref = batch_reference(rp, B);
  rp.eager_bf16 = true;
  RefResult eag = batch_reference(rp, B);
  int back_rows = std::max(rows, 128);
  size_t slab_size = (size_t)B * (back_rows + kLead) * H * slab_pitch(T);
  std::vector<uint16_t> o(nq, 0xffff), dq(nq, 0xffff), slab(slab_size, 0xffff), slab2(slab),
      slab3(slab), slab4(slab);
  std::vector<float> lse(B * H * T, NAN), norms(2 * B * H), ex(2 * B * H), dk(nk, 0), dv(nk, 0),
      dpre(256, 0), dpost(256, 0), dkpre(kpre.size(), 0), dkpost(kpost.size(), 0);
  Strides sq{(int64_t)H * T * D, (int64_t)T * D, D}, sk{(int64_t)Hkv * T * D, (int64_t)T * D, D};
  MixTensors m{{q.data(), sq, 1},
               {k.data(), sk, H / Hkv},
               {v.data(), sk, H / Hkv},
               {d_o.data(), sq, 1},
               o.data(),
               dq.data(),
               sq,
               sq,
               dk.data(),
               dv.data()};
  MixProblem p{pre.data(),
               post.data(),
               lse.data(),
               DOC ? doc.data() : nullptr,
               B,
               T,
               1 / std::sqrt((float)D),
               ex.data(),
               dpre.data(),
               dpost.data()};
  conv_mix_forward<D, DOC>(m, p, {kpre.data(), cq, ck}, {kpost.data(), cq, ck}, slab.data(),
                           slab2.data(), rows, 0);
  conv_mix_backward<D, DOC>(m, p, {kpre.data(), cq, ck}, {kpost.data(), cq, ck}, dkpre.data(),
                            dkpost.data(), {slab.data(), slab2.data(), slab3.data(), slab4.data()},
                            back_rows, norms.data(), ex.data(), Hkv, 0);
  std::printf("conv+mix B%d D%d doc%d T%d %dx%d:", B, D, DOC, T, cq, ck);
  report("lse", ref.lse, wide(lse), eag.lse);
  report("o", ref.o, wide_bf16(o), eag.o);
  report("dq", ref.dq, wide_bf16(dq), eag.dq);
  report("dk", ref.dk, wide(dk), eag.dk);
  report("dv", ref.dv, wide(dv), eag.dv);
  report("dkpre", ref.d_pre, wide(dkpre), eag.d_pre);
  report("dkpost", ref.d_post, wide(dkpost), eag.d_post);
  report("dpre", ref.d_mix_pre, wide(dpre), eag.d_mix_pre);
  report("dpost", ref.d_mix_post, wide(dpost), eag.d_mix_post);
  std::printf("\n");
  std::fflush(stdout);
}
int main(int argc, char** argv) {  // arguments: schedule (0, 1, 2), late copies (0, 1): see
                                   // emulate.h; then both, mix or conv for a part
  if (argc > 1) emu::schedule = std::atoi(argv[1]);
  if (argc > 2) emu::late_copies = std::atoi(argv[2]);
  auto part = [&](const char* name) { return argc < 4 || !std::strcmp(argv[3], name); };
  if (part("both")) {
    check_conv_mix<64, false>(1, 150, 16, 64, 6, 11);
    check_conv_mix<64, true>(2, 180, 8, 128, 6, 11);
    check_conv_mix<96, false>(1, 210, 16, 128, 5, 12);
  }
  if (part("mix")) {
    check_mix<64, false>(150, 16, 64);
    check_mix<96, true>(200, 8, 128);
    check_mix<128, false>(300, 4, 192);
  }
  if (part("conv")) {
    check_conv<64, 4, 64, false>(150, 2, 2, 6, 11, 6, 11);
    check_conv<96, 4, 32, false>(131, 1, 1, 6, 11, 6, 11);
    check_conv<96, 6, 32, false>(191, 1, 1, 6, 11, 6, 11);
    check_conv<128, 8, 32, false>(170, 1, 1, 6, 17, 3, 5);
    check_conv<64, 4, 32, true>(150, 2, 1, 6, 11, 6, 11);
    check_conv<64, 8, 64, true>(199, 1, 1, 4, 9, 5, 12);
  }
  std::printf("%d quantities wrong\n", failures);
  return failures != 0;
}
