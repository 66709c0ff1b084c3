// Many texts written together: each step of the fused decoder reads the weights once for all of
// them.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <memory>
#include <optional>

#include "fovea/base/error.h"
#include "fovea/infer/text_writer.h"

namespace fovea {
namespace {

/// Texts of a step: beyond this, weights are no longer what a step waits for, and caches are many.
constexpr size_t kTogether = 8;

/// A text of the batch.
struct Text {
  size_t index = 0;
  int64_t context = 0;
  std::vector<int32_t> tokens;
  std::unique_ptr<TextWriter> writer;

  bool goes_on() {
    if (!writer->ended() && std::ssize(tokens) > context) writer->end(FinishReason::context);
    return writer->wants_more();
  }
};

class Batch {
 public:
  Batch(const Transformer& model, const Tokenizer& tokenizer, std::span<const TextRequest> requests,
        const ContextOptions& context, const TextDone& done, const std::atomic<bool>* interrupt)
      : model_(model),
        tokenizer_(tokenizer),
        requests_(requests),
        context_(context),
        done_(done),
        interrupt_(interrupt),
        results_(requests.size()) {}

  void run() {
    while (next_ < requests_.size() || !texts_.empty()) {
      while (next_ < requests_.size() && texts_.size() < kTogether) begin(next_++);
      if (!texts_.empty()) step();
    }
  }

 private:
  // Reads a prompt and draws its first token; the text joins the others if it goes on.
  void begin(size_t index) {
    const TextRequest& request = requests_[index];
    Text text{.index = index, .tokens = prompt_tokens(tokenizer_, request)};
    const auto prompt = static_cast<int64_t>(text.tokens.size());
    text.context = needed_context(model_, prompt, request.options.max_tokens, context_);
    require_tokens(prompt);
    require_fits(model_, prompt, text.context);
    text.writer = std::make_unique<TextWriter>(tokenizer_, request.options, text.tokens);
    text.writer->result().prompt_tokens = prompt;
    DecodeState state = model_.make_decode_state(1, text.context);
    if (text.writer->wants_more()) {
      const at::Tensor logits = read_tokens(model_, text.tokens, state, interrupt_);
      if (logits.defined()) {
        text.writer->take(logits, text.tokens);
      } else {
        text.writer->end(FinishReason::interrupted);
      }
    }
    if (!text.goes_on()) return finish(text, state.path);
    state_ = texts_.empty() ? std::move(state)
                            : DecodeState::join(std::vector<const DecodeState*>{&state_, &state});
    texts_.push_back(std::move(text));
  }

  // One token of every text.
  void step() {
    const bool interrupted = interrupt_ != nullptr && interrupt_->load(std::memory_order_relaxed);
    at::Tensor logits;
    if (!interrupted) {
      const at::Tensor ids = at::empty({std::ssize(texts_), 1}, at::kLong);
      for (size_t b = 0; b < texts_.size(); ++b)
        ids.mutable_data_ptr<int64_t>()[b] = texts_[b].tokens.back();
      logits = model_.decode(ids.to(model_.device()), state_);
    }
    std::vector<Text> rest;
    std::vector<int64_t> sequences;
    for (size_t b = 0; b < texts_.size(); ++b) {
      Text& text = texts_[b];
      if (interrupted) {
        text.writer->end(FinishReason::interrupted);
      } else {
        text.writer->take(logits[static_cast<int64_t>(b)], text.tokens);
      }
      if (!text.goes_on()) {
        finish(text, state_.path);
        continue;
      }
      rest.push_back(std::move(text));
      sequences.push_back(static_cast<int64_t>(b));
    }
    if (rest.size() < texts_.size() && !rest.empty()) state_ = state_.select(sequences);
    texts_ = std::move(rest);
  }

  // Results are given in the order of the requests.
  void finish(Text& text, const PathTaken& path) {
    results_[text.index] = text.writer->finish(path);
    for (; given_ < results_.size() && results_[given_]; ++given_) done_(given_, *results_[given_]);
  }

  const Transformer& model_;
  const Tokenizer& tokenizer_;
  const std::span<const TextRequest> requests_;
  const ContextOptions& context_;
  const TextDone& done_;
  const std::atomic<bool>* const interrupt_;
  std::vector<Text> texts_;  // at work, in the order of the state's sequences
  DecodeState state_;
  std::vector<std::optional<GenerateResult>> results_;
  size_t next_ = 0, given_ = 0;
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

}  // namespace

void generate_texts(const Transformer& model, const Tokenizer& tokenizer,
                    std::span<const TextRequest> requests, const ContextOptions& context,
                    const TextDone& done, const std::atomic<bool>* interrupt) {
  for (const TextRequest& request : requests) request.options.check();
  // A text is the same alone and among others: where that does not hold they are written apart.
  const bool together = !model.why_no_fused_decoder() && context.when_full == WhenFull::stop &&
                        !model.config().rope.scaling.dynamic();
  if (together) return Batch(model, tokenizer, requests, context, done, interrupt).run();
  for (size_t n = 0; n < requests.size(); ++n)
    done(n, write_alone(model, tokenizer, requests[n], context, interrupt));
}

}  // namespace fovea
