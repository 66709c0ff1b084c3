// Rows of attention on a text, by recomputation, layer by layer. Private to fovea/engine.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <vector>

#include "fovea/engine/engine.h"
#include "fovea/engine/text_model.h"
#include "fovea/nn/layer_walk.h"

namespace fovea {

/// Requests for attention that may wait.
constexpr int64_t kMostLooks = 16;

/// ConfigError for layers, heads, places and numbers that are impossible; PromptTooLong.
void check_attention_rows(const TextModel& model, const std::vector<int32_t>& tokens,
                          const AttentionRowsRequest& request);

/// A request that was checked, at work; `tokens` are those of its text. Its memory is that of the
/// text's hidden states, and of the wanted weights of one layer.
class Look {
 public:
  Look(const TextModel& model, std::vector<int32_t> tokens, AttentionRowsRequest request,
       AttentionRowsDone done, std::function<bool()> cancelled);

  /// Computes one layer, and answers after the last one, a failure, or where it was cancelled or
  /// its time is over. Whether it has answered.
  bool next();
  /// Answers with an error.
  void refuse(std::exception_ptr error);

 private:
  void begin();
  void compute();
  void add_layer(LayerView view);
  AttentionRows finished();

  const TextModel& model_;
  const std::vector<int32_t> tokens_;
  const AttentionRowsRequest request_;
  const AttentionRowsDone done_;
  const std::function<bool()> cancelled_;
  const std::chrono::steady_clock::time_point asked_ = std::chrono::steady_clock::now();
  std::optional<LayerWalk> walk_;
  std::vector<LayerView> views_;  // without their weights
  AttentionRows out_;
};

}  // namespace fovea
