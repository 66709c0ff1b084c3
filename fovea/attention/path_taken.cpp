// Words of paths, plans and reasons.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/path_taken.h"

#include <fmt/format.h>

#include "fovea/config/fields.h"

namespace fovea {

std::span<const std::string_view> enum_names(PathName) {
  static constexpr std::string_view names[] = {"",          "fused",  "grouped",       "torch_sdpa",
                                               "reference", "decode", "fused_decoder", "by_layers"};
  return names;
}

std::span<const std::string_view> enum_names(PlanWord) {
  static constexpr std::string_view names[] = {
      "full",    "causal", "documents", "strided", "fixed",  "window", "alibi", "block_sparse",
      "classes", "dense",  "groups",    "lists",   "blocks", "scan",   "sorted"};
  return names;
}

std::string PlanName::text() const {
  std::string words;
  for (size_t n = 0; n < enum_names(PlanWord{}).size(); ++n) {
    if (!has(static_cast<PlanWord>(n))) continue;
    words += (words.empty() ? "" : "+") + std::string(enum_names(PlanWord{})[n]);
  }
  return words;
}

std::string PathReason::text() const {
  switch (kind) {
    case Kind::requested:
      return "requested";
    case Kind::pointwise:
      return "every active stage is pointwise";
    case Kind::few_queries:
      return "few queries: keys and values are read where they lie";
    case Kind::one_query:
      return "one query: " + detail;
    case Kind::clusters:
      return "every head has a plan of its clusters";
    case Kind::block_pairs:
      return "given pairs of blocks";
    case Kind::none:
    case Kind::cheapest_plan:
    case Kind::refused:
      break;
  }
  return detail;
}

std::string PathTaken::plan_text() const {
  return inner == PathName::none ? plan.text()
                                 : fmt::format("{} {}", enum_name(inner), plan.text());
}

std::string PathTaken::text() const { return fmt::format("{} {}", enum_name(name), plan_text()); }

}  // namespace fovea
