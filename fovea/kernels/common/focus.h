// Hard Focus by the memberships themselves, for devices whose kernels plan their own walks:
// memberships never come to the host. grouped_plan.h has the relation.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/kernels/common/contract.h"
#include "fovea/kernels/common/grouped_plan.h"

namespace fovea::kernels {

/// One document; token n is query n and key n. `members` and all rows are memory of the device.
struct FocusGroups {
  GroupedRule rule;
  const uint64_t* members = nullptr;  ///< [batch][keys]: bit n says that the token is in group n
  int64_t most_groups = 1;            ///< of a token
};

template <class T>
struct FocusForward {
  AttentionSizes sizes;  ///< as many queries as keys
  ScoreParameters rule;
  FocusGroups groups;
  HeadRows<const T> q, k, v;
  HeadRows<T> out, out_rest;  ///< as in AttentionForward
  float* lse = nullptr;       ///< [batch][heads][queries]
};

template <class T>
struct FocusBackward {
  AttentionSizes sizes;
  ScoreParameters rule;
  FocusGroups groups;
  HeadRows<const T> q, k, v, out, out_rest, dout;  ///< as in AttentionBackward
  const float* lse = nullptr;                      ///< of the forward pass
  const float* dlse = nullptr;                     ///< [batch][heads][queries]; null: zeros
  HeadRows<T> dq, dk, dv;                          ///< all elements are written
};

}  // namespace fovea::kernels
