// Sizes in tokens.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/made/sample.h"

#include <algorithm>
#include <cmath>

#include "fovea/base/error.h"
#include "fovea/base/files.h"

namespace fovea {
namespace {

// Units of the second prompt: enough to see what a unit costs.
constexpr int64_t kFirstStep = 16;

/// Where the straight line through two sizes meets the budget, strictly between them.
int64_t between(const SizedPrompt& fits, const SizedPrompt& too_long, int64_t budget) {
  const double slope = static_cast<double>(too_long.tokens - fits.tokens) /
                       static_cast<double>(too_long.units - fits.units);
  const auto guess = static_cast<int64_t>(
      std::floor(static_cast<double>(budget - fits.tokens) / std::max(slope, 1e-9)));
  return std::clamp(fits.units + guess, fits.units + 1, too_long.units - 1);
}

}  // namespace

Rng random_numbers(const MadeSample& sample, std::string_view task) {
  return Rng(
      mix_seed(mix_seed(sample.seed, fingerprint(task)), static_cast<uint64_t>(sample.number)));
}

void check_sample(const MadeSample& sample, std::string_view task) {
  require<ConfigError>(sample.length >= 1, task, "the length must be at least 1 token; got {}",
                       sample.length);
  require<ConfigError>(sample.number >= 0, task, "a sample's number must be 0 or more; got {}",
                       sample.number);
  require<ConfigError>(!sample.depth || (*sample.depth >= 0.0 && *sample.depth <= 1.0), task,
                       "the depth must be 0 (start) to 1 (end); got {}",
                       sample.depth.value_or(0.0));
}

int64_t count_tokens(const Tokenizer& tokenizer, std::string_view text) {
  return std::ssize(tokenizer.encode(text)) + (tokenizer.bos() >= 0 ? 1 : 0);
}

SizedPrompt largest_prompt(const MadeSample& sample, std::string_view task, int64_t answer_tokens,
                           int64_t least, int64_t most,
                           const std::function<std::string(int64_t units)>& build) {
  const int64_t budget = sample.length - answer_tokens;
  const auto sized = [&](int64_t units) {
    std::string text = build(units);
    const int64_t tokens = count_tokens(sample.tokenizer, text);
    return SizedPrompt{std::move(text), units, tokens};
  };
  SizedPrompt best = sized(least);
  require<ConfigError>(best.tokens <= budget, task,
                       "the length must hold the smallest question, {} tokens, and {} tokens for "
                       "the answer; got {}: ask for a longer one",
                       best.tokens, answer_tokens, sample.length);
  // No unit is less than a token, so no more than `highest` can fit.
  const int64_t highest = std::min(most, least + budget);
  const SizedPrompt smallest{.text = "", .units = best.units, .tokens = best.tokens};
  SizedPrompt above{.text = "", .units = highest + 1, .tokens = 0};
  int64_t probe = std::min(least + kFirstStep, highest);
  for (int64_t tries = 1; best.units < highest; ++tries) {
    SizedPrompt tried = sized(probe);
    if (tried.tokens > budget) {
      above = std::move(tried);
      break;
    }
    best = std::move(tried);
    const double units_a_token =
        static_cast<double>(best.units - smallest.units) /
        static_cast<double>(std::max<int64_t>(1, best.tokens - smallest.tokens));
    // A little more at each further try: what is reached must lie above the budget in the end.
    const double wanted = static_cast<double>(budget - smallest.tokens) * units_a_token *
                          (1.0 + 0.01 * static_cast<double>(tries));
    probe = std::clamp(smallest.units + static_cast<int64_t>(std::min(wanted, 1e15)) + 1,
                       best.units + 1, std::max(highest, best.units + 1));
  }
  if (best.units >= highest) return best;
  for (int step = 0; above.units - best.units > 1; ++step) {
    // Interpolation can creep towards one end; every third step halves instead.
    const int64_t units =
        step % 3 == 2 ? best.units + (above.units - best.units) / 2 : between(best, above, budget);
    SizedPrompt tried = sized(units);
    (tried.tokens <= budget ? best : above) = std::move(tried);
  }
  return best;
}

}  // namespace fovea
