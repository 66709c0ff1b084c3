// One optimizer step.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "fovea/base/error.h"
#include "fovea/base/rng.h"
#include "fovea/runtime/operator_profile.h"
#include "fovea/train/trainer_impl.h"

namespace fovea {
namespace {

/// With nan_policy: skip, so many skipped steps one after the other mean that the weights are lost.
constexpr int64_t kHopeless = 50;

/// Of a trainable number: its square and the sum; two moments and the update of AdamW.
constexpr double kNormFlops = 2.0, kUpdateFlops = 14.0;

double trainable_numbers(const Transformer& model) {
  return static_cast<double>(model.parameters().count(/*only_trainable=*/true));
}

LossResult objective_loss(const Transformer& model, const std::string& objective,
                          const ModelInput& input, const at::Tensor& targets, double normaliser,
                          ForwardInfo* info, double z_loss) {
  if (objective == "lm") return model.loss(input, targets, normaliser, info, z_loss);
  return model.objective(objective, input, targets, normaliser, info);
}

}  // namespace

void Trainer::Impl::calibrate(const std::vector<Batch>& batches) {
  if (state.step > 0) return;
  std::vector<ModelInput> inputs;
  inputs.reserve(batches.size());
  for (const Batch& batch : batches) inputs.push_back(model_input(batch, device));
  model->calibrate(inputs, ranks);
}

StepSums Trainer::Impl::accumulate_gradients(const std::vector<Batch>& batches,
                                             std::vector<ForwardInfo>& infos) {
  int64_t targets = 0;
  for (const Batch& batch : batches) targets += batch.targets_counted();
  const double normaliser = std::max(ranks.sum(static_cast<double>(targets)), 1.0);
  uint64_t step_seed =
      mix_seed(static_cast<uint64_t>(recipe.train.seed), static_cast<uint64_t>(state.step));
  if (!ranks.is_first()) step_seed = mix_seed(step_seed, static_cast<uint64_t>(ranks.rank()));
  const Stopwatch own_work;
  at::Tensor nll, ln_z;
  for (size_t i = 0; i < batches.size(); ++i) {
    ModelInput input = model_input(batches[i], device);
    input.dropout_seed = mix_seed(step_seed, i);
    input.training = true;
    const LossResult part =
        objective_loss(*model, stage().objective, input, target_tensor(batches[i], device),
                       normaliser, &infos[i], recipe.train.z_loss);
    require<ConfigError>(part.loss.requires_grad(), "train",
                         "expected that what learns acts on the loss; got no such parameter: check "
                         "'trainable'; groups of Focus act where rows (now {} tokens) are longer "
                         "than focus.window",
                         batches[i].length);
    nll = nll.defined() ? nll + part.nll_sum : part.nll_sum;
    ln_z = ln_z.defined() ? ln_z + part.ln_z_sums : part.ln_z_sums;
    // Recomputed layers give a gradient in parts.
    if (i + 1 == batches.size() && !recipe.train.gradient_checkpointing) gradients->begin();
    part.loss.backward();
    trace("micro_batch");
  }
  slow_ranks.add(own_work.seconds() - (layers ? layers->take_waited() : 0.0));
  if (layers) layers->finish();
  gradients->finish();
  return {.nll = Reading(nll),
          .ln_z = ln_z.defined() ? Reading(ln_z) : Reading(),
          .normaliser = normaliser};
}

Reading Trainer::Impl::gradient_norm() const {
  const OperatorScope scope(OperatorKind::optimizer,
                            [&] { return kNormFlops * trainable_numbers(*model); });
  return Reading(optimizer->gradient_norm());
}

void Trainer::Impl::update(const StepOutcome& outcome) {
  const OperatorScope scope(OperatorKind::optimizer,
                            [&] { return kUpdateFlops * trainable_numbers(*model); });
  optimizer->clip_gradients(outcome.gradient_norm);
  optimizer->step(outcome.learning_rate);
}

StepOutcome Trainer::Impl::train_step() {
  const LayerGather::Scope scope(layers.get());
  const Stopwatch whole;
  StepOutcome outcome;
  std::vector<Batch> batches;
  for (int64_t i = 0; i < recipe.train.accumulation; ++i) {
    batches.push_back(loader->next());
    outcome.tokens += stage().batch_rows * stage().sequence_length;
  }
  outcome.load_seconds = whole.seconds();
  slow_ranks.add(outcome.load_seconds);
  outcome.learning_rate = stage().learning_rate_at(state.step, state.seconds);
  calibrate(batches);
  const bool prunes = stage().fraction(state.step, state.seconds) >= stage().straight_through_from;
  model->compute().focus =
      model->has("focus") && prunes ? FocusMode::straight_through : FocusMode::configured;
  // Read again by evaluations before the next step.
  const bool ramps = recipe.train.temperature_ramp && stage().first_step == 0;
  model->compute().temperature_ramp = ramps ? stage().warmed_up(state.step, state.seconds) : 1.0;
  std::vector<ForwardInfo> infos(batches.size());
  const StepSums sums = accumulate_gradients(batches, infos);
  model->compute().focus = FocusMode::configured;
  const Reading norm = gradient_norm();
  // The host waits for the device here, and nowhere else in a step.
  std::vector<const Reading*> awaited{&sums.nll, &norm};
  if (logs(state.step + 1)) {
    const std::vector<const Reading*> told = infos.back().readings();
    awaited.push_back(&sums.ln_z);
    awaited.insert(awaited.end(), told.begin(), told.end());
  }
  Reading::together(awaited);
  outcome.loss = ranks.sum(sums.nll.value()) / sums.normaliser;
  outcome.gradient_norm = norm.value();
  const bool finite = std::isfinite(outcome.loss) && std::isfinite(outcome.gradient_norm);
  if (!ranks.any(!finite)) {
    update(outcome);
    model->observe(infos, potential_decay(stage().steps),
                   stage().fraction(state.step + 1, state.seconds), ranks);
    state.skipped_in_a_row = 0;
  } else {
    refuse_update(outcome);
  }
  outcome.ln_z_sums = sums.ln_z;
  outcome.targets = sums.normaliser;
  outcome.info = std::move(infos.back());
  optimizer->clear_gradients();
  ++state.step;
  state.tokens += outcome.tokens;
  state.loss = outcome.loss;
  outcome.seconds = ranks.max(whole.seconds());
  state.seconds += outcome.seconds;
  trace("updated");
  return outcome;
}

void Trainer::Impl::refuse_update(const StepOutcome& outcome) {
  optimizer->clear_gradients();
  const std::string what = fmt::format("loss {} and gradient norm {} at step {} are not finite",
                                       outcome.loss, outcome.gradient_norm, state.step + 1);
  const char* const remedy =
      "lower 'train.optimizer.learning_rate', lengthen the warm-up, or use 'train.dtype: float32'";
  if (recipe.train.nan_policy == NanPolicy::stop) {
    fail<NumericalError>("train",
                         "{}; {}, or 'train.nan_policy: skip'. The newest checkpoint is of step {}",
                         what, remedy, std::max<int64_t>(saved_step, 0));
  }
  ++state.skipped_steps;
  if (++state.skipped_in_a_row >= kHopeless) {
    fail<NumericalError>("train",
                         "{}, as in the {} steps before; {}. The newest checkpoint is of step {}",
                         what, kHopeless - 1, remedy, std::max<int64_t>(saved_step, 0));
  }
  warn(what + ": this update is skipped");
}

}  // namespace fovea
