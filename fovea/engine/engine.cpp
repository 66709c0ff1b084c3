// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/engine/engine.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>
#include <omp.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"
#include "fovea/engine/look.h"
#include "fovea/engine/scheduler.h"
#include "fovea/runtime/memory_limit.h"

namespace fovea {
namespace {

int64_t bytes_of_numbers(std::span<const std::unique_ptr<TextModel>> models) {
  int64_t bytes = 0;
  std::vector<const void*> counted;
  for (const auto& model : models) {
    for (const Parameter& parameter : model->transformer().parameters().all()) {
      const void* const data = parameter.value.const_data_ptr();
      if (std::ranges::find(counted, data) != counted.end()) continue;
      counted.push_back(data);
      bytes += static_cast<int64_t>(parameter.value.nbytes());
    }
  }
  return bytes;
}

int64_t cache_limit(const EngineOptions& options,
                    std::span<const std::unique_ptr<TextModel>> models) {
  if (options.cache_bytes > 0) return options.cache_bytes;
  const int64_t memory = memory_limit_bytes();
  if (memory == 0) return std::numeric_limits<int64_t>::max() / 4;
  return std::max<int64_t>((memory - bytes_of_numbers(models)) / 2, 0);
}

int64_t prefix_limit(const EngineOptions& options, int64_t cache_bytes) {
  return options.prefix_bytes < 0 ? cache_bytes / 2 : std::min(options.prefix_bytes, cache_bytes);
}

/// Checked one by one, and each with only the numbers that its parent lacks.
std::vector<std::unique_ptr<TextModel>> text_models(std::vector<EngineModel> given,
                                                    const EngineOptions& options) {
  options.check();
  require<ConfigError>(!given.empty(), "engine", "expected at least one model; got none");
  const std::string tokenizer = given.front().loaded.tokenizer->fingerprint();
  std::vector<std::unique_ptr<TextModel>> models;
  for (EngineModel& model : given) {
    const auto named = [](const std::string& name) {
      return [&name](const auto& other) { return other->served().name == name; };
    };
    require<ConfigError>(std::ranges::none_of(models, named(model.name)), "engine",
                         "expected models of different names; got '{}' twice", model.name);
    require<ConfigError>(model.loaded.tokenizer->fingerprint() == tokenizer, "engine",
                         "expected models of one tokenizer; got another one for '{}'; serve it by "
                         "a program of its own",
                         model.name);
    const auto parent = std::ranges::find_if(models, named(model.parent));
    if (parent != models.end()) share_numbers(model.loaded.model, (*parent)->transformer());
    models.push_back(std::make_unique<TextModel>(std::move(model), options));
  }
  return models;
}

}  // namespace

struct Engine::Impl {
  Impl(std::vector<EngineModel> given, const EngineOptions& wanted)
      : options(wanted),
        models(text_models(std::move(given), options)),
        cache_bytes(cache_limit(options, models)),
        scheduler(models, options, cache_bytes, prefix_limit(options, cache_bytes)) {
    for (const auto& model : models) served.push_back(model->served());
    read_template();
    // The caller's threads, which loaded the models, would count beside the engine's: with more
    // threads than cores OpenMP puts them to sleep at every barrier, and a token takes twice as
    // long.
    omp_pause_resource_all(omp_pause_soft);
    thread = std::thread([this] {
      at::init_num_threads();  // as many as the caller was given
      work();
    });
  }

  void read_template();
  TextModel& model_named(const std::string& name);
  std::vector<int32_t> prompt_of(const std::string& text, const std::vector<int32_t>& tokens) const;
  void check(const EngineRequest& request) const;
  void require_fits(EngineJob& job) const;
  std::unique_ptr<EngineJob> job_of(EngineRequest request, EngineEvents events);
  void require_open() const;
  void work();
  void take_incoming();
  void look_on();
  void publish();
  void end_everything();

  const EngineOptions options;
  const std::vector<std::unique_ptr<TextModel>> models;
  const int64_t cache_bytes;
  std::vector<ServedModel> served;
  std::optional<ChatTemplate> chat_template;
  std::string why_no_chat;
  Scheduler scheduler;         // of the thread
  std::unique_ptr<Look> look;  // at work, of the thread

  mutable std::mutex mutex;  // of all below
  std::condition_variable wake, idle;
  std::vector<std::unique_ptr<EngineJob>> incoming;
  std::deque<std::unique_ptr<Look>> looks;
  bool closed = false, stopping = false, busy = false;
  int64_t accepted = 0, refused = 0;
  uint64_t last_id = 0;
  EngineStatistics statistics;
  std::thread thread;
};

void Engine::Impl::read_template() {
  const std::string& text = models.front()->chat_template();
  if (text.empty()) {
    why_no_chat = fmt::format(
        "[chat] expected a model with a chat template (tokenizer_config.json or "
        "chat_template.jinja of a folder, tokenizer.chat_template of a GGUF); '{}' has none; send "
        "text to be continued instead",
        served.front().name);
    return;
  }
  try {
    chat_template.emplace(text);
  } catch (const Error& error) {
    why_no_chat = error.what();
  }
}

TextModel& Engine::Impl::model_named(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& model : models) {
    if (name.empty() || model->served().name == name) return *model;
    names.push_back(model->served().name);
  }
  fail<UnknownModel>("engine", "expected one of the models {}; got '{}'{}", fmt::join(names, ", "),
                     name, did_you_mean(name, names));
}

std::vector<int32_t> Engine::Impl::prompt_of(const std::string& text,
                                             const std::vector<int32_t>& tokens) const {
  const Tokenizer& tokenizer = *models.front()->tokenizer();
  for (const int32_t token : tokens)
    require<InputError>(token >= 0 && token < tokenizer.vocab_size(), "engine",
                        "expected tokens from 0 to {}; got {}", tokenizer.vocab_size() - 1, token);
  std::vector<int32_t> prompt =
      prompt_tokens(tokenizer, {.prompt = text, .options = {}, .tokens = tokens});
  require_tokens(std::ssize(prompt));
  return prompt;
}

void Engine::Impl::check(const EngineRequest& request) const {
  request.generate.check();
  require<ConfigError>(request.choices >= 1 && request.choices <= options.sequences, "engine",
                       "expected 1 to {} texts of a request; got {}", options.sequences,
                       request.choices);
  for (const auto& top : {request.top_logprobs, request.prompt_logprobs})
    require<ConfigError>(top.value_or(0) >= 0 && top.value_or(0) <= EngineRequest::kMostLogprobs,
                         "engine", "expected log-probabilities of 0 to {} alternatives; got {}",
                         EngineRequest::kMostLogprobs, top.value_or(0));
  require<ConfigError>(request.deadline.count() >= 0, "engine",
                       "expected a deadline of no fewer than 0 ms; got {}",
                       request.deadline.count());
}

void Engine::Impl::require_fits(EngineJob& job) const {
  const int64_t prompt = job.prompt_size(), context = job.model->context();
  if (prompt > context)
    throw PromptTooLong(fmt::format("[engine] expected a prompt of at most {} tokens; got {}; "
                                    "shorten it, or serve the model with a larger context",
                                    context, prompt),
                        prompt, context);
  job.bytes = job.model->bytes(prompt, job.most_tokens(), job.request.choices);
  require<MemoryError>(job.bytes <= cache_bytes, "engine",
                       "expected a request whose caches fit into {} bytes; {} tokens of prompt and "
                       "{} texts of {} more need {}; lower max_tokens",
                       cache_bytes, prompt, job.request.choices, job.most_tokens(), job.bytes);
}

std::unique_ptr<EngineJob> Engine::Impl::job_of(EngineRequest request, EngineEvents events) {
  auto job = std::make_unique<EngineJob>();
  job->model = &model_named(request.model);
  check(request);
  job->prompt = prompt_of(request.text, request.tokens);
  job->request = std::move(request);
  job->events = std::move(events);
  job->submitted = EngineClock::now();
  if (job->request.deadline.count() > 0) job->deadline = job->submitted + job->request.deadline;
  require_fits(*job);
  return job;
}

// With the lock.
void Engine::Impl::require_open() const {
  require<EngineClosed>(!closed, "engine",
                        "expected a request before the engine closes; got one after that; send it "
                        "to another server");
}

void Engine::Impl::work() {
  const at::NoGradGuard no_grad;
  for (;;) {
    std::unique_lock lock(mutex);
    wake.wait(lock, [&] {
      return stopping || !incoming.empty() || !looks.empty() || look || !scheduler.idle();
    });
    if (stopping) break;
    busy = true;
    take_incoming();
    lock.unlock();
    scheduler.admit();
    lock.lock();
    statistics.waiting = scheduler.waiting();
    lock.unlock();
    scheduler.read_and_write();
    look_on();
    publish();
  }
  end_everything();
}

// Adds what came since the last step. With the lock.
void Engine::Impl::take_incoming() {
  for (auto& job : incoming) scheduler.add(std::move(job));
  incoming.clear();
  statistics.waiting = scheduler.waiting();
  if (look || looks.empty()) return;
  look = std::move(looks.front());
  looks.pop_front();
}

// Some layers of a look.
void Engine::Impl::look_on() {
  const auto end = EngineClock::now() + std::chrono::milliseconds(options.pause_ms);
  while (look) {
    if (look->next()) look = nullptr;
    if (EngineClock::now() >= end) return;
  }
}

void Engine::Impl::publish() {
  const std::lock_guard lock(mutex);
  statistics = scheduler.statistics();
  busy = !scheduler.idle() || look != nullptr;
  if (!busy && incoming.empty() && looks.empty()) idle.notify_all();
}

void Engine::Impl::end_everything() {
  decltype(looks) unanswered;
  {
    const std::lock_guard lock(mutex);
    for (auto& job : incoming) scheduler.add(std::move(job));
    incoming.clear();
    unanswered.swap(looks);
  }
  const auto closed_error =
      std::make_exception_ptr(EngineClosed("[engine] the engine was stopped before it answered"));
  if (look) unanswered.push_front(std::move(look));
  for (const auto& waiting : unanswered) waiting->refuse(closed_error);
  scheduler.end_all(RequestOutcome::stopped);
  publish();
}

Engine::Engine(std::vector<EngineModel> models, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(std::move(models), options)) {}

Engine::~Engine() { stop(); }

RequestHandle Engine::submit(EngineRequest request, EngineEvents events) {
  std::unique_ptr<EngineJob> job = impl_->job_of(std::move(request), std::move(events));
  RequestHandle handle;
  handle.state_ = std::make_shared<RequestHandle::State>();
  job->cancelled = [state = handle.state_] {
    return state->cancelled.load(std::memory_order_relaxed);
  };
  const std::lock_guard lock(impl_->mutex);
  impl_->require_open();
  if (impl_->statistics.waiting + std::ssize(impl_->incoming) >= impl_->options.queue) {
    ++impl_->refused;
    fail<EngineBusy>("engine",
                     "expected at most {} waiting requests; got one more; send it again later",
                     impl_->options.queue);
  }
  handle.state_->id = ++impl_->last_id;
  impl_->incoming.push_back(std::move(job));
  ++impl_->accepted;
  impl_->wake.notify_one();
  return handle;
}

std::vector<int32_t> Engine::prompt_of(const EngineRequest& request) const {
  return impl_->prompt_of(request.text, request.tokens);
}

void Engine::drain() {
  const std::lock_guard lock(impl_->mutex);
  impl_->closed = true;
}

bool Engine::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(impl_->mutex);
  return impl_->idle.wait_for(lock, timeout, [&] {
    return !impl_->busy && impl_->incoming.empty() && impl_->looks.empty();
  });
}

void Engine::stop() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->closed = impl_->stopping = true;
    impl_->wake.notify_one();
  }
  if (impl_->thread.joinable()) impl_->thread.join();
}

EngineStatistics Engine::statistics() const {
  const std::lock_guard lock(impl_->mutex);
  EngineStatistics now = impl_->statistics;
  now.waiting += std::ssize(impl_->incoming);
  now.accepted = impl_->accepted;
  now.refused = impl_->refused;
  return now;
}

const EngineOptions& Engine::options() const { return impl_->options; }

std::span<const ServedModel> Engine::models() const { return impl_->served; }

const Tokenizer& Engine::tokenizer() const { return *impl_->models.front()->tokenizer(); }

std::vector<int32_t> Engine::encode_chat(std::vector<ChatMessage> messages) const {
  if (!impl_->chat_template) throw UnsupportedError(impl_->why_no_chat);
  return encode_conversation(tokenizer(), *impl_->chat_template, std::move(messages));
}

std::string Engine::why_no_chat() const { return impl_->why_no_chat; }

RequestHandle Engine::attention_rows(AttentionRowsRequest request, AttentionRowsDone done) {
  const TextModel& model = impl_->model_named(request.model);
  std::vector<int32_t> tokens = impl_->prompt_of(request.text, request.tokens);
  check_attention_rows(model, tokens, request);
  const std::lock_guard lock(impl_->mutex);
  impl_->require_open();
  require<EngineBusy>(std::ssize(impl_->looks) < kMostLooks, "engine",
                      "expected at most {} waiting requests for attention; got one more; send it "
                      "again later",
                      kMostLooks);
  RequestHandle handle;
  handle.state_ = std::make_shared<RequestHandle::State>();
  handle.state_->id = ++impl_->last_id;
  impl_->looks.push_back(std::make_unique<Look>(
      model, std::move(tokens), std::move(request), std::move(done),
      [state = handle.state_] { return state->cancelled.load(std::memory_order_relaxed); }));
  impl_->wake.notify_one();
  return handle;
}

}  // namespace fovea
