// Collects the results of a finished run: curves from its metrics, a sample and attention maps from
// its model.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <vector>

#include "fovea/compare/config.h"
#include "fovea/data/corpus.h"
#include "fovea/report/compare_result.h"
#include "fovea/train/trainer.h"

namespace fovea {

/// The run's row: final evaluation, speed, memory, and the curves of `metrics.jsonl`.
CompareRun collect_run(int64_t seed, const TrainResult& result,
                       const std::filesystem::path& metrics, bool learned_temperature);

/// A token as one printable piece: control characters and lone bytes get a visible stand-in.
std::string printable_piece(const Tokenizer& tokenizer, int32_t token);

/// One head's weights [t, t] as a map of the tokens with these printable texts.
AttentionMap attention_map(int64_t layer, int64_t head, const std::vector<std::string>& tokens,
                           const at::Tensor& weights_tt);

/// Attention of all layers and heads on the first `config.tokens` tokens of `text`.
std::vector<AttentionMap> collect_maps(const Transformer& model, const Tokenizer& tokenizer,
                                       const std::string& text, int64_t tokens);

/// `config.text`, or the start of the corpus's first validation document that is long enough.
std::string map_text(const MapConfig& config, const Corpus& corpus);

}  // namespace fovea
