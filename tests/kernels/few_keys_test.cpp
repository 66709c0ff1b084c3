// The kernels of a few keys more: results and gradients against loops in double precision for every
// instruction set, whole calls with grouped heads on any number of threads, rows that see nothing.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/pointwise/few_keys.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "fovea/base/error.h"
#include "tests/support/kernels_of_this_machine.h"
#include "tests/support/normal_floats.h"

namespace fovea::kernels::few_keys_test {
namespace {

using testing::kernels_of_this_machine;
using testing::normal_floats;

constexpr double kNothing = -std::numeric_limits<double>::infinity();

template <class T>
std::vector<T> normals(int64_t n, uint64_t seed) {
  const std::vector<float> floats = normal_floats(n, seed);
  std::vector<T> x(floats.size());
  for (size_t i = 0; i < x.size(); ++i) from_float(floats[i], x[i]);
  return x;
}

struct Setting {
  int64_t rows = 0, keys = 0, d = 0, e = 0;
  double cap = 0.0;
};

// One head: rows that have seen other keys (or nothing), and the keys that are to be joined.
template <class T>
struct Problem {
  Setting s;
  std::vector<T> q, k, v, out, dout;
  std::vector<float> lse, dlse, tau;
  std::vector<uint64_t> seen;

  explicit Problem(const Setting& setting)
      : s(setting),
        q(normals<T>(s.rows * s.d, 1)),
        k(normals<T>(s.keys * s.d, 2)),
        v(normals<T>(s.keys * s.e, 3)),
        out(normals<T>(s.rows * s.e, 4)),
        dout(normals<T>(s.rows * s.e, 5)),
        lse(normal_floats(s.rows, 6)),
        dlse(normal_floats(s.rows, 7)),
        tau(normal_floats(s.rows, 8)) {
    for (float& t : tau) t = static_cast<float>(std::sqrt(double(s.d))) + 2.0f + 0.3f * t;
    for (int64_t i = 0; i < s.rows; ++i) {
      const uint64_t all = s.keys == 64 ? ~uint64_t{0} : (uint64_t{1} << s.keys) - 1;
      seen.push_back(i % 5 == 3 ? 0 : all & (0x9E3779B97F4A7C15ull * uint64_t(i + 1) | 1u));
      if (i % 4 != 1) continue;
      lse[i] = -std::numeric_limits<float>::infinity();  // nothing seen so far
      for (int64_t c = 0; c < s.e; ++c) from_float(0.0f, out[i * s.e + c]);
    }
  }

  bool reads(int64_t i, int64_t n) const { return (seen[i] >> n & 1u) != 0; }
  double scaled(int64_t i, int64_t n) const {
    double product = 0.0;
    for (int64_t c = 0; c < s.d; ++c)
      product += double(to_float(q[i * s.d + c])) * to_float(k[n * s.d + c]);
    return product / tau[i];
  }
  double logit(int64_t i, int64_t n) const {
    return s.cap > 0.0 ? s.cap * std::tanh(scaled(i, n) / s.cap) : scaled(i, n);
  }
  double joint_lse(int64_t i) const {
    double sum = std::exp(double(lse[i]));
    for (int64_t n = 0; n < s.keys; ++n) sum += reads(i, n) ? std::exp(logit(i, n)) : 0.0;
    return std::log(sum);
  }
};

// A key head's operand as the driver packs it.
template <class T>
struct Packed {
  int64_t pitch;
  std::vector<float> rows;
  FewOperand operand;

  Packed(const std::vector<T>& x, int64_t keys, int64_t width)
      : pitch(few_pitch(width)), rows(static_cast<size_t>(keys * pitch)) {
    for (int64_t n = 0; n < keys; ++n)
      for (int64_t c = 0; c < width; ++c) rows[n * pitch + c] = to_float(x[n * width + c]);
    operand = {.width = width, .pitch = pitch, .rows = rows.data()};
  }
};

template <class T>
void expect_joined(const Setting& s, double tolerance) {
  for (const FewKeysTable<T>* table : kernels_of_this_machine<FewKeysTable<T>>()) {
    Problem<T> p(s);
    const Problem<T> before = p;
    const Packed<T> k(p.k, s.keys, s.d), v(p.v, s.keys, s.e);
    std::vector<float> memory(static_cast<size_t>(few_memory(s.d, s.e)));
    table->join({.k = k.operand,
                 .v = v.operand,
                 .count = s.rows,
                 .q = p.q.data(),
                 .q_row = s.d,
                 .seen = p.seen.data(),
                 .soft_cap = static_cast<float>(s.cap),
                 .tau = p.tau.data(),
                 .out = p.out.data(),
                 .out_row = s.e,
                 .lse = p.lse.data(),
                 .memory = memory.data()});
    for (int64_t i = 0; i < s.rows; ++i) {
      const double lse = before.joint_lse(i);
      if (lse == kNothing) {
        EXPECT_EQ(p.lse[i], kNothing);
      } else {
        EXPECT_NEAR(p.lse[i], lse, 2e-6 * (1.0 + std::abs(lse)));
      }
      for (int64_t c = 0; c < s.e; ++c) {
        double out = lse == kNothing
                         ? 0.0
                         : std::exp(before.lse[i] - lse) * to_float(before.out[i * s.e + c]);
        for (int64_t n = 0; n < s.keys; ++n)
          if (before.reads(i, n))
            out += std::exp(before.logit(i, n) - lse) * to_float(before.v[n * s.e + c]);
        EXPECT_NEAR(to_float(p.out[i * s.e + c]), out, tolerance) << i << " " << c;
      }
    }
  }
}

template <class T>
void expect_gradient(const Setting& s, double tolerance) {
  for (const FewKeysTable<T>* table : kernels_of_this_machine<FewKeysTable<T>>()) {
    Problem<T> p(s);
    for (int64_t i = 0; i < s.rows; ++i) p.lse[i] = static_cast<float>(p.joint_lse(i));
    const Packed<T> k(p.k, s.keys, s.d), v(p.v, s.keys, s.e);
    std::vector<float> memory(static_cast<size_t>(few_memory(s.d, s.e)));
    std::vector<float> dk = k.rows, dv = v.rows, dtau = p.dlse;  // something to add to
    std::vector<T> dq = p.q;
    table->gradient({.k = k.operand,
                     .v = v.operand,
                     .count = s.rows,
                     .q = p.q.data(),
                     .out = p.out.data(),
                     .dout = p.dout.data(),
                     .q_row = s.d,
                     .out_row = s.e,
                     .dout_row = s.e,
                     .seen = p.seen.data(),
                     .soft_cap = static_cast<float>(s.cap),
                     .tau = p.tau.data(),
                     .lse = p.lse.data(),
                     .dlse = p.dlse.data(),
                     .dq = dq.data(),
                     .dq_row = s.d,
                     .dk = dk.data(),
                     .dv = dv.data(),
                     .dtau = dtau.data(),
                     .memory = memory.data()});
    std::vector<double> want_k(k.rows.begin(), k.rows.end()), want_v(v.rows.begin(), v.rows.end());
    for (int64_t i = 0; i < s.rows; ++i) {
      std::vector<double> want_q;
      for (int64_t c = 0; c < s.d; ++c) want_q.push_back(to_float(p.q[i * s.d + c]));
      double want_tau = p.dlse[i], delta = -double(p.dlse[i]);
      for (int64_t c = 0; c < s.e; ++c)
        delta += double(to_float(p.out[i * s.e + c])) * to_float(p.dout[i * s.e + c]);
      for (int64_t n = 0; n < s.keys; ++n) {
        if (!p.reads(i, n)) continue;
        const double weight = std::exp(p.logit(i, n) - p.lse[i]);
        double of_value = 0.0;
        for (int64_t c = 0; c < s.e; ++c) {
          of_value += double(to_float(p.dout[i * s.e + c])) * to_float(p.v[n * s.e + c]);
          want_v[n * v.pitch + c] += weight * to_float(p.dout[i * s.e + c]);
        }
        const double t = s.cap > 0.0 ? std::tanh(p.scaled(i, n) / s.cap) : 0.0;
        const double slope = weight * (of_value - delta) * (1.0 - t * t);
        want_tau -= slope * p.scaled(i, n) / p.tau[i];
        for (int64_t c = 0; c < s.d; ++c) {
          want_q[c] += slope / p.tau[i] * to_float(p.k[n * s.d + c]);
          want_k[n * k.pitch + c] += slope / p.tau[i] * to_float(p.q[i * s.d + c]);
        }
      }
      EXPECT_NEAR(dtau[i], want_tau, 1e-5 * (1.0 + std::abs(want_tau)));
      for (int64_t c = 0; c < s.d; ++c)
        EXPECT_NEAR(to_float(dq[i * s.d + c]), want_q[c], tolerance * (1.0 + std::abs(want_q[c])));
    }
    for (size_t n = 0; n < want_k.size(); ++n)
      EXPECT_NEAR(dk[n], want_k[n], 2e-5 * (1.0 + std::abs(want_k[n])));
    for (size_t n = 0; n < want_v.size(); ++n)
      EXPECT_NEAR(dv[n], want_v[n], 2e-5 * (1.0 + std::abs(want_v[n])));
  }
}

const Setting kSettings[] = {{1, 1, 1, 1},        {8, 4, 64, 64},  {13, 16, 20, 36, 2.0},
                             {37, 17, 64, 128},   {5, 64, 96, 33}, {40, 5, 256, 256, 30.0},
                             {29, 33, 72, 8, 0.5}};

TEST(FewKeys, JoinTheSoftmaxOfOtherKeys) {
  for (const Setting& s : kSettings) {
    expect_joined<float>(s, 5e-6);
    expect_joined<BFloat16>(s, 1.5e-2);
  }
}

TEST(FewKeys, GradientsAreThoseOfTheWholeSoftmax) {
  for (const Setting& s : kSettings) {
    expect_gradient<float>(s, 2e-5);
    expect_gradient<BFloat16>(s, 4e-3);
  }
}

// Several sequences and heads by strides; keys from anywhere among others.
struct Call {
  AttentionSizes sizes{.batch = 2, .heads = 4, .kv_heads = 2, .queries = 300, .keys = 3};
  int64_t all_keys = 50, d = 24, e = 16;
  std::vector<int64_t> key_rows{7, 0, 49};
  std::vector<float> q, k, v, out, lse, dout, dq, dk, dv;
  std::vector<uint64_t> seen;
  std::vector<int32_t> set_of_head;

  Call() {
    sizes.head_dim = d, sizes.value_dim = e;
    const int64_t rows = 2 * 4 * 300, keys = 2 * 2 * all_keys;
    q = normal_floats(rows * d, 1), k = normal_floats(keys * d, 2), v = normal_floats(keys * e, 3);
    out = normal_floats(rows * e, 4), lse = normal_floats(rows, 5);
    dout = normal_floats(rows * e, 6), dq = normal_floats(rows * d, 7);
    dk.assign(2 * 2 * 3 * few_pitch(d), 1.0f);  // to be overwritten
    dv.assign(2 * 2 * 3 * few_pitch(e), 1.0f);
    for (uint64_t i = 0; i < 300; ++i) seen.push_back(i * 2654435761u % 8);
    set_of_head.assign(8, 0);
  }
  // Rows in the order [batch][token][head].
  template <class T>
  static HeadRows<T> rows(T* data, int64_t tokens, int64_t heads, int64_t width) {
    return {data, tokens * heads * width, width, heads * width};
  }
  void run_all() {
    run(FewKeys<float>{.sizes = sizes,
                       .q = rows<const float>(q.data(), 300, 4, d),
                       .k = rows<const float>(k.data(), all_keys, 2, d),
                       .v = rows<const float>(v.data(), all_keys, 2, e),
                       .key_rows = key_rows.data(),
                       .seen = {seen.data(), set_of_head.data()},
                       .scale = 0.2f,
                       .out = rows<float>(out.data(), 300, 4, e),
                       .lse = lse.data()});
    run(FewKeysGradient<float>{.sizes = sizes,
                               .q = rows<const float>(q.data(), 300, 4, d),
                               .k = rows<const float>(k.data(), all_keys, 2, d),
                               .v = rows<const float>(v.data(), all_keys, 2, e),
                               .out = rows<const float>(out.data(), 300, 4, e),
                               .dout = rows<const float>(dout.data(), 300, 4, e),
                               .key_rows = key_rows.data(),
                               .seen = {seen.data(), set_of_head.data()},
                               .scale = 0.2f,
                               .lse = lse.data(),
                               .dq = rows<float>(dq.data(), 300, 4, d),
                               .dk = dk.data(),
                               .dv = dv.data()});
  }
};

TEST(FewKeys, SequencesAndGroupedHeadsHaveTheirOwnKeys) {
  Call c;
  c.run_all();
  for (int64_t item = 0; item < 2 * 2 * 3; ++item) {
    const int64_t n = item % 3, g = item / 3 % 2, b = item / 6;
    const int64_t key = (b * c.all_keys + c.key_rows[n]) * 2 + g;
    for (int64_t x = 0; x < c.e; ++x) {
      double want = 0.0;
      for (int64_t h = 2 * g; h < 2 * g + 2; ++h) {
        for (int64_t i = 0; i < 300; ++i) {
          if ((c.seen[i] >> n & 1u) == 0) continue;
          const int64_t row = (b * 300 + i) * 4 + h;
          double logit = 0.0;
          for (int64_t y = 0; y < c.d; ++y)
            logit += double(c.q[row * c.d + y]) * c.k[key * c.d + y];
          want += std::exp(0.2 * logit - c.lse[(b * 4 + h) * 300 + i]) * c.dout[row * c.e + x];
        }
      }
      EXPECT_NEAR(c.dv[item * few_pitch(c.e) + x], want, 1e-4);
    }
  }
}

TEST(FewKeys, GiveTheSameBitsOnAnyNumberOfThreads) {
  const int threads = omp_get_max_threads();
  std::vector<Call> calls(3);
  for (int n = 0; n < 3; ++n) {
    omp_set_num_threads(2 * n + 1);
    calls[n].run_all();
  }
  omp_set_num_threads(threads);
  for (const Call& c : calls) {
    EXPECT_EQ(c.out, calls[0].out);
    EXPECT_EQ(c.lse, calls[0].lse);
    EXPECT_EQ(c.dq, calls[0].dq);
    EXPECT_EQ(c.dk, calls[0].dk);
    EXPECT_EQ(c.dv, calls[0].dv);
  }
}

// Keys as rows, queries as the few: the gradients of a softmax written out.
template <class T>
void expect_query_gradient(const Setting& s, double tolerance) {
  for (const FewKeysTable<T>* table : kernels_of_this_machine<FewKeysTable<T>>()) {
    Problem<T> p(s);  // its rows are the keys here: q for k, dout for v; k and v for q and dO
    const Packed<T> q(p.k, s.keys, s.d), dout(p.v, s.keys, s.e);
    const std::vector<float> lse = normal_floats(s.keys, 9), less = normal_floats(s.keys, 10);
    std::vector<float> memory(static_cast<size_t>(few_memory(s.d, s.e)));
    std::vector<float> dq = q.rows, turn = less;  // something to add to
    std::vector<T> dk(p.q.size()), dv(p.dout.size());
    for (float& x : p.tau) x = 1.0f;
    for (T& x : p.q) from_float(0.2f * to_float(x), x);
    table->of_queries({.q = q.operand,
                       .dout = dout.operand,
                       .lse = lse.data(),
                       .less = less.data(),
                       .count = s.rows,
                       .k = p.q.data(),
                       .v = p.dout.data(),
                       .k_row = s.d,
                       .v_row = s.e,
                       .seen = p.seen.data(),
                       .soft_cap = static_cast<float>(s.cap),
                       .dk = dk.data(),
                       .dv = dv.data(),
                       .dk_row = s.d,
                       .dv_row = s.e,
                       .dq = dq.data(),
                       .turn = turn.data(),
                       .memory = memory.data()});
    std::vector<double> want_q(q.rows.begin(), q.rows.end()), want_turn(less.begin(), less.end());
    std::vector<double> size_q(want_q.size(), 1.0), size_turn(want_turn.size(), 1.0);
    for (int64_t j = 0; j < s.rows; ++j) {
      std::vector<double> want_k(static_cast<size_t>(s.d)), want_v(static_cast<size_t>(s.e));
      double size = 1.0;
      for (int64_t n = 0; n < s.keys; ++n) {
        if (!p.reads(j, n)) continue;
        const double weight = std::exp(p.logit(j, n) - lse[n]);
        double of_value = 0.0;
        for (int64_t c = 0; c < s.e; ++c) {
          of_value += double(to_float(p.dout[j * s.e + c])) * to_float(p.v[n * s.e + c]);
          want_v[c] += weight * to_float(p.v[n * s.e + c]);
        }
        const double t = s.cap > 0.0 ? std::tanh(p.scaled(j, n) / s.cap) : 0.0;
        const double slope = weight * (of_value - less[n]) * (1.0 - t * t);
        size += weight + std::abs(slope);
        want_turn[n] += slope * p.scaled(j, n);
        size_turn[n] += std::abs(slope * p.scaled(j, n));
        for (int64_t c = 0; c < s.d; ++c) {
          want_k[c] += slope * to_float(p.k[n * s.d + c]);
          want_q[n * q.pitch + c] += slope * to_float(p.q[j * s.d + c]);
          size_q[n * q.pitch + c] += std::abs(slope * to_float(p.q[j * s.d + c]));
        }
      }
      for (int64_t c = 0; c < s.d; ++c)
        EXPECT_NEAR(to_float(dk[j * s.d + c]), want_k[c], tolerance * size) << j << " " << c;
      for (int64_t c = 0; c < s.e; ++c)
        EXPECT_NEAR(to_float(dv[j * s.e + c]), want_v[c], tolerance * size) << j << " " << c;
    }
    for (size_t n = 0; n < want_q.size(); ++n) EXPECT_NEAR(dq[n], want_q[n], 1e-5 * size_q[n]);
    for (size_t n = 0; n < want_turn.size(); ++n)
      EXPECT_NEAR(turn[n], want_turn[n], 1e-5 * size_turn[n]);
  }
}

TEST(FewQueries, GradientsAreThoseOfTheSoftmax) {
  for (const Setting& s : kSettings) {
    expect_query_gradient<float>(s, 1e-5);
    expect_query_gradient<BFloat16>(s, 1e-2);
  }
}

TEST(FewKeys, TooManyAreRefusedByNumber) {
  Call c;
  c.sizes.keys = 65;
  try {
    c.run_all();
    FAIL();
  } catch (const ShapeError& error) {
    EXPECT_NE(std::string(error.what()).find("at most 64 keys"), std::string::npos);
  }
}

}  // namespace
}  // namespace fovea::kernels::few_keys_test
