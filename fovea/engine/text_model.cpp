// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/engine/text_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "fovea/attention/decode/token_step.h"
#include "fovea/attention/pipeline.h"
#include "fovea/base/error.h"
#include "fovea/infer/text_writer.h"

namespace fovea {
namespace {

/// Whether the compiled decoder reads the keys of this layer in the pages of other caches.
bool reads_shared_pages(const AttentionSpec& spec) {
  return token_form(spec).form == TokenForm::decoder;
}

}  // namespace

DecodeState with_room(const DecodeState& from, int64_t capacity) {
  constexpr int64_t kText = 0;
  DecodeState to = from.select({&kText, 1}, capacity);
  to.path = from.path;
  to.sorted.clear();
  for (const SortedCopy& copy : from.sorted) to.sorted.push_back(copy.fork());
  return to;
}

DecodeState with_room(DecodeState&& from, int64_t capacity) {
  std::vector<SortedCopy> sorted = std::exchange(from.sorted, {});
  DecodeState to = with_room(std::as_const(from), capacity);
  to.sorted = std::move(sorted);
  return to;
}

TextModel::TextModel(EngineModel model, const EngineOptions& options)
    : model_(std::move(model)), chunk_(options.chunk) {
  const at::NoGradGuard no_grad;
  require_decodes();
  describe(options);
  const ModelConfig& config = transformer().config();
  empty_ = transformer().make_decode_state(1, 1);
  rope_ = empty_->rope;
  const bool dynamic = config.rotates_by_length();
  if (config.positions == Positions::rope && !dynamic && context() > config.context)
    rope_ = make_rope_table(config.rope, config.head_dim, context(), transformer().device(),
                            rope_.cos_pf.scalar_type());
  if (options.prefix_bytes != 0 && !dynamic) prefixes_.emplace(options.chunk);
}

void TextModel::require_decodes() const {
  try {
    DecodeState state = transformer().make_decode_state(1, 3);
    transformer().decode(at::zeros({1, 2}, at::kLong).to(transformer().device()), state);
    transformer().decode(at::zeros({1, 1}, at::kLong).to(transformer().device()), state);
  } catch (const UnsupportedError& error) {
    fail<UnsupportedError>("engine",
                           "expected a model that writes text token by token; got '{}', which "
                           "cannot: {}; leave it out",
                           model_.name, error.what());
  }
}

void TextModel::describe(const EngineOptions& options) {
  const ModelConfig& config = transformer().config();
  const std::optional<std::string> why_not = transformer().why_no_fused_decoder();
  together_ = !why_not;
  served_ = {.name = model_.name,
             .parent = model_.parent,
             .context = checked_context(transformer(), options.context),
             .vocabulary = model_.loaded.tokenizer->vocab_size(),
             .pipeline = describe_pipeline(config.layer_attention(0)),
             .why_one_by_one = why_not.value_or("")};
  reads_pages_ = together_;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const AttentionSpec spec = config.layer_attention(layer);
    reads_pages_ = reads_pages_ && reads_shared_pages(spec);
    sorts_keys_ = sorts_keys_ || spec.focus.gate == FocusSpec::Gate::hard;
  }
}

DecodeState TextModel::begin(int64_t positions, int64_t capacity) const {
  DecodeState state = with_room(*empty_, capacity);
  const ModelConfig& config = transformer().config();
  state.rope = rope_;
  if (config.rotates_by_length())
    state.rope = make_rope_table(config.rope, config.head_dim, positions, transformer().device(),
                                 rope_.cos_pf.scalar_type());
  return state;
}

int64_t TextModel::growth(int64_t rest) const {
  return std::max<int64_t>(reads_pages_ ? std::min(chunk_, rest) : rest, 1);
}

int64_t TextModel::bytes(int64_t prompt, int64_t rest, int64_t choices) const {
  constexpr int64_t kPage = AttentionCache::kPage;
  const int64_t shared = transformer().decode_state_bytes(1, prompt + kPage);
  const int64_t own =
      transformer().decode_state_bytes(1, reads_pages_ ? rest + 2 * kPage : prompt + rest + kPage);
  const bool sorts = sorts_keys_ && prompt + rest >= SortedKeys::kLeastKeys;
  const int64_t sorted = sorts ? transformer().decode_state_bytes(1, prompt + rest) : 0;
  return shared + choices * (own + sorted);
}

at::Tensor TextModel::step(std::span<const int64_t> tokens,
                           std::span<DecodeState* const> states) const {
  const at::Tensor ids =
      at::tensor(at::IntArrayRef(tokens.data(), tokens.size()), at::kLong).unsqueeze(1);
  if (together_) return transformer().decode_together(ids, states);
  std::vector<at::Tensor> logits;
  for (size_t n = 0; n < states.size(); ++n)
    logits.push_back(transformer().decode(
        ids.narrow(0, static_cast<int64_t>(n), 1).to(transformer().device()), *states[n]));
  return at::cat(logits, 0);
}

void share_numbers(Transformer& model, const Transformer& base) {
  const at::NoGradGuard no_grad;
  for (Parameter& parameter : model.parameters().all()) {
    const Parameter* const same = base.parameters().find(parameter.name);
    if (same == nullptr || same->value.scalar_type() != parameter.value.scalar_type() ||
        same->value.sizes() != parameter.value.sizes() ||
        same->value.strides() != parameter.value.strides() ||
        same->value.is_same(parameter.value) || !at::equal(same->value, parameter.value))
      continue;
    parameter.value.set_(same->value.detach());
  }
}

}  // namespace fovea
