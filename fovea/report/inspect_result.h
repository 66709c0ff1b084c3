// Results of `fovea inspect` for one or more models on one text: data for the page and for JSON.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "fovea/report/compare_result.h"

namespace fovea {

/// One layer on the text; numbers per head.
struct InspectLayer {
  int64_t layer = 0;
  std::string pipeline = {};         ///< "temperature 0.4 > window 128"
  double temperature = 1.0;          ///< effective t
  std::vector<double> entropy = {};  ///< nats
  std::vector<double> largest_weight = {};
  std::vector<double> sink_mass = {};
};

/// The effect of a key-query kernel (Multi-Token Attention; classes in docs/inspect.md).
enum class KernelKind { identity, diagonal, priming, edge, mixed };
std::string_view kernel_kind_name(KernelKind kind);
/// The kind of a kernel [queries, keys], row by row; row queries-1 is the current query.
KernelKind kernel_kind(const std::vector<double>& weights, int64_t queries, int64_t keys);

struct InspectKernel {
  int64_t layer = 0, head = 0;
  bool before = true;  ///< the softmax
  int64_t queries = 0, keys = 0;
  std::vector<double> weights = {};  ///< [queries, keys]
};

/// A head-mixing matrix set of one layer: size of the diagonal and of the rest.
struct InspectMix {
  int64_t layer = 0;
  bool before = true;
  double diagonal_mean = 0.0, diagonal_least = 0.0, other_mean_size = 0.0;
};

struct InspectToken {
  std::string text = {};
  int64_t count = 0;
};

/// One group of one layer of Focus, by first choices.
struct InspectGroup {
  int64_t group = 0;
  double share = 0.0;           ///< of the text's tokens
  double confidence = 0.0;      ///< mean g of its tokens for it
  std::string main_class = {};  ///< word, continuation, digits, punctuation, space
  double purity = 0.0;          ///< share of its tokens that are of that class
  std::vector<InspectToken> top_tokens = {};
};

/// A distant pair that shares a group.
struct InspectPair {
  int64_t query = 0, key = 0;
  std::string query_text = {}, key_text = {};
  double agreement = 0.0;  ///< g_i.g_j
};

struct InspectFocus {
  int64_t layer = 0;
  double pairs_kept = 1.0, distant_kept = 1.0;  ///< by the hard rule
  std::vector<InspectGroup> groups = {};
  std::vector<int64_t> first_choices = {};  ///< of every token of the text: its group
  std::vector<InspectPair> pairs = {};  ///< of letters and digits, the ones that agree most first
};

struct InspectModel {
  std::string name = {};
  std::vector<std::string> tokens = {};  ///< of the text
  std::vector<InspectLayer> layers = {};
  std::vector<InspectKernel> kernels = {};
  std::vector<InspectMix> mixes = {};
  std::vector<InspectFocus> focus = {};
  std::vector<AttentionMap> maps = {};
};

struct InspectResult {
  std::string text = {};
  int64_t tokens = 0;  ///< of the text, in the first model
  std::vector<InspectModel> models = {};
};

/// Everything but the maps.
nlohmann::ordered_json inspect_json(const InspectResult& result);
/// The groups alone, for groups.json.
nlohmann::ordered_json groups_json(const InspectResult& result);
/// One self-contained page, as html_report.h makes them.
std::string inspect_html(const InspectResult& result);

}  // namespace fovea
