// The predicted cost of a run: parameters by part, arithmetic, memory, time, and the architecture
// notes' rules of thumb.
//
// Parameters are those of the model's own registry, made without storage, so that every mechanism
// counts as it is. Units: bytes, floating-point operations (a multiplication and an addition are
// two).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/train/recipe.h"

namespace fovea {

struct ParameterParts {
  int64_t embedding = 0;  ///< the head too, where it is tied
  int64_t attention = 0;  ///< projections
  int64_t feed_forward = 0;
  int64_t norms = 0;  ///< QK-norm included
  int64_t head = 0;   ///< 0 where tied
  int64_t added = 0;  ///< by mechanisms and adapters
  int64_t trainable = 0;

  int64_t total() const { return embedding + attention + feed_forward + norms + head + added; }
};

/// Training memory of one process at its peak.
struct MemoryPlan {
  int64_t program = 0;      ///< libraries and this program, as resident now
  int64_t weights = 0;      ///< float32 masters, and their copies in the compute dtype
  int64_t gradients = 0;    ///< float32
  int64_t optimizer = 0;    ///< two moments, float32
  int64_t activations = 0;  ///< kept for the backward pass of one micro-batch
  int64_t transient = 0;    ///< the largest temporaries: logits of a chunk, gradients of a block

  int64_t total() const {
    return program + weights + gradients + optimizer + activations + transient;
  }
};

/// Decoding one token with a full cache: bytes read and operations.
struct DecodePlan {
  std::string name;                 ///< "MHA", "GQA, 4 KV heads", "MQA"
  bool is_model = false;            ///< the recipe's own number of KV heads
  int64_t cache_bytes = 0;          ///< of one sequence of the trained length
  double operations = 0.0;          ///< of one token at that length
  double bytes_read = 0.0;          ///< weights once, cache once, batch 1
  double intensity_of_cache = 0.0;  ///< attention's operations per byte of cache
};

/// How a value stands to a rule of thumb.
enum class RuleVerdict { usual, unusual, against };
std::span<const std::string_view> enum_names(RuleVerdict);

struct RuleCheck {
  std::string rule, value;
  RuleVerdict verdict = RuleVerdict::usual;
  std::string advice;  ///< "" where usual
  std::string source;  ///< section of the notes, or paper
};

struct RunPlan {
  ModelConfig model;  ///< resolved
  ParameterParts parameters;
  double forward_per_token = 0.0;  ///< operations, attention at the mean number of visible keys
  /// The part of forward_per_token that grows with the keys: products, convolutions, mixes, gates.
  double attention_per_token = 0.0;
  double visible_keys = 0.0;  ///< mean over layers and queries
  /// Tokens that the windows of all layers reach together, the token itself included; the context
  /// where some layer has no window. Global and start tokens are not counted.
  int64_t receptive_field = 0;
  int64_t tokens = 0;  ///< of the whole run; 0 where its budget is a time
  int64_t step_tokens = 0;
  double chinchilla_tokens = 0.0;  ///< 20 per parameter (Hoffmann et al. 2022)
  MemoryPlan memory;
  std::vector<DecodePlan> decode;
  std::vector<RuleCheck> rules;

  /// Backward costs twice the forward pass, less where the base is frozen; once more with gradient
  /// checkpointing.
  double training_per_token = 0.0;
  double training_operations() const { return training_per_token * static_cast<double>(tokens); }
  nlohmann::ordered_json to_json() const;
};

/// `recipe` as load_recipe gives it; `tokenizer_vocab` counts where model.vocab_size is 0. Reads no
/// data and allocates no weights. ConfigError as Recipe::resolved().
RunPlan plan_run(const Recipe& recipe, int64_t tokenizer_vocab);

/// Floating-point operations a second of this machine in the linear layers of `plan`'s model at its
/// dtype, best of a few products; under a second.
double measure_speed(const RunPlan& plan, const Recipe& recipe);

}  // namespace fovea
