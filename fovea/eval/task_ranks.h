// Ranks of a launcher that compute the questions of tasks, one thread each.
//
// Rank 0 reads the tasks and sends parts in rounds, one a rank, its own among them; the others
// answer. Answers depend on the part and the model alone, so scores and logs are those of one
// process of one thread, to the bit.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <string>

#include "fovea/eval/task_workers.h"
#include "fovea/runtime/communicator.h"

namespace fovea {

/// Rank 0's side. `own` computes its parts; both must outlive it.
class TaskRanks final : public TaskWorkers {
 public:
  TaskRanks(Communicator& ranks, TaskPartAnswerer& own) : ranks_(ranks), own_(own) {}
  /// Ends answer_on_rank() of the others.
  ~TaskRanks() override;
  TaskRanks(const TaskRanks&) = delete;
  TaskRanks& operator=(const TaskRanks&) = delete;

  void ask(std::string name, const nlohmann::ordered_json& part, Answered answered) override;
  bool wants_more() const override { return std::ssize(waiting_) < ranks_.size(); }
  /// One round.
  void step() override;
  bool busy() const override { return !waiting_.empty(); }

 private:
  struct Part {
    std::string name, text;
    Answered answered;
  };

  Communicator& ranks_;
  TaskPartAnswerer& own_;
  std::deque<Part> waiting_;
};

/// The side of the other ranks: answers until rank 0 ends.
void answer_on_rank(Communicator& ranks, TaskPartAnswerer& answerer);

}  // namespace fovea
