// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/trainer.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "fovea/base/error.h"
#include "fovea/checkpoint/model_file.h"
#include "fovea/nn/matmul.h"
#include "fovea/runtime/machine.h"
#include "fovea/runtime/memory_limit.h"
#include "fovea/runtime/memory_shortage.h"
#include "fovea/train/ranks_plan.h"
#include "fovea/train/trainer_impl.h"

namespace fovea {
namespace {

/// Floating-point operations of one training token: 6 per weight of a matrix product, and
/// attention's two products over half of the keys, forward and twice backward.
double flops_per_token(const ModelConfig& config, int64_t parameters, int64_t length) {
  const int64_t looked_up = config.tied ? 0 : config.vocab_size * config.width;
  const double attention = 6.0 * static_cast<double>(config.layers * config.heads) *
                           static_cast<double>(config.head_dim * length);
  return 6.0 * static_cast<double>(parameters - looked_up) + attention;
}

/// `auto` takes the dtype that is multiplied faster: a CPU may have instructions for bfloat16 and
/// multiply float32 faster (bfloat16_product()).
at::ScalarType training_dtype(DtypeChoice choice, at::Device device) {
  const bool slow = device.is_cpu() && bfloat16_product() == Bfloat16Product::widened;
  return choose_dtype(choice == DtypeChoice::automatic && slow ? DtypeChoice::float32 : choice,
                      device);
}

bool has_temperature(const ModelConfig& config) {
  const TemperatureSpec& spec = config.attention.spec.temperature;
  return spec.kind == TemperatureSpec::Kind::learned || spec.value != 1.0 ||
         !config.attention.temperature_per_layer.empty();
}

}  // namespace

void rethrow_with_memory_advice(const Recipe& recipe) {
  if (const std::optional<std::string> shortage = memory_shortage()) {
    fail<MemoryError>(
        "train",
        "not enough memory ({}); lower 'train.batch_rows' (now {}), 'train.sequence_length' "
        "(now {}) or the model's sizes, or set 'train.gradient_checkpointing: true'",
        *shortage, recipe.train.batch_rows, recipe.train.sequence_length);
  }
  throw;
}

Trainer::Impl::Impl(const Recipe& unresolved, TrainCallbacks calls,
                    std::shared_ptr<const Corpus> given, Communicator& communicator)
    : recipe(unresolved.resolved()),
      callbacks(std::move(calls)),
      ranks(communicator),
      corpus(std::move(given)) {
  TrainConfig& train = recipe.train;
  device = choose_device(train.device);
  train.device = device.is_cuda() ? DeviceChoice::cuda : DeviceChoice::cpu;
  train.dtype = training_dtype(train.dtype, device) == at::kBFloat16 ? DtypeChoice::bfloat16
                                                                     : DtypeChoice::float32;
  if (train.threads > 0) at::set_num_threads(static_cast<int>(train.threads));
  reset_peak_memory(device);
  paths.folder = recipe.run_folder;
  if (ranks.is_first()) {
    make_folders(paths.folder);
    lock.emplace(paths.folder);
  }
  const std::optional<FoundCheckpoint> found = find_start();
  const auto tokenizer =
      corpus ? corpus->shared_tokenizer() : open_named_tokenizer(recipe.tokenizer);
  recipe.model = recipe.model.resolved(tokenizer->vocab_size());
  if (found) check_same_run(*found);
  if (device.is_cpu())
    require_memory("this training",
                   static_cast<double>(
                       plan_rank_memory(recipe, tokenizer->vocab_size(), ranks.size()).total()));
  if (!corpus) corpus = read_corpus(tokenizer);
  if (found) check_same_corpus(*found);
  stages = stage_schedules(recipe);
  set_up(found);
}

std::shared_ptr<const Corpus> Trainer::Impl::read_corpus(
    const std::shared_ptr<const Tokenizer>& tokenizer) {
  if (!ranks.is_first()) ranks.barrier();  // rank 0 writes the cache of tokens, the others read it
  const auto read = prepare_corpus(recipe.data, tokenizer, [&](const CorpusProgress& progress) {
    if (callbacks.stop != nullptr && callbacks.stop->load()) {
      fail<Interrupted>("train", "stopped while the text was read; nothing had begun");
    }
    if (callbacks.data) callbacks.data(progress);
  });
  if (ranks.is_first()) ranks.barrier();
  return read;
}

void Trainer::Impl::set_up(const std::optional<FoundCheckpoint>& found) {
  if (found) state = RunState::from_json(found->state.at("run"));
  state.stage = std::min(state.stage, stages.size() - 1);
  build_model();
  enter_stage(/*first=*/true);
  if (found) {
    restore(*found);
    saved_step = state.step;
    message(fmt::format("continuing '{}' at step {}", paths.folder.string(), state.step));
  }
  if (ranks.is_first()) {
    record.emplace(paths, state.step);
    if (callbacks.profile) profile.emplace(device);
    write_run_files();
  }
  std::vector<at::Tensor> weights;
  for (const Parameter& parameter : model->parameters().all())
    if (!layers || !layers->has(parameter)) weights.push_back(parameter.value);
  ranks.broadcast(weights, 0);
  ranks.barrier();  // all have read what rank 0 may replace from now on
}

bool Trainer::Impl::stop_requested() const {
  return ranks.any(callbacks.stop != nullptr && callbacks.stop->load());
}

bool Trainer::Impl::logs(int64_t step) const {
  return recipe.train.log_interval > 0 && step % recipe.train.log_interval == 0;
}

bool Trainer::Impl::finished() const {
  return state.stage + 1 == stages.size() && stage().finished(state.step, state.seconds);
}

TrainResult Trainer::Impl::run() {
  while (!finished()) {
    if (stage().finished(state.step, state.seconds)) {
      ++state.stage;
      enter_stage(/*first=*/false);
    }
    const StepOutcome outcome = profiled_step();
    after_step(outcome);
    if (stop_requested() && !finished()) {
      if (saved_step != state.step) save();
      fail<Interrupted>(
          "train", "stopped at step {}; everything is saved in '{}': the same command continues",
          state.step, paths.folder.string());
    }
  }
  if (state.evaluated_step != state.step) {  // a finished run whose budget or stages shrank
    build_validation();
    evaluate_model();
  }
  if (saved_step != state.step) save();
  tell_profile();
  return result();
}

void Trainer::Impl::after_step(const StepOutcome& outcome) {
  const TrainConfig& train = recipe.train;
  const auto due = [&](int64_t interval) { return interval > 0 && state.step % interval == 0; };
  const bool last = finished();
  window_tokens += outcome.tokens;
  window_seconds += outcome.seconds;
  recent_step_seconds =
      recent_step_seconds > 0 ? 0.9 * recent_step_seconds + 0.1 * outcome.seconds : outcome.seconds;
  if (const PathTaken& path = outcome.info.path; path.name != PathName::none)
    state.attention_path = enum_name(path.name);
  report_progress(outcome);

  const bool evaluates = last || due(train.evaluation_interval);
  if (evaluates) {
    if (validation.empty()) build_validation();
    evaluate_model();
    if (callbacks.evaluation) callbacks.evaluation(state.step, *state.evaluation);
  }
  state.peak_memory_bytes = std::max(state.peak_memory_bytes, peak_memory_bytes(device));
  if (evaluates || logs(state.step)) {
    const double rate = static_cast<double>(window_tokens) / std::max(window_seconds, 1e-9);
    const SumTimes sums = gradients->times();
    StepRecord line{.step = state.step,
                    .tokens = state.tokens,
                    .loss = outcome.loss,
                    .learning_rate = outcome.learning_rate,
                    .decay_step = outcome.learning_rate * stage().weight_decay,
                    .gradient_norm = outcome.gradient_norm,
                    .ln_z = ln_z_of(outcome),
                    .tokens_per_second = rate,
                    .step_seconds = outcome.seconds,
                    .load_seconds = outcome.load_seconds,
                    .sum_seconds = sums.exchanged,
                    .sum_wait_seconds = sums.waited,
                    .seconds = state.seconds,
                    .flops = rate * flops_per_token(model->config(), model->parameters().count(),
                                                    stage().sequence_length),
                    .peak_memory_bytes = state.peak_memory_bytes,
                    .attention_path = state.attention_path,
                    .stage = stage().name,
                    .temperature = {},
                    .clipped_share = outcome.info.clipped_share(),
                    .focus = {},
                    .evaluation = evaluates ? state.evaluation : std::nullopt};
    for (const FocusObservation& layer : outcome.info.focus) {
      if (layer.defined()) line.focus.push_back(layer.statistics());
    }
    if (has_temperature(model->config()))
      for (const Reading& layer : outcome.info.temperature)
        line.temperature.push_back(layer.value());
    if (record) record->write(line);
    if (const std::string slow = slow_ranks.find(ranks); !slow.empty()) warn(slow);
    window_tokens = 0;
    window_seconds = 0;
  }
  trace("recorded");
  if (last || due(train.checkpoint_interval)) save();
}

std::optional<LnZ> Trainer::Impl::ln_z_of(const StepOutcome& outcome) {
  if (!outcome.ln_z_sums.defined()) return std::nullopt;
  std::array<double, 2> sums{outcome.ln_z_sums.value(0), outcome.ln_z_sums.value(1)};
  ranks.sum(sums);
  return LnZ{.mean = sums[0] / outcome.targets,
             .root_mean_square = std::sqrt(sums[1] / outcome.targets)};
}

void Trainer::Impl::evaluate_model() {
  constexpr double crowded = 0.5;  // a group that holds half of the tokens prunes little (11.7)
  const bool focus = model->has("focus");  // scored twice: as trained, and hard
  int64_t batches = 0;
  for (const ValidationSet& set : validation) batches += std::ssize(set.batches);
  const int64_t total = focus ? 2 * batches : batches;
  const auto told = [&](int64_t before) {
    return [this, before, total](int64_t done) {
      if (callbacks.evaluating) callbacks.evaluating(before + done, total);
    };
  };
  const LayerGather::Scope scope(layers.get());
  state.evaluation = evaluate(*model, validation, told(0), ranks);
  state.evaluated_step = state.step;
  if (!focus) return;
  state.evaluation->hard = evaluate_hard(*model, validation, told(batches), ranks);
  const std::vector<double>& largest = state.evaluation->hard->largest_group;
  const auto worst = std::ranges::max_element(largest);
  if (worst != largest.end() && *worst > crowded) {
    warn(
        fmt::format("step {}: the largest group of the {}. layer with Focus holds {:.0f} % of "
                    "the tokens; groups may be collapsing",
                    state.step, worst - largest.begin() + 1, 100.0 * *worst));
  }
}

void Trainer::Impl::report_progress(const StepOutcome& outcome) {
  if (!callbacks.step) return;
  const StageSchedule& last = stages.back();
  TrainProgress progress{
      .step = state.step,
      .steps = last.steps > 0 ? last.first_step + last.steps : 0,
      .fraction = 0,
      .tokens = state.tokens,
      .seconds = state.seconds,
      .seconds_left = 0,
      .loss = outcome.loss,
      .learning_rate = outcome.learning_rate,
      .gradient_norm = outcome.gradient_norm,
      .tokens_per_second = static_cast<double>(outcome.tokens) / recent_step_seconds,
      .stage = stage().name};
  if (progress.steps > 0) {
    progress.fraction = static_cast<double>(state.step) / static_cast<double>(progress.steps);
    progress.seconds_left = recent_step_seconds *
                            static_cast<double>(std::max<int64_t>(progress.steps - state.step, 0));
  } else {
    progress.fraction = last.fraction(state.step, state.seconds);
    progress.seconds_left = std::max(last.seconds - state.seconds, 0.0);
  }
  callbacks.step(progress);
}

TrainResult Trainer::Impl::result() const {
  TrainResult out{
      .steps = state.step,
      .tokens = state.tokens,
      .seconds = state.seconds,
      .tokens_per_second = static_cast<double>(state.tokens) / std::max(state.seconds, 1e-9),
      .loss = state.loss,
      .evaluation = state.evaluation.value_or(EvaluationResult{}),
      .parameters = model->parameters().count(),
      .peak_memory_bytes = state.peak_memory_bytes,
      .attention_path = state.attention_path,
      .dtype = std::string(enum_name(recipe.train.dtype)),
      .skipped_steps = state.skipped_steps,
      .checkpoint = paths.checkpoint(saved_step)};
  return out;
}

Trainer::Trainer(const Recipe& recipe, TrainCallbacks callbacks,
                 std::shared_ptr<const Corpus> corpus, Communicator& ranks) {
  try {
    impl_ = std::make_unique<Impl>(recipe, std::move(callbacks), std::move(corpus), ranks);
  } catch (...) {
    rethrow_with_memory_advice(recipe);
  }
}

Trainer::~Trainer() = default;

TrainResult Trainer::run() {
  try {
    return impl_->run();
  } catch (...) {
    rethrow_with_memory_advice(impl_->recipe);
  }
}

Transformer& Trainer::model() { return *impl_->model; }
const Corpus& Trainer::corpus() const { return *impl_->corpus; }
const Recipe& Trainer::recipe() const { return impl_->recipe; }
int64_t Trainer::step() const { return impl_->state.step; }

}  // namespace fovea
