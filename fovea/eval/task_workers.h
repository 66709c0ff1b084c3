// Worker processes that compute the questions of tasks, one thread each.
//
// This process reads the tasks, keeps their logs and scores the answers. It sends parts: batches of
// log-likelihoods, prompts to be continued, and texts to be scored. The answer to a part depends on
// the part and the model, so scores and logs are those of one process of one thread, to the bit.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/eval/likelihood_scorer.h"
#include "fovea/eval/scoring.h"
#include "fovea/infer/generate.h"
#include "fovea/nn/transformer.h"
#include "fovea/runtime/worker_pool.h"
#include "fovea/text/tokenizer.h"

namespace fovea {

struct TaskWorkerOptions {
  std::vector<std::string> command;  ///< of a worker, which has a TaskPartAnswerer
  int64_t workers = 2;
  const std::atomic<bool>* stop = nullptr;
  std::function<void(std::string_view text)> warning;
};

/// Who computes parts. They stay from one task to the next.
class TaskWorkers {
 public:
  virtual ~TaskWorkers() = default;
  /// Receives the answer to a part; it may throw.
  using Answered = std::function<void(const nlohmann::ordered_json& answer)>;

  /// Puts a part behind the others; `name` stands in messages: "arc_easy, part 3".
  virtual void ask(std::string name, const nlohmann::ordered_json& part, Answered answered) = 0;
  /// Whether a worker may soon be without a part.
  virtual bool wants_more() const = 0;
  /// Hands on the answers that have come; throws the error of a worker.
  virtual void step() = 0;
  /// Whether a part is not answered yet.
  virtual bool busy() const = 0;
};

/// Processes of this machine, which it starts.
class TaskProcesses final : public TaskWorkers {
 public:
  explicit TaskProcesses(const TaskWorkerOptions& options);

  void ask(std::string name, const nlohmann::ordered_json& part, Answered answered) override;
  bool wants_more() const override;
  void step() override { pool_.step(); }
  bool busy() const override { return pool_.busy(); }

 private:
  int64_t workers_;
  std::map<size_t, Answered> answered_;  // by job
  WorkerPool pool_;
};

/// Parts, for TaskWorkers::ask(). LikelihoodScorer's part, then its options.
nlohmann::ordered_json likelihood_part(const LikelihoodPart& part, int64_t tokens_a_pass,
                                       bool shared);
std::vector<EndingScore> scores_of(const nlohmann::ordered_json& answer);

nlohmann::ordered_json text_part(std::span<const TextRequest> requests, int64_t context);
/// The texts, in the order of the requests.
std::vector<std::string> texts_of(const nlohmann::ordered_json& answer);

nlohmann::ordered_json rolling_part(const std::string& text, int64_t window);
ScoreTotals totals_of(const nlohmann::ordered_json& answer);

/// The worker's side: computes parts of any task with one model, to which it holds a reference.
class TaskPartAnswerer {
 public:
  /// `workers`: how many share this machine's memory.
  TaskPartAnswerer(const Transformer& model, const Tokenizer& tokenizer, int64_t workers);
  ~TaskPartAnswerer();
  TaskPartAnswerer(const TaskPartAnswerer&) = delete;
  TaskPartAnswerer& operator=(const TaskPartAnswerer&) = delete;

  /// The line that answers a line of the worker's stdin. Throws as run_task().
  std::string answer(std::string_view line);

 private:
  nlohmann::ordered_json answer_texts(const nlohmann::ordered_json& part) const;

  const Transformer& model_;
  const Tokenizer& tokenizer_;
  const int64_t workers_;
  std::unique_ptr<LikelihoodScorer> scorer_;  // keeps what the next part may begin with
};

}  // namespace fovea
