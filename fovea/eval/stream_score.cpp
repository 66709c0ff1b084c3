// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/stream_score.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "fovea/base/error.h"
#include "fovea/runtime/machine.h"
#include "fovea/text/result_json.h"

namespace fovea {
namespace {

using Clock = std::chrono::steady_clock;

double perplexity_of(double nll, int64_t tokens) {
  return tokens == 0 ? 0.0 : std::exp(nll / static_cast<double>(tokens));
}

at::Tensor token_tensor(std::span<const int32_t> tokens) {
  const at::Tensor ids = at::empty({std::ssize(tokens)}, at::kLong);
  std::ranges::copy(tokens, ids.mutable_data_ptr<int64_t>());
  return ids;
}

}  // namespace

double StreamPart::perplexity() const { return perplexity_of(nll, tokens); }

double StreamScore::perplexity() const {
  double nll = 0;
  int64_t tokens = 0;
  for (const StreamPart& part : parts) {
    nll += part.nll;
    tokens += part.tokens;
  }
  return perplexity_of(nll, tokens);
}

template <class V>
void describe(V& v, StreamPart& p) {
  v("end", p.end);
  v("tokens", p.tokens);
  v.derived("perplexity", p.perplexity());
  v("seconds", p.seconds);
  v("cache_bytes", p.cache_bytes);
  v("resident_bytes", p.resident_bytes);
}

template <class V>
void describe(V& v, StreamScore& s) {
  v.derived("perplexity", s.perplexity());
  v("parts", s.parts);
}

nlohmann::ordered_json StreamScore::to_json() const { return described_json(*this); }

StreamScore score_stream(const Transformer& model, std::span<const int32_t> tokens,
                         const StreamOptions& options,
                         const std::function<void(int64_t, int64_t)>& progress) {
  require<ConfigError>(options.part >= 1 && options.chunk >= 1, "stream",
                       "expected parts and chunks of at least 1 token; got {} and {}", options.part,
                       options.chunk);
  require<InputError>(tokens.size() >= 2, "stream",
                      "expected a text of at least two tokens; got {}", tokens.size());
  const at::NoGradGuard no_grad;
  const auto total = std::ssize(tokens) - 1;  // inputs; the last token is predicted alone
  DecodeState state = model.make_decode_state(1, total);
  StreamScore score;
  StreamPart part;
  Clock::time_point start = Clock::now();
  for (int64_t from = 0; from < total;) {
    const int64_t to_part = options.part - part.tokens;
    const int64_t count = std::min({options.chunk, total - from, to_part});
    const at::Tensor ids =
        token_tensor(tokens.subspan(static_cast<size_t>(from), static_cast<size_t>(count) + 1))
            .to(model.device());
    const at::Tensor states = model.decode_hidden(ids.slice(0, 0, count).unsqueeze(0), state);
    const at::Tensor z = model.logits(states.flatten(0, 1)).to(at::kFloat);
    const at::Tensor likelihood = z.gather(1, ids.slice(0, 1).unsqueeze(1)).squeeze(1);
    part.nll += (at::logsumexp(z, {1}) - likelihood).to(at::kDouble).sum().item<double>();
    part.tokens += count;
    from += count;
    if (part.tokens == options.part || from == total) {
      const Clock::time_point now = Clock::now();
      part.end = from;
      part.seconds = std::chrono::duration<double>(now - start).count();
      part.cache_bytes = state.bytes();
      part.resident_bytes = resident_memory_bytes();
      require<NumericalError>(std::isfinite(part.nll), "stream",
                              "the log-likelihood of tokens {} to {} is {}, no finite number",
                              from - part.tokens, from, part.nll);
      score.parts.push_back(part);
      part = {};
      start = now;
    }
    if (progress) progress(from, total);
  }
  return score;
}

}  // namespace fovea
