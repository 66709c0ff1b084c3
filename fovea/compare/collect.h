// Collects the results of a finished run: curves from its metrics, a sample and attention maps from
// its model.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

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

/// Attention of all layers and heads on the first `config.tokens` tokens of `text`.
std::vector<AttentionMap> collect_maps(const Transformer& model, const Tokenizer& tokenizer,
                                       const std::string& text, int64_t tokens);

/// `config.text`, or the start of the corpus's first validation document that is long enough.
std::string map_text(const MapConfig& config, const Corpus& corpus);

}  // namespace fovea
