// An inspection of two made-up models: kernels of every class, groups, maps; names and tokens that
// would be markup if the page let them.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "fovea/report/inspect_result.h"

namespace fovea::testing {

inline std::vector<double> kernel_like(KernelKind kind) {  // [3, 5]
  std::vector<double> w(15, 0.01);
  const auto set = [&](int a, int b, double value) { w[static_cast<size_t>(a * 5 + b)] = value; };
  switch (kind) {
    case KernelKind::identity:
      set(2, 2, 1.0);
      break;
    case KernelKind::diagonal:
      set(0, 0, 1.0), set(1, 1, 1.0), set(2, 2, 1.0);
      break;
    case KernelKind::priming:
      set(0, 2, 1.0), set(1, 2, 1.0), set(2, 2, 0.3);
      break;
    case KernelKind::edge:
      set(2, 1, -1.0), set(2, 2, 1.0);
      break;
    case KernelKind::mixed:
      set(2, 0, 1.0), set(2, 4, 1.0), set(1, 2, 0.8);
      break;
  }
  return w;
}

inline InspectResult example_inspection() {
  InspectResult result{.text = "The keeper", .tokens = 24};
  for (const std::string name : {"runs/standard", "runs/<script>hacked = 1</script>"}) {
    InspectModel model{.name = name};
    for (int64_t i = 0; i < 24; ++i)
      model.tokens.push_back(i % 5 == 0 ? " <u>key</u>" : " tok" + std::to_string(i));
    for (int64_t layer = 0; layer < 2; ++layer) {
      model.layers.push_back({.layer = layer,
                              .pipeline = "temperature 0.4 > focus log of 4 groups",
                              .temperature = 0.4,
                              .entropy = {1.5, 2.0},
                              .largest_weight = {0.5, 0.4},
                              .sink_mass = {0.1, 0.2}});
      for (int64_t head = 0; head < 2; ++head) {
        AttentionMap map{.layer = layer, .head = head};
        for (int64_t i = 0; i < 24; ++i) {
          map.tokens.push_back(i % 5 == 0 ? "</script><b>" : "tok" + std::to_string(i));
          std::vector<double> row;
          for (int64_t j = 0; j <= i; ++j)
            row.push_back(std::exp(-0.2 * static_cast<double>((i - j) * (head + 1))));
          double sum = 0.0;
          for (const double w : row) sum += w;
          for (double& w : row) w /= sum;
          map.rows.push_back(row);
        }
        model.maps.push_back(std::move(map));
      }
    }
    int64_t head = 0;
    for (const KernelKind kind : {KernelKind::identity, KernelKind::diagonal, KernelKind::priming,
                                  KernelKind::edge, KernelKind::mixed}) {
      model.kernels.push_back({.layer = 1,
                               .head = head++,
                               .before = head % 2 == 0,
                               .queries = 3,
                               .keys = 5,
                               .weights = kernel_like(kind)});
    }
    model.mixes.push_back(
        {.layer = 1, .diagonal_mean = 0.9, .diagonal_least = 0.7, .other_mean_size = 0.05});
    InspectFocus focus{.layer = 1, .pairs_kept = 0.4, .distant_kept = 0.25};
    for (int64_t k = 0; k < 4; ++k)
      focus.groups.push_back({.group = k,
                              .share = 0.25,
                              .confidence = 0.8,
                              .main_class = "word",
                              .purity = 0.6,
                              .top_tokens = {{"<i>the</i>", 4}, {"keeper", 2}}});
    for (int64_t i = 0; i < 24; ++i) focus.first_choices.push_back(i % 4);
    focus.pairs.push_back({.query = 20,
                           .key = 3,
                           .query_text = "keeper",
                           .key_text = "<b>key</b>",
                           .agreement = 0.9});
    model.focus.push_back(std::move(focus));
    result.models.push_back(std::move(model));
  }
  return result;
}

}  // namespace fovea::testing
