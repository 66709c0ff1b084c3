// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/decode_speed.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "fovea/base/error.h"

namespace fovea {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

DecodeSpeed measure_decode_speed(const Transformer& model, std::span<const int32_t> tokens,
                                 int64_t written) {
  require<ConfigError>(!tokens.empty() && written >= 2, "speed",
                       "expected at least 1 token to read and 2 to write; got {} and {}",
                       tokens.size(), written);
  const at::NoGradGuard no_grad;
  const auto read = static_cast<int64_t>(tokens.size());
  DecodeState state = model.make_decode_state(1, read + written);
  // On a GPU a call returns before its work is done; a number that is read waits for it.
  const auto most_likely = [](const at::Tensor& logits) {
    const at::Tensor token = logits.argmax(-1, true);
    if (!token.is_cpu()) (void)token.cpu();
    return token;
  };
  at::Tensor prompt = at::empty({1, read}, at::kLong);
  std::ranges::copy(tokens, prompt.mutable_data_ptr<int64_t>());
  double start = seconds_now();
  at::Tensor next = most_likely(model.decode(prompt.to(model.device()), state));
  DecodeSpeed speed{.prompt = read};
  speed.prompt_rate = static_cast<double>(read) / (seconds_now() - start);
  std::vector<double> times;
  for (int64_t i = 0; i < written; ++i) {
    start = seconds_now();
    next = most_likely(model.decode(next, state));
    if (i > 0) times.push_back(seconds_now() - start);
  }
  const auto middle = times.begin() + static_cast<int64_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  speed.rate = 1.0 / *middle;
  speed.path = std::string(enum_name(state.path.name));
  return speed;
}

}  // namespace fovea
