// MultiTokenSpec: the settings of Multi-Token Attention (spec 3).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "fovea/config/fields.h"

namespace fovea {

struct Mechanism;

/// Extent of a key-query kernel [H, cq, ck]: cq queries up to the current one, ck keys around the
/// current one. Both 0 = no convolution.
struct KernelExtent {
  int64_t queries = 0;  ///< cq; row cq-1 of the kernel is the current query (M-4)
  int64_t keys = 0;     ///< ck; odd or even (M-3)

  bool active() const { return queries > 0; }
  /// Keys on the older and on the newer side of the current one.
  int64_t older_keys() const { return (keys - 1) / 2; }
  int64_t newer_keys() const { return keys / 2; }
  /// Query rows before the current one that a result needs.
  int64_t earlier_queries() const { return queries > 0 ? queries - 1 : 0; }
  void describe(FieldVisitor& v);
  bool operator==(const KernelExtent&) const = default;
};

/// Key-query convolution of Multi-Token Attention (stages 3 and 8; spec 3.2). The kernels are
/// AttentionTensors.
struct MultiTokenSpec {
  /// Pairs of an older query that the convolution before the softmax drops (M-1). `eq5`: keys that
  /// the older query may not see. `eq4`: keys that the current query may not see. After the softmax
  /// both agree.
  enum class Equation { eq5, eq4 };

  KernelExtent before;  ///< on the logits
  KernelExtent after;   ///< on the weights
  Equation equation = Equation::eq5;
  bool renormalise = false;  ///< M-9: convolved weights are divided by the sum of their row

  /// Query rows before the first one of a call that its results need: (cq-1) + (cq'-1) (3.6,
  /// M-10).
  int64_t earlier_queries() const { return before.earlier_queries() + after.earlier_queries(); }
  void describe(FieldVisitor& v);
  void check() const;
  bool operator==(const MultiTokenSpec&) const = default;
};

std::span<const std::string_view> enum_names(MultiTokenSpec::Equation);

const Mechanism& multi_token_mechanism();

/// How kernels start (3.5). `identity`: 1 at the current pair; `constant`: `value` everywhere;
/// `uniform`: U(-value, value), drawn by the caller; `diagonal`: 1 where the key lies as far back
/// as the query.
enum class KernelStart { identity, zeros, constant, uniform, diagonal };
std::span<const std::string_view> enum_names(KernelStart);

}  // namespace fovea
