// fovea attention: one attention from a case file, on any path (docs/attention-case.md).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/options.h"
#include "cli/verbs.h"
#include "fovea/base/error.h"
#include "fovea/checkpoint/attention_case.h"
#include "fovea/report/table.h"

namespace fovea::cli {
namespace {

struct AttentionVerbOptions {
  std::string file, path = "automatic", dtype, device = "auto", out;
  int64_t gradient_seed = -1;
};

std::string shape_of(const at::Tensor& t) {
  return fmt::format("[{}]", fmt::join(t.sizes().begin(), t.sizes().end(), ", "));
}

std::optional<at::ScalarType> parse_dtype(const std::string& text) {
  if (text.empty()) return std::nullopt;
  constexpr std::string_view names[] = {"float32", "bfloat16", "float16", "float64"};
  constexpr at::ScalarType types[] = {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble};
  return types[static_cast<size_t>(parse_choice<int>("--dtype", text, names))];
}

void run(const AttentionVerbOptions& options, const Globals& globals) {
  CaseOptions how;
  how.path = parse_choice<CasePath>("--path", options.path, enum_names(CasePath{}));
  how.dtype = parse_dtype(options.dtype);
  how.device = choose_device(options.device, /*automatic_is_cpu=*/false);
  if (options.gradient_seed >= 0) how.gradient_seed = static_cast<uint64_t>(options.gradient_seed);
  const CaseResult result = run_attention_case(options.file, how);
  const std::string path(enum_name(result.path.name)), plan = result.path.plan_text();
  const std::string reason = result.path.reason.text();
  if (!options.out.empty())
    write_safetensors(options.out, result.tensors, {{"path", path}, {"plan", plan}});
  if (globals.json) {
    nlohmann::ordered_json json{
        {"path", {{"name", path}, {"isa", result.path.isa}, {"plan", plan}, {"reason", reason}}}};
    for (const auto& [name, tensor] : result.tensors) json["tensors"][name] = tensor.sizes().vec();
    for (const auto& [name, error] : result.errors) {
      if (std::isfinite(error))
        json["errors"][name] = error;
      else  // JSON has no such numbers
        json["errors"][name] = std::isnan(error) ? "nan" : fmt::format("{}", error);
    }
    print(json.dump(2) + "\n");
    return;
  }
  print(fmt::format("path: {}, plan: {} ({})\n", path, plan, reason));
  TextTable table({{.title = "tensor"},
                   {.title = "shape"},
                   {.title = "relative error to the expected", .right = true}});
  for (const auto& [name, tensor] : result.tensors) {
    const auto error = result.errors.find(name);
    table.add_row(
        {name, shape_of(tensor),
         error == result.errors.end() ? "nothing expected" : fmt::format("{:.2e}", error->second)});
  }
  print(table.render(stdout_width()));
  if (!options.out.empty()) print(fmt::format("written: {}\n", options.out));
}

}  // namespace

Verb add_attention_verb(Command& app, Globals& globals) {
  auto options = std::make_shared<AttentionVerbOptions>();
  Command* verb = app.add_subcommand(
      "attention", "run one attention from a case file, with its gradients, on any path");
  verb->add_option("case", options->file,
                   "CASE.safetensors: q, k, v, ... and the spec (docs/attention-case.md)")
      ->required();
  verb->add_option("--path", options->path, "automatic, reference, decode or fused");
  verb->add_option("--dtype", options->dtype,
                   "float32, bfloat16, float16 or float64; default: as in the file");
  verb->add_option("--device", options->device, "auto, cpu or cuda");
  verb->add_option("--out", options->out, "write out, lse and gradients to this safetensors file");
  verb->add_option("--gradient", options->gradient_seed,
                   "seed of the output gradient, where the case gives none")
      ->check(in_range(ranges::kSeeds));
  add_global_options(*verb, globals);
  return {verb, [options, &globals] { run(*options, globals); }};
}

}  // namespace fovea::cli
