// Retrofit: another attention on a pretrained model with a frozen base, and a table of its quality
// and speed (spec 11.7).
//
// A retrofit is one to four runs of the trainer, its phases:
//   groups   with Focus: W_g and centroids by one of three losses (U-25)
//              lm            the language model's: soft groups, in the second half hard ones with
//                            the gradient of the soft ones (straight-through, U-8)
//              kept_mass     the share of full attention that the groups keep: no backward pass
//                            through the model
//              distillation  the KL divergence from the full model, the groups hard (U-8)
//   distill  if asked for: the same groups further by distillation
//   adapt    with anything else: those parameters by the language-model loss; the groups of Focus
//            are frozen and act as they will be used, hard
//   finetune if asked for: all weights, at a small rate
// OUT/phases/<name> are run folders, so the same call again resumes, bit for bit. At the end
// OUT/adapter holds everything that was added, OUT/retrofit.json the table, OUT/report.html its
// pictures. With Differential the phases begin from OUT/start (differential_start.h); there, and
// after `finetune`, the result is a whole model, OUT/model, in place of an adapter.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "fovea/eval/decode_speed.h"
#include "fovea/eval/retention.h"
#include "fovea/retrofit/kinds.h"
#include "fovea/train/trainer.h"

namespace fovea {

struct RetrofitOptions {
  std::string model;                  ///< run folder, checkpoint, model folder or .gguf file
  std::vector<std::string> with;      ///< names of kinds
  std::vector<std::string> texts;     ///< sources to train on: files, folders, JSONL
  std::vector<std::string> held_out;  ///< texts of the table; none = the validation part of `texts`
  std::filesystem::path out;
  double minutes = 10.0;             ///< of training, shared among the phases
  int64_t steps = 0;                 ///< > 0: so many steps of each phase instead
  std::string objective = "lm";      ///< with Focus: of the groups; lm, kept_mass, distillation
  bool distill = false;              ///< with Focus: a phase of distillation after the groups
  bool finetune = false;             ///< a last phase in which all weights learn
  double finetune_rate = 5e-5;       ///< its learning rate
  int64_t length = 1024;             ///< tokens of a row, at most the base's context
  int64_t evaluation_tokens = 8192;  ///< of the table; 0 = all
  int64_t copy = 256;                ///< tokens of the copy score; 0 = none
  int64_t most_top_k = 3;            ///< of the table
  bool speed = true;                 ///< with Focus: also how fast it reads and writes
  int64_t seed = 0;
  std::vector<std::string> overrides;  ///< recipe keys, "model.attention.focus.groups=4"
};

struct RetrofitPhase {
  std::string name;
  std::string help;  ///< one line: what learns, by which loss
  Recipe recipe;     ///< init_from of the second phase is the first one's run folder
};

/// The folder or file that the first phase begins from: the base, or OUT/start.
std::string retrofit_beginning(const RetrofitOptions& options, const ModelConfig& config);
/// Whether the result is OUT/model, and no adapter.
bool retrofit_makes_model(const RetrofitOptions& options, const ModelConfig& config);

/// The phases of a retrofit of a base of `config`. ConfigError for names, sizes and keys that
/// cannot be, and a budget below one minute or one step a phase.
std::vector<RetrofitPhase> plan_retrofit(const RetrofitOptions& options, const ModelConfig& config);

/// Reading and writing by one way to attend, behind one length of context.
struct RetrofitSpeed {
  std::string name;  ///< "full attention", "top-1"
  DecodeSpeed speed;
};

/// A model on the held-out text.
struct RetrofitScore {
  std::string name;  ///< "base", "with multi_token, lora"
  double perplexity = 0.0;
  double copy = 0.0;  ///< perplexity of the second copy; 0 = not measured
};

/// The start of Differential, layer by layer (differential_start.h).
struct RetrofitStart {
  std::filesystem::path model;
  std::vector<double> lambda, error;
  RetrofitScore score;
};

struct RetrofitResult {
  std::vector<std::string> kinds;
  int64_t base_parameters = 0, added_parameters = 0;
  std::vector<TrainResult> phases;
  std::filesystem::path adapter;             ///< "" where the result is a model
  std::filesystem::path model;               ///< "" where it is an adapter
  std::optional<RetrofitStart> start;        ///< with Differential
  RetrofitScore before, after;               ///< after: with Focus, the soft gate
  std::optional<RetentionResult> retention;  ///< with Focus: hard, beside windows and random groups
  std::vector<RetrofitSpeed> speeds;  ///< with Focus: at T, 2T, 4T tokens, as far as text goes

  nlohmann::ordered_json to_json() const;
};

/// `table(label, done, total)`: progress of the table, in documents.
struct RetrofitCallbacks {
  TrainCallbacks train;
  std::function<void(const RetrofitPhase&)> phase;
  std::function<void(std::string_view, int64_t, int64_t)> table;
};

/// Runs what is not done yet, writes OUT/adapter and OUT/systems.yaml, or OUT/model, and
/// OUT/retrofit.json and OUT/report.html. Interrupted after a signal: everything is saved. The
/// errors of Trainer.
///
/// Several ranks train every phase together. Rank 0 makes what precedes and follows them, writes,
/// and has the whole result; the others return once the phases are done, with these alone.
/// ConfigError where a step has fewer rows than ranks.
RetrofitResult run_retrofit(const RetrofitOptions& options, const RetrofitCallbacks& callbacks,
                            Communicator& ranks = alone());

}  // namespace fovea
