// NaN and infinity stay with the rows that see them (internal to kernels/cpu).
//
// A tile multiplies weights of 0 with whatever lies in it, and 0 times NaN is NaN. Kernels report
// results that are not finite. Then a call is repeated without the tokens that are not finite, and
// results that depend on one of them become NaN:
//
//   forward   a row that sees such a key or value: out, lse, statistics
//   backward  such a row (its q, dout, numbers), or one that sees such a key: dq; every key that
//             one of these rows sees: dk, dv; sums over rows: NaN
//
// All other results are the same bits as with any finite numbers there. The kernels themselves find
// the seen pairs: queries and keys of zeros weigh all seen keys alike.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "fovea/kernels/common/contract.h"

namespace fovea::kernels {

/// Rows of an operand in memory of its own, with contiguous rows.
template <class T>
class OwnRows {
 public:
  OwnRows(int64_t batch, int64_t heads, int64_t rows, int64_t width, float value = 0.0f)
      : heads_(heads), rows_(rows), width_(width) {
    T element;
    from_float(value, element);
    data_.assign(static_cast<size_t>(batch * heads * rows * width), element);
  }

  T* at(int64_t b, int64_t h, int64_t n) {
    return data_.data() + ((b * heads_ + h) * rows_ + n) * width_;
  }
  HeadRows<const T> read() const {
    return {data_.data(), heads_ * rows_ * width_, rows_ * width_, width_};
  }
  HeadRows<T> write() { return {data_.data(), heads_ * rows_ * width_, rows_ * width_, width_}; }

 private:
  int64_t heads_, rows_, width_;
  std::vector<T> data_;
};

template <class T>
bool all_finite(const T* row, int64_t width) {
  return std::all_of(row, row + width, [](T x) { return std::isfinite(to_float(x)); });
}

/// Flags of [batch][heads][rows].
class RowFlags {
 public:
  RowFlags(int64_t batch, int64_t heads, int64_t rows)
      : heads_(heads), rows_(rows), flags_(static_cast<size_t>(batch * heads * rows)) {}

  void set(int64_t b, int64_t h, int64_t n) { flags_[index(b, h, n)] = any_ = true; }
  bool at(int64_t b, int64_t h, int64_t n) const { return flags_[index(b, h, n)]; }
  bool any() const { return any_; }

 private:
  size_t index(int64_t b, int64_t h, int64_t n) const {
    return static_cast<size_t>((b * heads_ + h) * rows_ + n);
  }
  int64_t heads_, rows_;
  std::vector<bool> flags_;
  bool any_ = false;
};

template <template <class> class Problem, class T>
class Isolation {
 public:
  explicit Isolation(const Problem<T>& problem) : p_(problem), s_(problem.sizes) {}

 protected:
  static constexpr int64_t kWidth = 8;  // the narrowest that kernels have
  static constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

  template <class F>
  void each_key(const F& visit) const {
    for (int64_t b = 0; b < s_.batch; ++b) {
      for (int64_t g = 0; g < s_.kv_heads; ++g)
        for (int64_t j = 0; j < s_.keys; ++j) visit(b, g, key_row(b, j));
    }
  }
  template <class F>
  void each_row(const F& visit) const {
    for (int64_t b = 0; b < s_.batch; ++b) {
      for (int64_t h = 0; h < s_.heads; ++h)
        for (int64_t i = 0; i < s_.queries; ++i) visit(b, h, i);
    }
  }
  int64_t key_head(int64_t h) const { return h / (s_.heads / s_.kv_heads); }

  // Rows of k and v: lists of keys may name later ones than there are keys in a list.
  int64_t key_rows() const {
    int64_t rows = s_.keys;
    if constexpr (requires { p_.keys_seen; }) {
      for (const int32_t n : p_.keys_seen.values) rows = std::max<int64_t>(rows, n + 1);
    }
    return rows;
  }
  int64_t key_row(int64_t b, int64_t j) const {
    if constexpr (requires { p_.keys_seen; }) {
      if (p_.keys_seen.rows() > 0) {
        const std::span<const int32_t> list = p_.keys_seen.of(b);
        return list.empty() ? 0 : list[std::min<size_t>(static_cast<size_t>(j), list.size() - 1)];
      }
    }
    return j;
  }

  bool gated() const { return p_.rule.gate.form != PairGate::Form::none; }
  const float* key_gate(int64_t b, int64_t j) const {
    return p_.rule.gate.key + b * p_.rule.gate.key_batch + j * p_.rule.gate.columns;
  }
  bool gate_is_finite(const float* row) const { return all_finite(row, p_.rule.gate.columns); }
  const float* query_gate(int64_t b, int64_t i) const {
    return p_.rule.gate.query + b * p_.rule.gate.query_batch + i * p_.rule.gate.columns;
  }

  // Keys that are not finite.
  RowFlags find_bad_keys() const {
    RowFlags bad(s_.batch, s_.kv_heads, key_rows());
    each_key([&](int64_t b, int64_t g, int64_t j) {
      if (!all_finite(p_.k.at(b, g, j), s_.head_dim) ||
          !all_finite(p_.v.at(b, g, j), s_.value_dim) ||
          (gated() && !gate_is_finite(key_gate(b, j))))
        bad.set(b, g, j);
    });
    return bad;
  }

  OwnRows<T> clean_keys(const HeadRows<const T>& from, int64_t width, const RowFlags& bad) const {
    OwnRows<T> to(s_.batch, s_.kv_heads, key_rows(), width);
    each_key([&](int64_t b, int64_t g, int64_t j) {
      if (!bad.at(b, g, j)) std::copy_n(from.at(b, g, j), width, to.at(b, g, j));
    });
    return to;
  }
  // Factors [batch][tokens][columns] of a gate, zeros where `bad`.
  template <class Bad>
  std::vector<float> clean_gates(const float* from, int64_t from_batch, int64_t tokens,
                                 const Bad& bad) const {
    const int64_t columns = gated() ? p_.rule.gate.columns : 0;
    std::vector<float> to(static_cast<size_t>(s_.batch * tokens * columns));
    for (int64_t b = 0; b < s_.batch && columns > 0; ++b) {
      for (int64_t n = 0; n < tokens; ++n) {
        if (!bad(b, n))
          std::copy_n(from + b * from_batch + n * columns, columns,
                      to.data() + (b * tokens + n) * columns);
      }
    }
    return to;
  }
  std::vector<float> clean_key_gates() const {
    return clean_gates(p_.rule.gate.key, p_.rule.gate.key_batch, s_.keys,
                       [this](int64_t b, int64_t j) { return !gate_is_finite(key_gate(b, j)); });
  }

  // The problem of one narrow head a key head, of zeros: all seen keys weigh the same.
  template <class Narrow>
  Narrow narrow(Narrow problem) const {
    problem.sizes.heads = s_.kv_heads;
    problem.sizes.head_dim = problem.sizes.value_dim = kWidth;
    problem.rule = {};
    if constexpr (requires { problem.few; }) problem.few = nullptr;
    return problem;
  }

  const Problem<T>& p_;
  const AttentionSizes s_;
};

/// Repairs the results of a forward or decoding call, of which some are not finite.
template <template <class> class Problem, class T>
class ForwardIsolation : Isolation<Problem, T> {
  using Base = Isolation<Problem, T>;
  using Base::p_, Base::s_, Base::kWidth, Base::kNaN;

 public:
  using Base::Base;

  /// `run` runs a problem without looking at its results.
  template <class Run>
  void repair(const Run& run) const {
    const RowFlags bad = this->find_bad_keys();
    if (!bad.any()) return;  // every row has itself to blame
    OwnRows<T> k = this->clean_keys(p_.k, s_.head_dim, bad),
               v = this->clean_keys(p_.v, s_.value_dim, bad);
    const std::vector<float> gates = this->clean_key_gates();
    Problem<T> clean = p_;
    clean.k = k.read();
    clean.v = v.read();
    clean.rule.gate.key = gates.data();
    clean.rule.gate.key_batch = s_.keys * clean.rule.gate.columns;
    run(clean);
    const Seen seen = sees(bad, run);
    this->each_row([&](int64_t b, int64_t h, int64_t i) {
      if (seen.bad.at(b, this->key_head(h), i)) forget(b, h, i);
    });
  }

  /// By [batch][kv_heads][queries]: rows that see one of `bad`, and the logarithm of how many keys
  /// they see.
  struct Seen {
    RowFlags bad;
    std::vector<float> lse;
  };
  template <class Run>
  Seen sees(const RowFlags& bad, const Run& run) const {
    Seen seen{RowFlags(s_.batch, s_.kv_heads, s_.queries),
              std::vector<float>(static_cast<size_t>(s_.batch * s_.kv_heads * s_.queries))};
    OwnRows<T> q(s_.batch, s_.kv_heads, s_.queries, kWidth),
        out = q, k(s_.batch, s_.kv_heads, this->key_rows(), kWidth), v = k;
    this->each_key([&](int64_t b, int64_t g, int64_t j) {
      if (bad.at(b, g, j)) from_float(1.0f, *v.at(b, g, j));
    });
    Problem<T> problem = this->narrow(p_);
    problem.q = q.read();
    problem.k = k.read();
    problem.v = v.read();
    problem.out = out.write();
    if constexpr (requires { problem.out_rest; }) problem.out_rest = {};
    problem.lse = seen.lse.data();
    if constexpr (requires { problem.stats; }) problem.stats = nullptr;
    run(problem);
    for (int64_t b = 0; b < s_.batch; ++b) {
      for (int64_t g = 0; g < s_.kv_heads; ++g) {
        for (int64_t i = 0; i < s_.queries; ++i)
          if (to_float(*out.at(b, g, i)) > 0.0f) seen.bad.set(b, g, i);
      }
    }
    return seen;
  }

 private:
  void forget(int64_t b, int64_t h, int64_t i) const {
    T* const out = p_.out.at(b, h, i);
    for (int64_t c = 0; c < s_.value_dim; ++c) from_float(kNaN, out[c]);
    const int64_t row = (b * s_.heads + h) * s_.queries + i;
    if (p_.lse != nullptr) p_.lse[row] = kNaN;
    if constexpr (requires { p_.stats; }) {
      if (p_.stats != nullptr) std::fill_n(p_.stats + row * kRowStats, kRowStats, kNaN);
    }
  }
};

/// Repairs the gradients of a backward call, of which some are not finite. Forward is the problem
/// of its forward pass.
template <template <class> class Problem, template <class> class Forward, class T>
class BackwardIsolation : Isolation<Problem, T> {
  using Base = Isolation<Problem, T>;
  using Base::p_, Base::s_, Base::kWidth, Base::kNaN;

 public:
  BackwardIsolation(const Problem<T>& problem, const Forward<T>& who)
      : Base(problem), who_(who), rows_(s_.batch, s_.heads, s_.queries) {}

  /// `run` runs a backward problem without looking at its results, `run_forward` a forward one.
  template <class Run, class RunForward>
  void repair(const Run& run, const RunForward& run_forward) {
    const RowFlags bad = this->find_bad_keys();
    const auto seen = ForwardIsolation<Forward, T>(who_).sees(bad, run_forward);
    this->each_row([&](int64_t b, int64_t h, int64_t i) {
      if (seen.bad.at(b, this->key_head(h), i) || !is_finite(b, h, i)) rows_.set(b, h, i);
    });
    if (!rows_.any()) return;
    run_clean(bad, run);
    const RowFlags keys = keys_seen_by_bad_rows(seen.lse, run);
    forget_rows(seen.lse);
    forget_keys(keys);
  }

 private:
  int64_t number(int64_t b, int64_t h, int64_t i) const {
    return (b * s_.heads + h) * s_.queries + i;
  }

  bool is_finite(int64_t b, int64_t h, int64_t i) const {
    const int64_t n = number(b, h, i);
    const float lse = p_.lse[n];
    return all_finite(p_.q.at(b, h, i), s_.head_dim) &&
           all_finite(p_.dout.at(b, h, i), s_.value_dim) &&
           all_finite(p_.out.at(b, h, i), s_.value_dim) &&
           lse < std::numeric_limits<float>::infinity() &&
           (p_.dlse == nullptr || std::isfinite(p_.dlse[n])) &&
           (p_.rule.tau == nullptr || std::isfinite(p_.rule.tau[b * s_.queries + i])) &&
           (!this->gated() || this->gate_is_finite(this->query_gate(b, i)));
  }

  // A row that counts for nothing is an empty one.
  template <class Run>
  void run_clean(const RowFlags& bad_keys, const Run& run) const {
    const auto numbers = [&](const float* from) {
      const int64_t count = from != nullptr ? s_.batch * s_.heads * s_.queries : 0;
      return std::vector<float>(from, from + count);
    };
    const auto clean_rows = [&](const HeadRows<const T>& from, int64_t width) {
      OwnRows<T> to(s_.batch, s_.heads, s_.queries, width);
      this->each_row([&](int64_t b, int64_t h, int64_t i) {
        if (!rows_.at(b, h, i)) std::copy_n(from.at(b, h, i), width, to.at(b, h, i));
      });
      return to;
    };
    OwnRows<T> k = this->clean_keys(p_.k, s_.head_dim, bad_keys),
               v = this->clean_keys(p_.v, s_.value_dim, bad_keys),
               q = clean_rows(p_.q, s_.head_dim), out = clean_rows(p_.out, s_.value_dim),
               dout = clean_rows(p_.dout, s_.value_dim);
    std::optional<OwnRows<T>> rest;
    if (p_.out_rest.data != nullptr) rest.emplace(clean_rows(p_.out_rest, s_.value_dim));
    std::vector<float> lse = numbers(p_.lse), dlse = numbers(p_.dlse), tau;
    this->each_row([&](int64_t b, int64_t h, int64_t i) {
      if (!rows_.at(b, h, i)) return;
      lse[number(b, h, i)] = -std::numeric_limits<float>::infinity();
      if (!dlse.empty()) dlse[number(b, h, i)] = 0.0f;
    });
    for (int64_t n = 0; p_.rule.tau != nullptr && n < s_.batch * s_.queries; ++n)
      tau.push_back(std::isfinite(p_.rule.tau[n]) ? p_.rule.tau[n] : 1.0f);
    const std::vector<float> key_gates = this->clean_key_gates(),
                             query_gates = this->clean_gates(
                                 p_.rule.gate.query, p_.rule.gate.query_batch, s_.queries,
                                 [this](int64_t b, int64_t i) {
                                   return !this->gate_is_finite(this->query_gate(b, i));
                                 });
    Problem<T> clean = p_;
    clean.q = q.read();
    clean.k = k.read();
    clean.v = v.read();
    clean.out = out.read();
    if (rest) clean.out_rest = rest->read();
    clean.dout = dout.read();
    clean.lse = lse.data();
    if (p_.dlse != nullptr) clean.dlse = dlse.data();
    if (p_.rule.tau != nullptr) clean.rule.tau = tau.data();
    clean.rule.gate.key = key_gates.data();
    clean.rule.gate.query = query_gates.data();
    clean.rule.gate.key_batch = s_.keys * clean.rule.gate.columns;
    clean.rule.gate.query_batch = s_.queries * clean.rule.gate.columns;
    run(clean);
  }

  // The gradient of values whose outputs matter in bad rows alone.
  template <class Run>
  RowFlags keys_seen_by_bad_rows(const std::vector<float>& lse, const Run& run) const {
    RowFlags seen(s_.batch, s_.kv_heads, s_.keys);
    OwnRows<T> q(s_.batch, s_.kv_heads, s_.queries, kWidth),
        k(s_.batch, s_.kv_heads, s_.keys, kWidth), dout = q, dq = q, dk = k, dv = k;
    this->each_row([&](int64_t b, int64_t h, int64_t i) {
      if (rows_.at(b, h, i)) from_float(1.0f, *dout.at(b, this->key_head(h), i));
    });
    Problem<T> problem = this->narrow(p_);
    problem.q = q.read();
    problem.k = problem.v = k.read();
    problem.out = q.read();  // zeros, too
    problem.out_rest = {};
    problem.dout = dout.read();
    problem.lse = lse.data();
    problem.dlse = nullptr;
    problem.dq = dq.write();
    problem.dk = dk.write();
    problem.dv = dv.write();
    problem.dtau = problem.dsink = nullptr;
    if constexpr (requires { problem.dbias; })
      problem.dbias = problem.dgate_query = problem.dgate_key = nullptr;
    run(problem);
    this->each_key([&](int64_t b, int64_t g, int64_t j) {
      if (to_float(*dv.at(b, g, j)) > 0.0f) seen.set(b, g, j);
    });
    return seen;
  }

  void forget_rows(const std::vector<float>& lse) const {
    this->each_row([&](int64_t b, int64_t h, int64_t i) {
      if (!rows_.at(b, h, i)) return;
      const int64_t n = number(b, h, i);
      if (p_.dsink != nullptr) p_.dsink[b * s_.heads + h] = kNaN;
      const bool empty = lse[(b * s_.kv_heads + this->key_head(h)) * s_.queries + i] == -kEndless;
      if (empty) return;
      T* const dq = p_.dq.at(b, h, i);
      for (int64_t c = 0; c < s_.head_dim; ++c) from_float(kNaN, dq[c]);
      if (p_.dtau != nullptr) p_.dtau[n] = kNaN;
      if constexpr (requires { p_.dbias; }) {
        const int64_t columns = p_.rule.gate.columns, bias = p_.rule.bias_count;
        if (p_.dbias != nullptr) std::fill_n(p_.dbias + (b * s_.heads + h) * bias, bias, kNaN);
        if (p_.dgate_query != nullptr) std::fill_n(p_.dgate_query + n * columns, columns, kNaN);
      }
    });
  }

  void forget_keys(const RowFlags& keys) const {
    this->each_key([&](int64_t b, int64_t g, int64_t j) {
      if (!keys.at(b, g, j)) return;
      T *const dk = p_.dk.at(b, g, j), *const dv = p_.dv.at(b, g, j);
      for (int64_t c = 0; c < s_.head_dim; ++c) from_float(kNaN, dk[c]);
      for (int64_t c = 0; c < s_.value_dim; ++c) from_float(kNaN, dv[c]);
      if constexpr (requires { p_.dgate_key; }) {
        const int64_t columns = p_.rule.gate.columns;
        if (p_.dgate_key != nullptr)
          std::fill_n(p_.dgate_key + ((b * s_.kv_heads + g) * s_.keys + j) * columns, columns,
                      kNaN);
      }
    });
  }

  static constexpr float kEndless = std::numeric_limits<float>::infinity();
  const Forward<T>& who_;
  RowFlags rows_;  // that are not finite, or see such a key
};

}  // namespace fovea::kernels
