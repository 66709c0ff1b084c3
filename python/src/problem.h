// From a call to the arguments of the kernels (fovea/kernels/common/).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <optional>

#include "call.h"
#include "fovea/kernels/backend.h"
#include "pairs.h"

namespace fovea::python {

/// Which kernels compute a call.
enum class Family { plain, few_rows, planned, joined, focus };
/// `focus`: hard Focus, planned on the device.
Family family_of(const Call& call, const Pairs& pairs);

/// f(a number of the type that x has).
template <class F>
void with_type(const Tensor& x, const F& f) {
  if (x.scalar_type() == ScalarType::Float) return f(0.0f);
  require<UnsupportedError>(x.scalar_type() == ScalarType::BFloat16, "fovea.attention",
                            "expected q, k and v in float32 or bfloat16; convert them by .float()");
  f(BFloat16{});
}

/// f(problem) of the forward pass.
template <class T, class F>
void with_forward(Family family, const F& f) {
  switch (family) {
    case Family::plain:
      return f(kernels::AttentionForward<T>());
    case Family::few_rows:
      return f(kernels::AttentionDecode<T>());
    case Family::planned:
      return f(kernels::GroupedForward<T>());
    case Family::joined:
      return f(kernels::MixingForward<T>());
    case Family::focus:
      return f(kernels::FocusForward<T>());
  }
}

/// f(problem) of the backward pass.
template <class T, class F>
void with_backward(Family family, const F& f) {
  switch (family) {
    case Family::plain:
    case Family::few_rows:
      return f(kernels::AttentionBackward<T>());
    case Family::planned:
      return f(kernels::GroupedBackward<T>());
    case Family::joined:
      return f(kernels::MixingBackward<T>());
    case Family::focus:
      return f(kernels::FocusBackward<T>());
  }
}

kernels::ScoreParameters score_parameters(const Call& call);
kernels::MixingRule mixing_rule(const Call& call);
kernels::MemberMask member_mask(const Call& call);
kernels::FocusGroups focus_groups(const Call& call);

template <class T>
kernels::HeadRows<const T> rows_of(const Tensor& x) {
  return {static_cast<const T*>(x.const_data_ptr()), x.stride(0), x.stride(1), x.stride(2)};
}

template <class T>
kernels::HeadRows<T> writable_rows_of(const Tensor& x) {
  return {static_cast<T*>(x.mutable_data_ptr()), x.stride(0), x.stride(1), x.stride(2)};
}

/// What both passes read.
template <class T, class Problem>
void set_inputs(Problem& problem, const Call& call, const Pairs& pairs) {
  const Tensor &q = call.q, &k = call.k, &v = call.v;
  problem.sizes = {.batch = q.size(0),
                   .heads = q.size(1),
                   .kv_heads = k.size(1),
                   .queries = q.size(2),
                   .keys = k.size(2),
                   .head_dim = q.size(3),
                   .value_dim = v.size(3)};
  problem.rule = score_parameters(call);
  problem.q = rows_of<T>(q);
  problem.k = rows_of<T>(k);
  problem.v = rows_of<T>(v);
  if constexpr (requires { problem.plans; })
    problem.plans = pairs.plans;
  else if constexpr (requires { problem.rows; })
    problem.rows = pairs.rows;
  else if constexpr (requires { problem.groups; })
    problem.groups = focus_groups(call);
  else
    problem.visits = pairs.visits;
  if constexpr (requires { problem.mixing; }) {
    problem.mixing = mixing_rule(call);
    problem.members = member_mask(call);
  }
}

}  // namespace fovea::python
