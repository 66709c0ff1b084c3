// The Communicator of several processes: c10d's Gloo, the engine of torch.distributed on CPUs, and
// for tensors on GPUs its NCCL.
//
// All sums of one kind take the same way around the ranks, so a run gives the same bits as another
// one of as many ranks. A rank that dies closes its connections: the others stop at their next
// exchange. A rank that hangs is noticed when the exchange times out. Both are named.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string_view>

#include "fovea/base/error.h"
#include "fovea/runtime/communicator.h"
#include "fovea/runtime/device_exchange.h"
#include "fovea/runtime/rank_place.h"

namespace fovea {

/// Another rank has gone or hangs. A run that is started again goes on from its checkpoint; the
/// exit code says so (EX_TEMPFAIL).
class LostRankError : public IoError {
 public:
  using IoError::IoError;
  int exit_code() const override { return 75; }
  std::string_view kind() const override { return "LostRankError"; }
};

struct RankTimes {
  /// Until all ranks have come.
  std::chrono::milliseconds meeting = std::chrono::minutes(5);
  /// One exchange, with the work that others do before it: rank 0 reads texts and writes
  /// checkpoints alone.
  std::chrono::milliseconds exchange = std::chrono::minutes(30);
  /// How long a rank may give no sign of life until it counts as gone, once an exchange failed.
  std::chrono::milliseconds sign_of_life = std::chrono::seconds(3);
};

/// FOVEA_RANK_TIMEOUT (seconds) sets the time of an exchange, and shortens the meeting.
RankTimes rank_times();

/// The ranks that a launcher has started.
class JoinedRanks : public Communicator {
 public:
  /// From now on tensors on `device`, where it is no CPU, go by an exchange of devices, which is
  /// tested. `gpu` names the one that this rank has for itself. All ranks call it. ConfigError
  /// where some compute on GPUs and others on CPUs, two on one GPU, or something is missing.
  virtual void compute_on(at::Device device, std::string_view gpu,
                          const DeviceExchangeMaker& make = nccl_exchange) = 0;
};

/// Waits for all ranks of `place`, connects them and tests the connections. LostRankError where
/// ranks do not come; IoError.
std::unique_ptr<JoinedRanks> join_ranks(const RankPlace& place,
                                        const RankTimes& times = rank_times());

/// Whether all ranks give the same text.
bool same_on_all(Communicator& ranks, std::string_view text);

}  // namespace fovea
