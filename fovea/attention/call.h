// AttentionCall: one call of attention(), checked once and read by all paths (internal to
// attention/).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <typeindex>
#include <utility>
#include <vector>

#include "fovea/attention/attention.h"
#include "fovea/attention/key_rule.h"

namespace fovea {

/// Sizes and dtype of one call.
struct CallShape {
  int64_t batch = 0, queries = 0, keys = 0;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;

  bool operator==(const CallShape&) const = default;
};

class HashTables;  // cache/hash_tables.h
struct Places;     // places.h
struct StageUse;   // mechanism.h

/// Inputs that a selector takes from a cache; empty outside of decoding.
struct SelectorInputs {
  at::Tensor prompts_b;            ///< int64: tokens of the prompt of every sequence
  at::Tensor key_components_bgds;  ///< the keys by component
  at::Tensor value_sums_bge;       ///< float64, of all values
  std::shared_ptr<const HashTables> tables;
};

/// Values made at first use, one of each type. A copy is for another call and starts empty.
class MadeOnce {
 public:
  MadeOnce() = default;
  MadeOnce(const MadeOnce&) {}
  MadeOnce& operator=(const MadeOnce&) {
    values_.clear();
    return *this;
  }

  /// The value of `make`'s type; a path's why_not() and run() share it.
  template <class Make>
  auto get(const Make& make) {
    using Value = decltype(make());
    for (const auto& [type, value] : values_) {
      if (type == typeid(Value)) return std::static_pointer_cast<const Value>(value);
    }
    auto made = std::make_shared<const Value>(make());
    values_.emplace_back(typeid(Value), made);
    return std::shared_ptr<const Value>(std::move(made));
  }

 private:
  std::vector<std::pair<std::type_index, std::shared_ptr<const void>>> values_;
};

struct AttentionCall {
  AttentionSpec spec;
  at::Tensor q, k, v;  ///< [b, h, t, d], [b, g, s, d], [b, g, s, e]
  AttentionTensors tensors = {};
  AttentionContext context = {};
  SelectorInputs selector = {};
  /// Rows of the result that are wanted, of the last queries; 0: all. A path may leave out others.
  int64_t last_queries = 0;
  mutable MadeOnce made = {};

  CallShape shape() const { return {q.size(0), q.size(2), k.size(2), q.scalar_type(), q.device()}; }
  KeyRule key_rule() const { return fovea::key_rule(spec); }
  /// resolve_places() of this call, on the device of q. Made once, as stages(): both are for calls
  /// that nobody changes any more.
  const Places& places() const;
  /// stage_uses() of `spec`.
  const std::vector<StageUse>& stages() const;
  /// Dropout acts in this call.
  bool drops_weights() const { return spec.dropout > 0.0 && context.training; }
  /// Some input has a gradient that is recorded.
  bool wants_gradient() const;
};

/// The call, if tensors and spec fit together: ShapeError, ConfigError or UnsupportedError
/// otherwise, the same whatever path runs it.
AttentionCall checked_call(const AttentionSpec& spec, const at::Tensor& q_bhtd,
                           const at::Tensor& k_bgsd, const at::Tensor& v_bgse,
                           const AttentionTensors& tensors, const AttentionContext& context);

/// As above, for a call that has all its inputs.
AttentionCall checked_call(AttentionCall call);

/// The call of maps and telemetry, which need no values: the keys stand in for them.
AttentionCall checked_call_without_values(AttentionSpec spec, const at::Tensor& q_bhtd,
                                          const at::Tensor& k_bgsd, AttentionTensors tensors,
                                          const AttentionContext& context);

/// "[2, 4, 8]" for an error, "none" for an undefined tensor.
std::string shape_text(const at::Tensor& x);

/// The contiguous rows of an int64 tensor, to be checked; undefined where it is not on the CPU: a
/// check does not wait for a device.
at::Tensor readable_rows(const at::Tensor& x);

}  // namespace fovea
