// Many texts written together: each step of the fused decoder reads the weights once for all of
// them. A text keeps a state of its own, so that it is the same alone and among others.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <optional>

#include "fovea/base/error.h"
#include "fovea/infer/text_writer.h"
#include "fovea/runtime/memory_limit.h"

namespace fovea {
namespace {

/// A text at work.
struct Text {
  size_t index = 0;
  int64_t context = 0, cache_bytes = 0;
  std::vector<int32_t> tokens;
  std::unique_ptr<TextWriter> writer;
  DecodeState state;

  /// Whether its prompt is not read yet. Every later token is read by the step that it starts.
  bool reading() const { return writer->result().tokens == 0; }
  /// Takes the next token, or draws it from logits [v] before. Whether another one is wanted.
  template <class Drawn>
  bool take(const Drawn& next) {
    writer->take(next, tokens);
    if (!writer->ended() && std::ssize(tokens) > context) writer->end(FinishReason::context);
    return writer->wants_more();
  }
};

int64_t cache_bound(const BatchOptions& batch) {
  if (batch.cache_bytes > 0) return batch.cache_bytes;
  const int64_t limit = memory_limit_bytes();
  return limit > 0 ? limit / 2 : std::numeric_limits<int64_t>::max();
}

class Batch {
 public:
  Batch(const Transformer& model, const Tokenizer& tokenizer, std::span<const TextRequest> requests,
        const ContextOptions& context, const TextDone& done, const std::atomic<bool>* interrupt,
        const BatchOptions& batch)
      : model_(model),
        tokenizer_(tokenizer),
        requests_(requests),
        context_(context),
        done_(done),
        interrupt_(interrupt),
        batch_(batch),
        most_bytes_(cache_bound(batch)),
        results_(requests.size()) {}

  void run() {
    while (next_ < requests_.size() || waiting_ || !texts_.empty()) {
      if (is_set(interrupt_)) return interrupt_all();
      admit();
      read_prompts();
      step();
      if (batch_.progress) batch_.progress(progress_now());
    }
  }

 private:
  // Fills the batch in the order of the requests.
  void admit() {
    while (std::ssize(texts_) < batch_.batch) {
      if (!waiting_ && next_ < requests_.size()) waiting_ = prepare(next_++);
      if (!waiting_) return;
      if (!texts_.empty() && cache_bytes() + waiting_->cache_bytes > most_bytes_) return;
      Text text = std::move(*waiting_);
      waiting_.reset();
      text.state = model_.make_decode_state(1, text.context);
      most_seen_ = std::max(most_seen_, cache_bytes() + text.cache_bytes);
      if (text.writer->wants_more()) {
        texts_.push_back(std::move(text));
      } else {
        finish(text);
      }
    }
  }

  Text prepare(size_t index) const {
    const TextRequest& request = requests_[index];
    Text text{.index = index, .tokens = prompt_tokens(tokenizer_, request)};
    const int64_t prompt = std::ssize(text.tokens);
    text.context = needed_context(model_, prompt, request.options.max_tokens, context_);
    require_tokens(prompt);
    require_fits(model_, prompt, text.context);
    text.cache_bytes = model_.decode_state_bytes(1, text.context);
    text.writer = std::make_unique<TextWriter>(tokenizer_, request.options, text.tokens);
    text.writer->result().prompt_tokens = std::ssize(text.tokens);
    return text;
  }

  // Whether one pass has read several prompts.
  bool read_together() {
    std::vector<Text*> group;
    std::vector<int64_t> lengths;
    for (const Text& text : texts_)
      lengths.push_back(text.reading() && text.state.length() == 0 ? std::ssize(text.tokens) : 0);
    for (const size_t n : read_at_once(model_, lengths)) group.push_back(&texts_[n]);
    if (group.empty()) return false;
    std::vector<std::span<const int32_t>> prompts;
    std::vector<DecodeState*> states;
    std::vector<TextWriter*> writers;
    for (Text* text : group) {
      prompts.emplace_back(text->tokens);
      states.push_back(&text->state);
      writers.push_back(text->writer.get());
    }
    const std::vector<DrawnToken> drawn =
        draw_tokens(writers, model_.read_together(prompts, states));
    std::vector<const Text*> ended;
    for (size_t n = 0; n < group.size(); ++n)
      if (!group[n]->take(drawn[n])) ended.push_back(group[n]);
    keep_those([&](const Text& text) { return std::ranges::find(ended, &text) == ended.end(); });
    return true;
  }

  // One part of a prompt at least, and as many short prompts as are no longer than that: the texts
  // that are written wait for no more.
  void read_prompts() {
    const bool wait = read_together();  // those that are left may share the next pass
    int64_t budget = kReadChunk;
    keep_those([&](Text& text) {
      while (text.reading() && !is_set(interrupt_)) {
        const int64_t rest = std::ssize(text.tokens) - text.state.length();
        if (wait && std::ssize(text.tokens) <= kReadChunk) return true;
        if (std::min(kReadChunk, rest) > budget) return true;
        budget -= std::min(kReadChunk, rest);
        const at::Tensor logits = read_chunk(model_, text.tokens, text.state);
        if (rest <= kReadChunk && !text.take(logits)) return false;
      }
      return true;
    });
  }

  // One token of every text that has read its prompt.
  void step() {
    std::vector<TextWriter*> writers;
    std::vector<DecodeState*> states;
    std::vector<int64_t> last;
    for (Text& text : texts_) {
      if (text.reading()) continue;
      writers.push_back(text.writer.get());
      states.push_back(&text.state);
      last.push_back(text.tokens.back());
    }
    if (states.empty() || is_set(interrupt_)) return;
    const at::Tensor logits =
        model_.decode_together(at::tensor(last, at::kLong).unsqueeze(1), states);
    const std::vector<DrawnToken> drawn = draw_tokens(writers, logits);
    size_t n = 0;
    keep_those([&](Text& text) { return text.reading() || text.take(drawn[n++]); });
  }

  // Finishes the texts for which `goes_on` returns false.
  template <class GoesOn>
  void keep_those(const GoesOn& goes_on) {
    std::vector<Text> kept;
    for (Text& text : texts_) {
      if (goes_on(text)) {
        kept.push_back(std::move(text));
      } else {
        finish(text);
      }
    }
    texts_ = std::move(kept);
  }

  void finish(Text& text) { give(text.index, text.writer->finish(text.state.path)); }

  void give(size_t index, GenerateResult result) {
    ++finished_;
    tokens_ += result.tokens;
    if (batch_.order == BatchOptions::Order::finished) return done_(index, result);
    results_[index] = std::move(result);
    for (; given_ < results_.size() && results_[given_]; ++given_) {
      done_(given_, *results_[given_]);
      results_[given_]->text = {};
    }
  }

  void interrupt_all() {
    for (Text& text : texts_) {
      text.writer->end(FinishReason::interrupted);
      finish(text);
    }
    texts_.clear();
    next_ -= waiting_ ? 1 : 0;
    waiting_.reset();
    while (next_ < requests_.size()) give(next_++, {.reason = FinishReason::interrupted});
  }

  int64_t cache_bytes() const {
    int64_t bytes = 0;
    for (const Text& text : texts_) bytes += text.cache_bytes;
    return bytes;
  }

  BatchProgress progress_now() const {
    BatchProgress now{.finished = finished_,
                      .tokens = tokens_,
                      .cache_bytes = cache_bytes(),
                      .most_cache_bytes = most_seen_};
    for (const Text& text : texts_) {
      ++(text.reading() ? now.reading : now.writing);
      now.tokens += text.writer->result().tokens;
    }
    return now;
  }

  const Transformer& model_;
  const Tokenizer& tokenizer_;
  const std::span<const TextRequest> requests_;
  const ContextOptions& context_;
  const TextDone& done_;
  const std::atomic<bool>* const interrupt_;
  const BatchOptions& batch_;
  const int64_t most_bytes_;
  std::vector<Text> texts_;      // at work, in the order of the requests
  std::optional<Text> waiting_;  // the next one, for which there is no room yet
  std::vector<std::optional<GenerateResult>> results_;
  size_t next_ = 0, given_ = 0;
  int64_t finished_ = 0, tokens_ = 0, most_seen_ = 0;
};

GenerateResult write_alone(const Transformer& model, const Tokenizer& tokenizer,
                           const TextRequest& request, ContextOptions context,
                           const std::atomic<bool>* interrupt) {
  std::vector<int32_t> tokens = prompt_tokens(tokenizer, request);
  if (context.when_full == WhenFull::stop)
    context.context =
        needed_context(model, std::ssize(tokens), request.options.max_tokens, context);
  TextSession session(model, tokenizer, context);
  session.set_tokens(std::move(tokens));
  return session.generate(request.options, {}, interrupt);
}

/// A text is the same alone and among others: where that does not hold they are written apart.
bool together(const Transformer& model, const ContextOptions& context, const BatchOptions& batch) {
  return batch.batch > 1 && !model.why_no_fused_decoder() && context.when_full == WhenFull::stop;
}

void write_apart(const Transformer& model, const Tokenizer& tokenizer,
                 std::span<const TextRequest> requests, const ContextOptions& context,
                 const TextDone& done, const std::atomic<bool>* interrupt,
                 const BatchOptions& batch) {
  BatchProgress now;
  for (size_t n = 0; n < requests.size(); ++n) {
    const GenerateResult result = write_alone(model, tokenizer, requests[n], context, interrupt);
    ++now.finished;
    now.tokens += result.tokens;
    if (batch.progress) batch.progress(now);
    done(n, result);
  }
}

void check_batch(const BatchOptions& batch) {
  require<ConfigError>(batch.batch >= 1 && batch.batch <= BatchOptions::kMost, "generate",
                       "'batch' must be 1 to {} texts at once; got {}", BatchOptions::kMost,
                       batch.batch);
  require<ConfigError>(batch.cache_bytes >= 0, "generate",
                       "the bound on caches must be a number of bytes, or 0; got {}",
                       batch.cache_bytes);
}

}  // namespace

int64_t batch_cache_bytes(const Transformer& model, const Tokenizer& tokenizer,
                          std::span<const TextRequest> requests, const ContextOptions& context,
                          const BatchOptions& batch) {
  check_batch(batch);
  std::vector<int64_t> bytes;
  for (const TextRequest& request : requests) {
    const int64_t positions =
        context.when_full == WhenFull::slide
            ? checked_context(model, context.context)
            : needed_context(model, std::ssize(prompt_tokens(tokenizer, request)),
                             request.options.max_tokens, context);
    bytes.push_back(model.decode_state_bytes(1, positions));
  }
  std::ranges::sort(bytes, std::greater<>());
  const size_t most = together(model, context, batch) ? static_cast<size_t>(batch.batch) : 1;
  int64_t sum = 0;
  for (size_t n = 0; n < std::min(most, bytes.size()); ++n) sum += bytes[n];
  return bytes.empty() ? 0 : std::max(bytes.front(), std::min(sum, cache_bound(batch)));
}

void generate_texts(const Transformer& model, const Tokenizer& tokenizer,
                    std::span<const TextRequest> requests, const ContextOptions& context,
                    const TextDone& done, const std::atomic<bool>* interrupt,
                    const BatchOptions& batch) {
  check_batch(batch);
  for (const TextRequest& request : requests) request.options.check();
  if (together(model, context, batch))
    return Batch(model, tokenizer, requests, context, done, interrupt, batch).run();
  write_apart(model, tokenizer, requests, context, done, interrupt, batch);
}

}  // namespace fovea
