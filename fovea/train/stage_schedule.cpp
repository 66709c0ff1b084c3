// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/stage_schedule.h"

#include <algorithm>

#include "fovea/base/error.h"
#include "fovea/base/rng.h"
#include "fovea/nn/transformer.h"

namespace fovea {

bool StageSchedule::finished(int64_t step, double seconds_trained) const {
  return steps > 0 ? step >= first_step + steps : seconds_trained >= seconds;
}

double StageSchedule::fraction(int64_t step, double seconds_trained) const {
  const double done = steps > 0
                          ? static_cast<double>(step - first_step) / static_cast<double>(steps)
                          : seconds_trained / seconds;
  return std::clamp(done, 0.0, 1.0);
}

double StageSchedule::warmed_up(int64_t step, double seconds_trained) const {
  const bool by_clock = steps == 0 && schedule.warmup_steps < 0;
  const double done = by_clock ? seconds_trained : static_cast<double>(step - first_step);
  const double whole = by_clock    ? schedule.warmup_fraction * seconds
                       : steps > 0 ? static_cast<double>(warmup_steps(schedule, steps))
                                   : static_cast<double>(schedule.warmup_steps);
  return whole > 0.0 ? std::clamp(done / whole, 0.0, 1.0) : 1.0;
}

double StageSchedule::learning_rate_at(int64_t step, double seconds_trained) const {
  const auto local = static_cast<double>(step - first_step);
  if (steps > 0) {
    const auto warmup = static_cast<double>(warmup_steps(schedule, steps));
    return learning_rate * schedule_multiplier(schedule, local, warmup, static_cast<double>(steps));
  }
  if (schedule.warmup_steps >= 0) {
    const auto warmup = static_cast<double>(schedule.warmup_steps);
    const double rising = local < warmup ? local / warmup : 1.0;
    return learning_rate *
           std::min(rising, schedule_multiplier(schedule, seconds_trained, 0.0, seconds));
  }
  return learning_rate * schedule_multiplier(schedule, seconds_trained,
                                             schedule.warmup_fraction * seconds, seconds);
}

void train_only_stage(Transformer& model, const StageSchedule& stage) {
  for (const std::string& name : stage.trainable.mechanisms()) {
    require<ConfigError>(
        model.has(name), "recipe",
        "'trainable' names {}, of which this model has no parameters; set its keys "
        "in 'model', or leave it out",
        name);
  }
  // Focus moves centroids that follow their tokens by itself.
  const bool follow = model.config().attention.focus.centroid_decay > 0.0;
  model.parameters().train_only([&](const Parameter& p) {
    return stage.trainable.contains(p) && !(follow && p.name.ends_with(".focus.centroids"));
  });
}

BatchStreamOptions stream_options(const StageSchedule& stage, size_t index, int64_t seed,
                                  const Communicator& ranks) {
  const auto first = static_cast<uint64_t>(seed);
  return {.sequence_length = stage.sequence_length,
          .batch_rows = stage.batch_rows,
          .seed = index == 0 ? first : mix_seed(first, index),
          .rank = ranks.rank(),
          .ranks = ranks.size()};
}

std::vector<StageSchedule> stage_schedules(const Recipe& resolved) {
  const TrainConfig& train = resolved.train;
  StageSchedule whole{.name = "",
                      .first_step = 0,
                      .steps = train.steps,
                      .seconds = train.seconds,
                      .sequence_length = train.sequence_length,
                      .batch_rows = train.batch_rows,
                      .rope_theta = resolved.model.rope.theta,
                      .learning_rate = train.optimizer.learning_rate,
                      .weight_decay = train.optimizer.weight_decay,
                      .schedule = train.schedule,
                      .carry_optimizer = false,
                      .trainable = ParameterSet::parse(train.trainable, "train.trainable"),
                      .objective = train.objective,
                      .straight_through_from = train.straight_through_from};
  if (train.tokens > 0) {
    const int64_t step_tokens = train.batch_rows * train.accumulation * train.sequence_length;
    whole.steps = (train.tokens + step_tokens - 1) / step_tokens;
  }
  if (train.stages.empty()) return {whole};
  std::vector<StageSchedule> schedules;
  int64_t first = 0;
  for (const StageConfig& stage : train.stages) {
    StageSchedule next = whole;
    next.name = stage.name.empty() ? "stage " + std::to_string(schedules.size() + 1) : stage.name;
    next.first_step = first;
    next.steps = stage.steps;
    if (stage.sequence_length > 0) next.sequence_length = stage.sequence_length;
    if (stage.batch_rows > 0) next.batch_rows = stage.batch_rows;
    if (stage.rope_theta > 0.0) next.rope_theta = stage.rope_theta;
    if (stage.learning_rate > 0.0) next.learning_rate = stage.learning_rate;
    if (stage.weight_decay >= 0.0) next.weight_decay = stage.weight_decay;
    next.schedule = stage.schedule;
    next.carry_optimizer = stage.carry_optimizer;
    next.trainable = ParameterSet::parse(stage.trainable_of(train), "train.stages.trainable");
    next.objective = stage.objective_of(train);
    next.straight_through_from = stage.straight_through_of(train);
    first += stage.steps;
    schedules.push_back(std::move(next));
  }
  return schedules;
}

}  // namespace fovea
