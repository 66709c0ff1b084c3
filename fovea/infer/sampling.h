// Sampling: the choice of the next token from the logits of the model.
//
// The order is that of Hugging Face: penalties, temperature, top-k, top-p, min-p, draw. Shape
// suffix: v vocabulary.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <span>
#include <vector>

#include "fovea/base/rng.h"
#include "fovea/config/fields.h"

namespace fovea {

struct SamplingOptions {
  double temperature = 0.8;         ///< logits are divided by it; 0 = greedy
  int64_t top_k = 0;                ///< only the k most likely tokens; 0 = all
  double top_p = 1.0;               ///< the fewest tokens whose probabilities reach p
  double min_p = 0.0;               ///< only tokens at least p times as likely as the likeliest
  double repetition_penalty = 1.0;  ///< r: logits of tokens in the text so far, l > 0 ? l / r : l r
  double frequency_penalty = 0.0;   ///< subtracted once for every time the token was generated
  double presence_penalty = 0.0;    ///< subtracted once where the token was generated

  void describe(FieldVisitor& v);
  /// ConfigError with the key of the first impossible value.
  void check() const;
  bool operator==(const SamplingOptions&) const = default;
};

struct TokenProbability {
  int32_t token = 0;
  double probability = 0;
};

/// Draws the tokens of one text. Not thread-safe.
class Sampler {
 public:
  Sampler(const SamplingOptions& options, uint64_t seed, int64_t vocab_size);

  /// Tokens that stand in the text: the prompt (repetition_penalty counts them).
  void add_prompt(std::span<const int32_t> tokens);
  /// The next token from float32 logits [v]; it is counted for the penalties. NumericalError where
  /// a logit is NaN.
  int32_t next(const at::Tensor& logits_v);
  /// The tokens that may be drawn, probabilities summing to 1; one with probability 1 when greedy.
  /// The draw goes through them in this order: by probability where top_k or top_p sorts them, else
  /// by id; ties go to the lower id.
  std::vector<TokenProbability> distribution(const at::Tensor& logits_v) const;

 private:
  friend class TokenDrawing;
  at::Tensor row_of(const at::Tensor& logits_v) const;
  bool has_penalties() const;
  double penalised(double l, size_t token) const;
  static int32_t draw(std::span<const TokenProbability> tokens, double remaining);
  /// A draw from all tokens, or the likeliest when greedy: as from distribution(), by float32.
  int32_t draw_of_all(const at::Tensor& logits_v, double uniform);
  size_t draw_by_weights(size_t likeliest, double uniform) const;
  /// Whether every token may be drawn: no top_k, top_p or min_p.
  bool draws_of_all() const;
  int32_t draw_on_host(const at::Tensor& logits_v, double uniform);
  void count(int32_t token);

  SamplingOptions options_;
  Rng rng_;
  std::vector<uint8_t> seen_;       // in the text at all
  std::vector<int32_t> generated_;  // how often it was generated
  std::vector<float> weights_;      // of draw_of_all()
};

struct DrawnToken {
  int32_t token = -1;
  std::exception_ptr error;  ///< why there is none: NumericalError, ShapeError
};

/// The next token of several texts from float32 logits [texts, v], as Sampler::next() of each. They
/// are drawn side by side; logits of a device stay there where neither penalties nor filters act.
std::vector<DrawnToken> next_tokens(std::span<Sampler* const> samplers,
                                    const at::Tensor& logits_nv);

}  // namespace fovea
