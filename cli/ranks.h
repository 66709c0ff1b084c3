// A verb on several processes: started by a launcher, or by itself with --processes.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/report/progress.h"
#include "fovea/runtime/communicator.h"
#include "fovea/runtime/gloo_communicator.h"
#include "fovea/runtime/rank_place.h"

namespace fovea::cli {

/// Thrown where the processes of --processes have failed, after the reason is on stderr.
struct RanksEnded {
  int exit_code = 0;
};

/// The ranks of the environment, joined; one rank where there is no launcher. Each sees its own GPU
/// alone, so it is made before anything asks for one.
class Ranks {
 public:
  /// UsageError for half an environment; LostRankError, IoError.
  Ranks();

  Communicator& all() const { return joined_ ? static_cast<Communicator&>(*joined_) : alone(); }
  /// Says how many there are.
  void tell(Progress& progress) const;
  /// ConfigError where the program or `text` (a `what`) differs between the ranks.
  void require_same(const std::string& text, std::string_view what) const;
  /// From now on tensors on `device` are exchanged, too. ConfigError where the ranks' devices do
  /// not fit together.
  void compute_on(at::Device device) const;

 private:
  RankPlace place_;
  std::unique_ptr<JoinedRanks> joined_;
};

/// The command of one rank: `arguments` without --processes.
std::vector<std::string> without_processes(const std::vector<std::string>& arguments);

/// Runs this program with `arguments` as `count` ranks and returns when all have done their work.
/// UsageError, IoError, RanksEnded.
void run_in_processes(int64_t count, std::vector<std::string> arguments);

/// UsageError where a launcher has started several processes of a verb that is made for one.
void require_one_process(std::string_view verb);

}  // namespace fovea::cli
