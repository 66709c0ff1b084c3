// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/retrofit/systems_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace fovea {
namespace {

constexpr int64_t kMostTopK = 3;

}  // namespace

std::string retrofit_systems(const std::filesystem::path& adapter, const ModelConfig& config) {
  // A JSON string is a YAML string.
  const std::string on =
      fmt::format("    adapters: [{}]\n",
                  nlohmann::json(std::filesystem::absolute(adapter).lexically_normal()).dump());
  std::string text =
      "# What this retrofit keeps, beside others at as many attended pairs:\n"
      "#\n"
      "#   fovea eval MODEL --systems THIS_FILE --text book.txt --lengths 1024,2048 --copy 512 "
      "--needles 20 --speed\n"
      "systems:\n"
      "  - name: full attention\n";
  const FocusSpec& focus = config.attention.spec.focus;
  text += fmt::format("  - name: {}\n{}", focus.active() ? "soft groups" : "retrofit", on);
  if (!focus.active()) return text;
  for (int64_t k = 1; 2 * k <= focus.groups && k <= kMostTopK; ++k) {
    text += fmt::format("  - name: top-{0}\n{1}    focus: hard\n    top_k: {0}\n", k, on);
    text += fmt::format(
        "  - name: window and sinks as top-{0}\n    attention: [mask.sinks={1}]\n"
        "    pairs_of: top-{0}\n",
        k, focus.sinks);
    text += fmt::format(
        "  - name: strided as top-{0}\n    attention: [mask.sparsity=strided, mask.window={1}, "
        "mask.sinks={2}, mask.stride=1]\n    pairs_of: top-{0}\n",
        k, focus.window, focus.sinks);
    for (const char* const mode : {"random", "hash"})
      text += fmt::format("  - name: {2} groups, top-{0}\n{1}    focus: {2}\n    top_k: {0}\n", k,
                          on, mode);
  }
  return text;
}

}  // namespace fovea
