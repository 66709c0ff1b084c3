// The stages of a run with every value filled in, and the learning rate at any moment.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fovea/data/batch_stream.h"
#include "fovea/nn/parameter_set.h"
#include "fovea/runtime/communicator.h"
#include "fovea/train/recipe.h"

namespace fovea {

class Transformer;

struct StageSchedule {
  std::string name;
  int64_t first_step = 0;
  int64_t steps = 0;     ///< 0 = until `seconds`
  double seconds = 0.0;  ///< 0 = until `steps`
  int64_t sequence_length = 0;
  int64_t batch_rows = 0;
  double rope_theta = 0.0;
  double learning_rate = 0.0;
  double weight_decay = 0.0;
  ScheduleConfig schedule;
  bool carry_optimizer = false;
  ParameterSet trainable;
  std::string objective = "lm";
  double straight_through_from = 1.0;

  bool finished(int64_t step, double seconds_trained) const;
  /// Share of the stage's budget that is spent, 0 ... 1.
  double fraction(int64_t step, double seconds_trained) const;
  /// Share of the warm-up that is over when that step begins, 0 ... 1; 1 without one.
  double warmed_up(int64_t step, double seconds_trained) const;
  /// Learning rate of the step that begins at `step` (of the run, from 0). With a time budget the
  /// schedule follows the clock; a warm-up in steps stays one in steps.
  double learning_rate_at(int64_t step, double seconds_trained) const;
};

/// Lets exactly the stage's parameters learn. ConfigError where the stage names a mechanism that
/// the model lacks.
void train_only_stage(Transformer& model, const StageSchedule& stage);

/// Options of the batches that stage number `index` of the run reads: the same for every variant.
BatchStreamOptions stream_options(const StageSchedule& stage, size_t index, int64_t seed,
                                  const Communicator& ranks = alone());

/// At least one stage; a token budget becomes steps (rounded up).
std::vector<StageSchedule> stage_schedules(const Recipe& resolved);

}  // namespace fovea
