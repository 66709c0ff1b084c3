// SlowRanks: finds the rank for which all others wait.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "fovea/runtime/communicator.h"

namespace fovea {

class SlowRanks {
 public:
  /// The own work of a step, without the time in which this rank waits for others.
  void add(double seconds) { seconds_ += seconds; }

  /// A sentence about the slowest rank since the last call, "" where none stands out or where it
  /// has been named already. Every rank must call it; all receive the same.
  std::string find(Communicator& ranks);

 private:
  double seconds_ = 0;
  std::set<int64_t> named_;
};

}  // namespace fovea
