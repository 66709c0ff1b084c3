// Steps that are timed by operator (callbacks.profile).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <torch/version.h>

#include "fovea/runtime/machine.h"
#include "fovea/train/trainer_impl.h"

namespace fovea {

StepOutcome Trainer::Impl::profiled_step() {
  if (!profile) return train_step();
  StepOutcome outcome;
  profile->measure([&] { outcome = train_step(); });
  if (profile->complete()) tell_profile();
  return outcome;
}

void Trainer::Impl::tell_profile() {
  if (!profile) return;
  StepProfile told = profile->result();
  profile.reset();
  if (told.steps() == 0) {
    return warn(fmt::format(
        "no profile: it begins after {} steps, and this process had no more; set 'train.steps'",
        kProfileWarmup));
  }
  told.run = recipe.name;
  told.machine = machine_text(device);
  told.code_version = code_version();
  told.torch_version = TORCH_VERSION;
  told.dtype = std::string(enum_name(recipe.train.dtype));
  told.attention_path = state.attention_path;
  told.threads = at::get_num_threads();
  told.parameters = model->parameters().count();
  told.tokens = recipe.train.accumulation * stage().batch_rows * stage().sequence_length;
  callbacks.profile(told);
}

}  // namespace fovea
