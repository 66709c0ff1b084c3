// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/infer/generate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/base/rng.h"

namespace fovea {

void SamplingOptions::check() const {
  require<ConfigError>(temperature >= 0 && std::isfinite(temperature), "sampling",
                       "'temperature' must be 0 (greedy) or more; got {}", temperature);
  require<ConfigError>(top_k >= 0, "sampling", "'top_k' must be 0 (all) or more; got {}", top_k);
  require<ConfigError>(max_tokens >= 0, "sampling", "'max_tokens' must be 0 or more; got {}",
                       max_tokens);
}

int64_t sample_token(const at::Tensor& logits, const SamplingOptions& options, double u) {
  const at::Tensor row = logits.to(at::kCPU, at::kFloat).contiguous();
  const float* x = row.const_data_ptr<float>();
  std::vector<int64_t> order(static_cast<size_t>(row.numel()));
  std::iota(order.begin(), order.end(), 0);
  const auto higher = [x](int64_t a, int64_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); };
  if (options.temperature == 0.0) return *std::min_element(order.begin(), order.end(), higher);
  size_t kept = order.size();
  if (options.top_k > 0) kept = std::min(kept, static_cast<size_t>(options.top_k));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(),
                    higher);
  std::vector<double> weights(kept);
  double total = 0;
  for (size_t i = 0; i < kept; ++i) {
    weights[i] = std::exp((static_cast<double>(x[order[i]]) - x[order[0]]) / options.temperature);
    total += weights[i];
  }
  double left = u * total;
  for (size_t i = 0; i < kept; ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order[kept - 1];
}

std::string generate_text(const Transformer& model, const Tokenizer& tokenizer,
                          std::string_view prompt, const SamplingOptions& options,
                          const std::function<void(std::string_view)>& stream) {
  options.check();
  std::vector<int32_t> tokens;
  if (tokenizer.bos() >= 0) tokens.push_back(tokenizer.bos());
  tokenizer.append(prompt, tokens);
  const int64_t context = model.config().context;
  require<InputError>(
      !tokens.empty() && static_cast<int64_t>(tokens.size()) <= context, "generate",
      "expected a prompt of 1 to {} tokens (the trained context); got {}; shorten the prompt",
      context, tokens.size());
  DecodeState state = model.make_decode_state(1, context);
  IncrementalDecoder decoder(tokenizer);
  Rng rng(mix_seed(options.seed, 0x67656E));
  std::string text;
  const auto emit = [&](const std::string& piece) {
    text += piece;
    if (stream && !piece.empty()) stream(piece);
  };
  const auto to_tensor = [&](std::span<const int32_t> ids) {
    const at::Tensor t = at::empty({1, static_cast<int64_t>(ids.size())}, at::kLong);
    std::copy(ids.begin(), ids.end(), t.mutable_data_ptr<int64_t>());
    return t.to(model.device());
  };
  at::Tensor logits = model.decode(to_tensor(tokens), state);
  for (int64_t made = 0; made < options.max_tokens; ++made) {
    // A padded vocabulary has logits for ids that mean nothing.
    const int64_t next =
        sample_token(logits[0].narrow(0, 0, tokenizer.vocab_size()), options, rng.uniform());
    if (next == tokenizer.eos()) break;
    const auto id = static_cast<int32_t>(next);
    emit(decoder.push(id));
    if (state.length() >= context) break;
    logits = model.decode(to_tensor({&id, 1}), state);
  }
  emit(decoder.finish());
  return text;
}

}  // namespace fovea
