// One model under several attentions, side by side: prediction, copying, a needle, speed, by
// length.
//
// A system is a change of the model: adapters, keys of model.attention, a mode of Focus.
// Differences to the first system are paired by windows of the text. A system may ask for as many
// pairs as another keeps: its window, or its stride, is then chosen so.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/checkpoint/changed_model.h"
#include "fovea/eval/decode_speed.h"
#include "fovea/eval/scoring.h"
#include "fovea/report/statistics.h"

namespace fovea {

struct AttentionSystem {
  std::string name;
  std::vector<std::string> adapters;   ///< folders of PEFT
  std::vector<std::string> attention;  ///< keys of model.attention: "mask.window=512"
  FocusMode focus = FocusMode::configured;
  int64_t top_k = 0;     ///< groups of a token under focus hard or random; 0 = the model's
  std::string pairs_of;  ///< an earlier system: mask.window, or mask.stride, for as many pairs

  void describe(FieldVisitor& v);
};

/// A file of systems.
struct AttentionSystems {
  std::vector<AttentionSystem> systems;

  void describe(FieldVisitor& v);
  /// ConfigError for none, for names that come twice, and for `pairs_of` that names no earlier one.
  void check() const;
};
/// InputError, ConfigError with the place.
AttentionSystems read_attention_systems(const std::filesystem::path& file);

struct SideBySideOptions {
  std::filesystem::path model;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  std::vector<int64_t> lengths;  ///< windows in tokens; empty = the trained context
  int64_t tokens = 0;            ///< of the text at each length, at most; 0 = all
  int64_t copy = 0;              ///< tokens of the copy score; 0 = not measured
  /// Questions of niah_single_2 at each length, of systems that can write; 0 = not asked.
  int64_t needles = 0;
  bool speed = false;  ///< reading and writing behind each length, of systems that can write
  /// File in which finished scores wait while others are measured; "" = none. Where an earlier call
  /// was interrupted, its scores are taken over.
  std::filesystem::path finished = {};
};

/// One system at one length.
struct SideBySideScore {
  int64_t length = 0;
  std::optional<double> pairs;  ///< share of the causal pairs; nothing where it is not known
  /// Bytes that are read from the caches to write a token behind `length` others (cache_reads.h);
  /// nothing where it is not known.
  std::optional<double> bytes_read;
  int64_t window = 0;  ///< or stride, where `pairs_of` chose it
  double perplexity = 0.0;
  PairedTest difference;  ///< of nats a token to the first system, paired by window
  double p = 1.0;         ///< of it, corrected by Holm over the systems of this length
  double copy = 0.0;      ///< perplexity of the second copy; 0 = not measured
  double needle = -1.0;   ///< share of needles found; below 0 = not asked
  std::optional<DecodeSpeed> speed;
};

struct SideBySideRow {
  AttentionSystem system;
  std::string pipeline;  ///< the attention of the layers in words
  int64_t drawn = 0;     ///< tensors that no file holds: they start as in a new model
  /// Reason why the system writes no text, or empty; then needles and speed are not measured.
  std::string cannot_write;
  std::vector<SideBySideScore> scores;  ///< one a length
};

struct SideBySideResult {
  std::vector<SideBySideRow> rows;

  nlohmann::ordered_json to_json() const;
};

/// `progress(label, done, total)`; it may throw. As load_changed() and score_text(); InputError
/// where the text holds no window of a length.
SideBySideResult compare_attentions(
    const AttentionSystems& systems, std::span<const ScoreDocument> documents,
    const SideBySideOptions& options,
    const std::function<void(std::string_view, int64_t, int64_t)>& progress = {},
    const std::atomic<bool>* interrupt = nullptr);

/// Share of the causal pairs that the layers of a model read in texts of `length` tokens, which
/// `text` has scored. Nothing where it is not known.
std::optional<double> share_of_pairs_read(const Transformer& model, const ScoreResult& text,
                                          int64_t length);

/// Share of the causal pairs of `tokens` tokens that the layers see, their mean. Layers that choose
/// keys by content have the measured share `chosen`; all others are counted by places. Nothing
/// where `chosen` is missing or a layer computes no pairs.
std::optional<double> masked_pairs(const ModelConfig& config, int64_t tokens,
                                   std::optional<double> chosen = {});

}  // namespace fovea
