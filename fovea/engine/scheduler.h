// The order of work of the engine: who is admitted, whose prompt is read next, and the steps that
// texts share. Private to fovea/engine; one thread uses it.
//
// Between two steps prompts are read for one chunk, but not for longer than EngineOptions::pause_ms
// while texts are written: a chunk then goes on after the next step. Two of three chunks go to the
// prompt of which least is left, the third to the oldest. So a short request waits for two chunks
// of others at most, and a long one is never forgotten.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fovea/engine/job.h"
#include "fovea/engine/statistics.h"

namespace fovea {

/// How a request ends (RequestEnded).
struct RequestEnd {
  RequestOutcome outcome = RequestOutcome::done;
  std::string error = {};
  bool no_memory = false;
};

class Scheduler {
 public:
  /// Tells the time by which prompts leave room for steps.
  using Clock = std::function<EngineClock::time_point()>;

  /// The models must outlive this. `cache_bytes`, `prefix_bytes`: limits.
  Scheduler(std::span<const std::unique_ptr<TextModel>> models, const EngineOptions& options,
            int64_t cache_bytes, int64_t prefix_bytes, Clock clock = EngineClock::now);

  void add(std::unique_ptr<EngineJob> job) { waiting_.push_back(std::move(job)); }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  bool idle() const { return waiting_.empty() && jobs_.empty(); }
  /// One round: admit(), then read_and_write().
  void run_once();
  /// Ends requests that were cancelled or are late, and admits others.
  void admit();
  /// Reads a chunk, and does one step.
  void read_and_write();
  void end_all(RequestOutcome outcome);
  /// Without `accepted` and `refused`.
  const EngineStatistics& statistics();

 private:
  void end_late();
  bool has_room_for(const EngineJob& job);

  void read_prompts();
  /// Reads prompts of a model in one pass where that is faster; whether it did.
  bool read_together();
  bool read_together(TextModel& model);
  EngineJob* next_reader();
  void adopt_prefix(EngineJob& job);
  int64_t next_part(const EngineJob& job) const;
  /// Goes on with the job's part; whether all of it is read.
  bool read_part(EngineJob& job);
  /// The cache for the next `count` tokens of the prompt, with those before.
  DecodeState begin_state(const EngineJob& job, int64_t count) const;
  void begin_part(EngineJob& job);
  void end_part(EngineJob& job);
  /// The next `count` tokens of the prompt are in `state`; logits [v] after them.
  void take_part(EngineJob& job, DecodeState state, int64_t count, const at::Tensor& logits);
  /// Whether texts have waited long enough since the round began.
  bool texts_want_a_step() const;
  at::Tensor logits_of(EngineJob& job);
  void keep_prefix(EngineJob& job);
  void begin_texts(EngineJob& job, DecodeState state, const at::Tensor& logits_v);

  void step();
  void step(TextModel& model);
  struct Writing {
    EngineJob* job = nullptr;
    WrittenText* text = nullptr;
  };
  void take(std::span<const Writing> texts, const at::Tensor& logits_nv);
  void told(const Writing& writing, std::optional<PlaceLogprobs> logprobs);
  void end_text(const Writing& writing);

  void emit(EngineJob& job, const EngineEvent& event);
  void end(EngineJob& job, const RequestEnd& how);
  /// Ends jobs of the list whose work threw, with the exception that is being handled.
  void fail_all(std::span<const Writing> texts);
  void forget_ended();
  void trim_prefixes();
  int64_t prefix_bytes() const;

  std::span<const std::unique_ptr<TextModel>> models_;
  const EngineOptions options_;
  const int64_t cache_limit_, prefix_limit_;
  std::deque<std::unique_ptr<EngineJob>> waiting_;
  std::vector<std::unique_ptr<EngineJob>> jobs_;  // in the order of admission
  int64_t sequences_ = 0, reserved_ = 0;          // of jobs_
  uint64_t now_ = 0;                              // of prefixes
  uint64_t parts_ = 0;                            // read so far
  Clock clock_;
  EngineClock::time_point round_began_;
  EngineClock::duration last_step_{0};
  EngineStatistics statistics_;
};

}  // namespace fovea
