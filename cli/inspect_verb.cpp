// fovea inspect: what attention does on a text, in one page.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "cli/options.h"
#include "cli/verbs.h"
#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/compare/inspect.h"
#include "fovea/eval/reach.h"
#include "fovea/report/table.h"

namespace fovea::cli {
namespace {

struct InspectVerbOptions {
  std::vector<std::string> models;
  std::string text, text_file, out = "inspect";
  ModelChange change;
  InspectOptions inspect;
  bool hard = false, reach = false;
};

std::string text_of(const InspectVerbOptions& options) {
  require<UsageError>(options.text.empty() != options.text_file.empty(), "inspect",
                      "exactly one of --text and --text-file must be given");
  return options.text.empty() ? read_input(options.text_file) : options.text;
}

struct ModelReach {
  std::string model;
  Reach reach;
};

InspectModel inspect_folder(const std::string& name, const ModelChange& change,
                            const std::string& text, const InspectVerbOptions& options,
                            std::vector<ModelReach>& reaches) {
  LoadedModel loaded = open_changed(find_model(name), change);
  if (options.hard) loaded.model.compute().focus = FocusMode::hard;
  std::string shown = name;
  for (const auto* added : {&change.adapters, &change.attention})
    for (const std::string& one : *added) shown += " + " + one;
  if (options.reach) {
    std::vector<int32_t> tokens = loaded.tokenizer->encode(text);
    tokens.resize(std::min(tokens.size(), static_cast<size_t>(options.inspect.tokens)));
    reaches.push_back({shown, measure_reach(loaded.model, tokens)});
  }
  return inspect_model(shown, loaded.model, *loaded.tokenizer, text, options.inspect);
}

void print_summary(const InspectResult& result, const std::filesystem::path& folder) {
  TextTable table({{.title = "model", .shrinks = true},
                   {.title = "layer", .right = true},
                   {.title = "entropy", .right = true},
                   {.title = "temperature", .right = true},
                   {.title = "first token", .right = true},
                   {.title = "settings", .shrinks = true}});
  const auto mean = [](const std::vector<double>& values) {
    double sum = 0.0;
    for (const double value : values) sum += value;
    return sum / static_cast<double>(std::max<size_t>(values.size(), 1));
  };
  for (const InspectModel& model : result.models) {
    for (const InspectLayer& layer : model.layers) {
      table.add_row({model.name, std::to_string(layer.layer),
                     fmt::format("{:.3f}", mean(layer.entropy)),
                     fmt::format("{:.3f}", layer.temperature),
                     fmt::format("{:.1f} %", 100.0 * mean(layer.sink_mass)), layer.pipeline});
    }
  }
  print(table.render(stdout_width()));
  print(fmt::format("\npage: {}\n", (folder / "inspect.html").string()));
}

/// Distances that are powers of two, and what arrives from there.
void print_reach(const std::vector<ModelReach>& reaches) {
  TextTable table(
      {{.title = "looks back", .shrinks = true},
       {.title = "farthest", .right = true},
       {.title = "of", .right = true},
       {.title = "change of the last state by one token, distance: share", .shrinks = true}});
  for (const auto& [model, reach] : reaches) {
    std::string shares;
    int64_t next = 1;
    for (const ReachPoint& point : reach.points) {
      if (point.distance < next) continue;
      shares += fmt::format("{}{}: {:.2g}", shares.empty() ? "" : ", ", point.distance,
                            point.change > kLeastChange ? point.change : 0.0);
      next = 2 * point.distance;
    }
    table.add_row({model, std::to_string(reach.farthest), std::to_string(reach.tokens), shares});
  }
  print("\n" + table.render(stdout_width()));
}

void run(const InspectVerbOptions& options, const Globals& globals) {
  const std::string text = text_of(options);
  const std::filesystem::path folder = options.out;
  make_folders(folder);  // before the work whose result it takes
  InspectResult result{.text = text};
  std::vector<ModelReach> reaches;
  for (const std::string& name : options.models)
    result.models.push_back(inspect_folder(name, {}, text, options, reaches));
  // The last model once more with its change: what is new stands beside what was there.
  if (!options.change.adapters.empty() || !options.change.attention.empty())
    result.models.push_back(
        inspect_folder(options.models.back(), options.change, text, options, reaches));
  const InspectModel& first = result.models.front();
  if (!first.maps.empty()) result.tokens = std::ssize(first.maps.front().tokens);
  write_file(folder / "inspect.html", inspect_html(result));
  write_file(folder / "groups.json", groups_json(result).dump(2) + "\n");
  nlohmann::ordered_json json = inspect_json(result);
  for (const ModelReach& of : reaches)
    json["reach"].push_back({{"model", of.model}, {"measured", of.reach.to_json()}});
  write_file(folder / "inspect.json", json.dump(2) + "\n");
  if (globals.json) {
    print(json.dump(2) + "\n");
    return;
  }
  print_summary(result, folder);
  if (!reaches.empty()) print_reach(reaches);
}

}  // namespace

Verb add_inspect_verb(Command& app, Globals& globals) {
  Verb verb;
  verb.parser =
      app.add_subcommand("inspect", "What attention does on a text: maps, kernels, groups");
  auto options = std::make_shared<InspectVerbOptions>();
  verb.parser
      ->add_option("MODEL", options->models, "run, checkpoint or model folders, side by side")
      ->required();
  add_change_options(*verb.parser, options->change);
  verb.parser->add_option("--text", options->text, "the text");
  verb.parser->add_option("--text-file", options->text_file, "a file with the text");
  verb.parser->add_option("--tokens", options->inspect.tokens, "of the text, at most")
      ->capture_default_str()
      ->check(in_range({1, 4096}));
  verb.parser->add_option("--layers", options->inspect.layers, "layers of the maps, from 0; all")
      ->check(in_range(ranges::kLayerIndices))
      ->delimiter(',');
  verb.parser->add_option("--heads", options->inspect.heads, "heads of the maps, from 0; all")
      ->check(in_range({0, 1 << 17}))
      ->delimiter(',');
  verb.parser->add_flag("--hard", options->hard, "Focus prunes as at inference");
  verb.parser->add_flag("--reach", options->reach,
                        "measure how far back the last token of the text looks: the receptive "
                        "field of all layers");
  verb.parser
      ->add_option("--out", options->out, "folder of inspect.html, inspect.json, groups.json")
      ->capture_default_str();
  add_global_options(*verb.parser, globals);
  verb.run = [options, &globals] { run(*options, globals); };
  return verb;
}

}  // namespace fovea::cli
