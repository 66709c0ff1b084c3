// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/engine/scheduler.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "fovea/base/error.h"
#include "fovea/base/rng.h"
#include "fovea/engine/logprobs.h"
#include "fovea/runtime/memory_shortage.h"

namespace fovea {
namespace {

double seconds_since(EngineClock::time_point start) {
  return std::chrono::duration<double>(EngineClock::now() - start).count();
}

/// Inside a catch block: how a request ends by the exception.
RequestEnd failure() {
  RequestEnd end{.outcome = RequestOutcome::failed};
  if (const auto shortage = memory_shortage()) {
    end.error = fmt::format("[engine] not enough memory: {}", *shortage);
    end.no_memory = true;
    return end;
  }
  try {
    throw;
  } catch (const std::exception& error) {
    end.error = error.what();
  } catch (...) {
    end.error = "[engine] unknown error";
  }
  return end;
}

/// Ids [1, t] of the job's part.
at::Tensor tokens_of(const EngineJob& job) {
  const int64_t count = job.part->count;
  const at::Tensor ids = at::empty({1, count}, at::kLong);
  std::copy_n(job.prompt.begin() + job.length, count, ids.mutable_data_ptr<int64_t>());
  return ids.to(job.model->transformer().device());
}

/// Texts of one request draw from seeds of their own; the first has that of the request.
GenerateOptions of_choice(GenerateOptions options, int64_t choice) {
  if (choice > 0)
    options.seed = static_cast<int64_t>(
        mix_seed(static_cast<uint64_t>(options.seed), static_cast<uint64_t>(choice)) >> 1);
  return options;
}

}  // namespace

Scheduler::Scheduler(std::span<const std::unique_ptr<TextModel>> models,
                     const EngineOptions& options, int64_t cache_bytes, int64_t prefix_bytes,
                     Clock clock)
    : models_(models),
      options_(options),
      cache_limit_(cache_bytes),
      prefix_limit_(prefix_bytes),
      clock_(std::move(clock)) {}

void Scheduler::run_once() {
  admit();
  read_and_write();
}

void Scheduler::read_and_write() {
  read_prompts();
  forget_ended();
  step();
  forget_ended();
}

void Scheduler::end_late() {
  const auto now = EngineClock::now();
  const auto check = [&](EngineJob& job) {
    if (job.ended) return;
    if (job.cancelled()) return end(job, {.outcome = RequestOutcome::cancelled});
    if (job.deadline && now >= *job.deadline) end(job, {.outcome = RequestOutcome::deadline});
  };
  for (const auto& job : jobs_) check(*job);
  for (const auto& job : waiting_) check(*job);
  std::erase_if(waiting_, [](const auto& job) { return job->ended; });
  forget_ended();
}

bool Scheduler::has_room_for(const EngineJob& job) {
  if (sequences_ + job.request.choices > options_.sequences) return false;
  if (reserved_ + job.bytes > cache_limit_) return false;
  reserved_ += job.bytes;
  sequences_ += job.request.choices;
  trim_prefixes();
  return true;
}

// In the order of arrival: a large request is not overtaken for ever.
void Scheduler::admit() {
  end_late();
  while (!waiting_.empty() && has_room_for(*waiting_.front())) {
    jobs_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    EngineJob& job = *jobs_.back();
    statistics_.queue.add(seconds_since(job.submitted));
    if (job.model->prefixes() != nullptr && !job.request.prompt_logprobs)
      ++statistics_.prefix_queries;
  }
  statistics_.most_sequences = std::max(statistics_.most_sequences, sequences_);
}

// ---- Prompts

void Scheduler::read_prompts() {
  round_began_ = clock_();
  for (int64_t budget = options_.chunk; budget > 0;) {
    for (const auto& job : jobs_)
      if (job->reading() && job->part == nullptr) adopt_prefix(*job);
    if (read_together()) return;
    EngineJob* const job = next_reader();
    if (job == nullptr || next_part(*job) > budget) return;
    budget -= next_part(*job);
    const auto begin = EngineClock::now();
    bool read = true;
    try {
      read = read_part(*job);
    } catch (...) {
      end(*job, failure());
    }
    statistics_.chunk_seconds += seconds_since(begin);
    if (!read) return;
    ++parts_;
    ++statistics_.chunks;
    if (texts_want_a_step()) return;
  }
}

bool Scheduler::texts_want_a_step() const {
  const auto writes = [](const auto& job) { return !job->ended && !job->texts.empty(); };
  if (std::ranges::none_of(jobs_, writes)) return false;
  const EngineClock::duration pause = std::chrono::milliseconds(options_.pause_ms);
  return clock_() - round_began_ >= std::max(pause, last_step_);
}

bool Scheduler::read_together() {
  if (parts_ % 3 == 2) return false;  // the oldest prompt's turn
  bool read = false;
  for (const auto& model : models_) read |= read_together(*model);
  return read;
}

bool Scheduler::read_together(TextModel& model) {
  std::vector<int64_t> lengths;
  lengths.reserve(jobs_.size());
  for (const auto& job : jobs_) {
    const bool begins = job->model == &model && job->reading() && job->part == nullptr &&
                        job->length == 0 && !job->request.prompt_logprobs;
    lengths.push_back(begins && job->prompt_size() <= options_.chunk ? job->prompt_size() : 0);
  }
  std::vector<EngineJob*> group;
  for (const size_t n : read_at_once(model.transformer(), lengths)) group.push_back(jobs_[n].get());
  if (group.empty()) return false;
  const auto begin = EngineClock::now();
  std::vector<DecodeState> states;
  at::Tensor logits_nv;
  try {
    std::vector<std::span<const int32_t>> prompts;
    for (EngineJob* job : group) {
      prompts.emplace_back(job->prompt);
      states.push_back(begin_state(*job, job->prompt_size()));
    }
    std::vector<DecodeState*> all(states.size());
    std::ranges::transform(states, all.begin(), [](DecodeState& state) { return &state; });
    logits_nv = model.transformer().read_together(prompts, all);
  } catch (...) {
    const RequestEnd how = failure();
    for (EngineJob* job : group) end(*job, how);
    return true;
  }
  for (size_t n = 0; n < group.size(); ++n) {
    EngineJob& job = *group[n];
    try {
      take_part(job, std::move(states[n]), job.prompt_size(), logits_nv[static_cast<int64_t>(n)]);
    } catch (...) {
      end(job, failure());
    }
  }
  statistics_.chunk_seconds += seconds_since(begin);
  ++parts_;
  statistics_.chunks += static_cast<int64_t>(group.size());
  return true;
}

EngineJob* Scheduler::next_reader() {
  EngineJob* next = nullptr;
  const auto remaining = [](const EngineJob& job) { return job.prompt_size() - job.length; };
  for (const auto& job : jobs_)
    if (job->reading() && job->part != nullptr) return job.get();
  for (const auto& job : jobs_) {
    if (!job->reading()) continue;
    if (next == nullptr || remaining(*job) < remaining(*next)) next = job.get();
    if (parts_ % 3 == 2) return next;
  }
  return next;
}

int64_t Scheduler::next_part(const EngineJob& job) const {
  return std::min(options_.chunk, job.prompt_size() - job.length);
}

// Chunks that are cached, but for the last token of the prompt: its logits are needed.
void Scheduler::adopt_prefix(EngineJob& job) {
  PrefixCache* const prefixes = job.model->prefixes();
  if (prefixes == nullptr || job.request.prompt_logprobs) return;
  ++now_;
  while (job.length + options_.chunk < job.prompt_size()) {
    SharedState state = prefixes->find(job.prompt, job.length / options_.chunk + 1, now_);
    if (state == nullptr) return;
    if (job.cached == 0) ++statistics_.prefix_hits;
    job.read = std::move(state);
    job.length += options_.chunk;
    job.cached += options_.chunk;
  }
}

bool Scheduler::read_part(EngineJob& job) {
  if (job.part == nullptr) begin_part(job);
  std::optional<LayerWalk>& walk = job.part->walk;
  while (walk && !walk->done()) {
    walk->next();
    if (!walk->done() && texts_want_a_step()) return false;
  }
  end_part(job);
  return true;
}

DecodeState Scheduler::begin_state(const EngineJob& job, int64_t count) const {
  const int64_t length = job.length + count;
  const int64_t capacity =
      count == options_.chunk ? length : length + job.model->growth(job.most_tokens());
  if (job.read != nullptr) return with_room(*job.read, capacity);
  return job.model->begin(job.prompt_size() + job.most_tokens(), capacity);
}

void Scheduler::begin_part(EngineJob& job) {
  const int64_t count = next_part(job);
  job.part = std::make_unique<PartAtWork>();
  PartAtWork& part = *job.part;
  part.state = begin_state(job, count);
  part.count = count;
  if (count == 1) return;  // a step of the decoder
  part.walk.emplace(job.model->transformer().decode_layers(tokens_of(job), part.state));
}

void Scheduler::end_part(EngineJob& job) {
  const at::Tensor logits = logits_of(job);
  const std::unique_ptr<PartAtWork> part = std::move(job.part);
  take_part(job, std::move(part->state), part->count, logits);
}

void Scheduler::take_part(EngineJob& job, DecodeState state, int64_t count,
                          const at::Tensor& logits) {
  job.length += count;
  if (count < options_.chunk) {  // the last one
    job.read = nullptr;
    return begin_texts(job, std::move(state), logits);
  }
  job.read = std::make_shared<const DecodeState>(std::move(state));
  keep_prefix(job);
  if (job.length < job.prompt_size()) return;
  const std::shared_ptr<const DecodeState> read = std::exchange(job.read, nullptr);
  begin_texts(job, with_room(*read, job.length + job.model->growth(job.most_tokens())), logits);
}

// Logits [v] after the last token of the part; those of the prompt's tokens are told where they
// are wanted. A text does not depend on whether they are.
at::Tensor Scheduler::logits_of(EngineJob& job) {
  const Transformer& model = job.model->transformer();
  PartAtWork& part = *job.part;
  const at::Tensor last = part.walk ? model.logits(part.walk->hidden().select(1, part.count - 1))[0]
                                    : model.decode(tokens_of(job), part.state)[0];
  if (!job.request.prompt_logprobs) return last;
  const int64_t top = *job.request.prompt_logprobs, vocabulary = job.model->served().vocabulary;
  auto& places = job.prompt_logprobs;
  if (places.empty()) places.emplace_back();
  const auto following =
      std::span(job.prompt)
          .subspan(static_cast<size_t>(job.length + 1),
                   static_cast<size_t>(std::min(part.count, job.prompt_size() - job.length - 1)));
  if (!part.walk) {
    if (!following.empty())
      places.push_back(place_logprobs(last, vocabulary, following.front(), top));
    return last;
  }
  for (auto& place : following_logprobs(model, part.walk->hidden()[0], following, vocabulary, top))
    places.push_back(std::move(place));
  return last;
}

void Scheduler::keep_prefix(EngineJob& job) {
  PrefixCache* const prefixes = job.model->prefixes();
  if (prefixes == nullptr) return;
  prefixes->insert(job.prompt, job.length / options_.chunk, job.read, ++now_);
  trim_prefixes();
}

int64_t Scheduler::prefix_bytes() const {
  int64_t bytes = 0;
  for (const auto& model : models_)
    if (model->prefixes() != nullptr) bytes += model->prefixes()->bytes();
  return bytes;
}

void Scheduler::trim_prefixes() {
  const int64_t limit = std::min(prefix_limit_, cache_limit_ - reserved_);
  while (prefix_bytes() > limit) {
    PrefixCache* oldest = nullptr;
    for (const auto& model : models_) {
      PrefixCache* const prefixes = model->prefixes();
      if (prefixes == nullptr || prefixes->empty()) continue;
      if (oldest == nullptr || prefixes->oldest() < oldest->oldest()) oldest = prefixes;
    }
    oldest->evict();
    ++statistics_.prefix_evicted;
  }
}

void Scheduler::begin_texts(EngineJob& job, DecodeState state, const at::Tensor& logits) {
  statistics_.prompt_tokens += job.prompt_size();
  statistics_.cached_tokens += job.cached;
  emit(job, PromptRead{.tokens = job.prompt_size(),
                       .cached = job.cached,
                       .logprobs = std::move(job.prompt_logprobs)});
  const int64_t choices = job.request.choices;
  std::vector<DecodeState> states;
  for (int64_t other = 1; other < choices; ++other)
    states.push_back(with_room(state, state.capacity()));
  states.push_back(std::move(state));
  const Tokenizer& tokenizer = *job.model->tokenizer();
  std::vector<Writing> writing;
  for (int64_t choice = 0; choice < choices; ++choice) {
    job.texts.push_back(std::make_unique<WrittenText>(WrittenText{
        .choice = choice,
        .state = std::move(states[static_cast<size_t>(choice)]),
        .tokens = {},
        .writer = TextWriter(tokenizer, of_choice(job.request.generate, choice), job.prompt),
        .last_token = job.submitted}));
    if (job.request.ignore_end) job.texts.back()->writer.ignore_end();
    writing.push_back({&job, job.texts.back().get()});
  }
  if (job.request.generate.max_tokens > 0)
    return take(writing, logits.unsqueeze(0).expand({choices, logits.size(0)}));
  for (const Writing& text : writing) end_text(text);
}

// ---- Steps

void Scheduler::step() {
  last_step_ = {};
  for (const auto& model : models_) step(*model);
}

// One token of every text of this model.
void Scheduler::step(TextModel& model) {
  std::vector<Writing> texts;
  for (const auto& job : jobs_) {
    if (job->model != &model || job->ended) continue;
    for (const auto& text : job->texts)
      if (!text->ended) texts.push_back({job.get(), text.get()});
  }
  if (texts.empty()) return;
  const auto begin = EngineClock::now(), began = clock_();
  try {
    std::vector<DecodeState*> states;
    std::vector<int64_t> last;
    for (const auto& [job, text] : texts) {
      const int64_t length = text->state.length();
      if (length == text->state.capacity())
        text->state =
            with_room(std::move(text->state),
                      length + model.growth(job->prompt_size() + job->most_tokens() - length));
      states.push_back(&text->state);
      last.push_back(text->tokens.back());
    }
    take(texts, model.step(last, states));
  } catch (...) {
    fail_all(texts);
  }
  last_step_ += clock_() - began;
  ++statistics_.steps;
  statistics_.step_seconds += seconds_since(begin);
}

// Draws the next token of each text from its logits; texts are drawn side by side.
void Scheduler::take(std::span<const Writing> texts, const at::Tensor& logits_nv) {
  const auto count = static_cast<int64_t>(texts.size());
  std::vector<std::optional<RequestEnd>> errors(texts.size());
  std::vector<std::optional<PlaceLogprobs>> logprobs(texts.size());
  std::vector<TextWriter*> writers;
  for (const Writing& text : texts) writers.push_back(&text.text->writer);
  const std::vector<DrawnToken> drawn = draw_tokens(writers, logits_nv);
  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const auto& [job, text] = texts[static_cast<size_t>(n)];
      try {
        text->writer.take(drawn[static_cast<size_t>(n)], text->tokens);
        if (job->request.top_logprobs)
          logprobs[static_cast<size_t>(n)] =
              place_logprobs(logits_nv[n], job->model->served().vocabulary, text->writer.last(),
                             *job->request.top_logprobs);
      } catch (...) {
        errors[static_cast<size_t>(n)] = failure();
      }
    }
  });
  for (size_t n = 0; n < texts.size(); ++n) {
    if (texts[n].job->ended) continue;
    if (errors[n]) {
      end(*texts[n].job, *errors[n]);
    } else {
      told(texts[n], std::move(logprobs[n]));
    }
  }
}

// Tells of the token that a text has drawn, and of its end.
void Scheduler::told(const Writing& writing, std::optional<PlaceLogprobs> logprobs) {
  const auto& [job, text] = writing;
  const bool first = text->writer.result().tokens == 1;
  (first ? statistics_.first_token : statistics_.between_tokens)
      .add(seconds_since(first ? job->submitted : text->last_token));
  text->last_token = EngineClock::now();
  ++job->tokens;
  ++statistics_.tokens;
  emit(*job, TokenWritten{.choice = text->choice,
                          .token = text->writer.last(),
                          .text = text->take_piece(),
                          .logprobs = std::move(logprobs)});
  if (!text->writer.ended() &&
      job->prompt_size() + std::ssize(text->tokens) > job->model->context())
    text->writer.end(FinishReason::context);
  if (!text->writer.wants_more()) end_text(writing);
}

void Scheduler::end_text(const Writing& writing) {
  const auto& [job, text] = writing;
  const GenerateResult result = text->writer.finish(text->state.path);
  text->ended = true;
  text->state = DecodeState();
  ++statistics_.finished[result.reason];
  emit(*job, ChoiceEnded{.choice = text->choice,
                         .text = result.text.substr(text->shown),
                         .reason = result.reason,
                         .stop = result.stop,
                         .tokens = result.tokens});
  const auto all_ended = [](const auto& t) { return t->ended; };
  if (std::ssize(job->texts) == job->request.choices && std::ranges::all_of(job->texts, all_ended))
    end(*job, {.outcome = RequestOutcome::done});
}

// ---- Ends

void Scheduler::emit(EngineJob& job, const EngineEvent& event) {
  try {
    job.events(event);
  } catch (...) {
    job.cancelled = [] { return true; };
  }
}

void Scheduler::end(EngineJob& job, const RequestEnd& how) {
  job.ended = true;
  ++statistics_.ended[how.outcome];
  statistics_.whole.add(seconds_since(job.submitted));
  emit(job, RequestEnded{.outcome = how.outcome,
                         .error = how.error,
                         .no_memory = how.no_memory,
                         .prompt_tokens = job.prompt_size(),
                         .cached_tokens = job.cached,
                         .tokens = job.tokens});
}

void Scheduler::fail_all(std::span<const Writing> texts) {
  const RequestEnd how = failure();
  for (const Writing& writing : texts)
    if (!writing.job->ended) end(*writing.job, how);
}

void Scheduler::forget_ended() {
  std::erase_if(jobs_, [&](const auto& job) {
    if (!job->ended) return false;
    reserved_ -= job->bytes;
    sequences_ -= job->request.choices;
    return true;
  });
}

void Scheduler::end_all(RequestOutcome outcome) {
  for (const auto& job : jobs_)
    if (!job->ended) end(*job, {.outcome = outcome});
  for (const auto& job : waiting_) end(*job, {.outcome = outcome});
  waiting_.clear();
  forget_ended();
}

const EngineStatistics& Scheduler::statistics() {
  statistics_.waiting = std::ssize(waiting_);
  statistics_.running = std::ssize(jobs_);
  statistics_.sequences = sequences_;
  statistics_.prefix_bytes = prefix_bytes();
  statistics_.cache_bytes = reserved_ + statistics_.prefix_bytes;
  statistics_.cache_limit = cache_limit_;
  return statistics_;
}

}  // namespace fovea
