// fovea inspect: what attention does on a text, in one page.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/options.h"
#include "cli/verbs.h"
#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/base/paths.h"
#include "fovea/checkpoint/checkpoint_state.h"
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
  bool text_given = false, hard = false, reach = false;
};

std::string text_of(const InspectVerbOptions& options) {
  require<UsageError>(options.text_given == options.text_file.empty(), "inspect",
                      "exactly one of --text and --text-file must be given");
  return options.text_given ? options.text : read_input(options.text_file);
}

/// The last components of `path`; of a checkpoint the run's name is one of them.
std::string last_names(const std::filesystem::path& path, size_t count) {
  std::vector<std::string> names;
  for (const auto& name : std::filesystem::absolute(path).lexically_normal())
    if (!name.empty() && name != "/") names.push_back(name.string());
  if (!names.empty() && step_of_name(names.back())) count += 2;
  names.erase(names.begin(), names.end() - static_cast<ptrdiff_t>(std::min(count, names.size())));
  return fmt::format("{}", fmt::join(names, "/"));
}

/// A short title for each model: as many names of its path as tell it from the others.
std::vector<std::string> titles_of(const std::vector<std::string>& models) {
  std::vector<std::string> titles;
  for (const std::string& model : models) {
    const auto is_shared = [&](size_t count) {
      return std::ranges::count(models, last_names(model, count), [&](const std::string& other) {
               return last_names(other, count);
             }) > 1;
    };
    size_t count = 1;
    while (is_shared(count) && last_names(model, count) != last_names(model, count + 1)) ++count;
    titles.push_back(last_names(model, count));
  }
  return titles;
}

void require_different(const std::vector<std::string>& models) {
  for (size_t i = 1; i < models.size(); ++i) {
    for (size_t j = 0; j < i; ++j)
      require<UsageError>(!same_place(find_model(models[i]), find_model(models[j])), "inspect",
                          "expected different models; '{}' and '{}' are one", models[j], models[i]);
  }
}

struct ModelReach {
  std::string model;
  Reach reach;
};

InspectModel inspect_folder(const std::string& name, std::string shown, const ModelChange& change,
                            const std::string& text, const InspectVerbOptions& options,
                            std::vector<ModelReach>& reaches) {
  LoadedModel loaded = open_changed(find_model(name), change);
  if (options.hard) loaded.model.compute().focus = FocusMode::hard;
  for (const auto* added : {&change.adapters, &change.attention, &change.rope})
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
  require<InputError>(!text.empty(), "inspect",
                      "expected a text of at least a character; got none");
  require_different(options.models);
  const std::filesystem::path folder = options.out;
  make_folders(folder);  // before the work whose result it takes
  InspectResult result{.text = text};
  std::vector<ModelReach> reaches;
  const std::vector<std::string> titles = titles_of(options.models);
  for (size_t i = 0; i < titles.size(); ++i)
    result.models.push_back(
        inspect_folder(options.models[i], titles[i], {}, text, options, reaches));
  // The last model once more with its change: what is new stands beside what was there.
  if (options.change.active())
    result.models.push_back(inspect_folder(options.models.back(), titles.back(), options.change,
                                           text, options, reaches));
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
  Option* text = verb.parser->add_option("--text", options->text, "the text");
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
  verb.run = [options, text, &globals] {
    options->text_given = text->count() > 0;
    run(*options, globals);
  };
  return verb;
}

}  // namespace fovea::cli
