// fovea serve: a model behind OpenAI's routes, and a page.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/options.h"
#include "cli/verbs.h"
#include "fovea/serve/server.h"

namespace fovea::cli {
namespace {

constexpr const char* kHelp =
    "\nTwo commands to a conversation in the browser:\n"
    "  fovea serve runs/mine                      # then open http://127.0.0.1:8000\n"
    "  curl http://127.0.0.1:8000/v1/completions -d '{\"prompt\": \"Once\", \"max_tokens\": "
    "20}'\n\n"
    "Requests share each step of the model, and each has the text that it has alone. Programs for\n"
    "OpenAI's API take the address as base URL: http://127.0.0.1:8000/v1 (any key, unless\n"
    "--api-key-file or the environment's FOVEA_API_KEY sets one).\n\n"
    "Several attentions on one base:\n"
    "  fovea serve BASE --adapter focal=runs/focal --adapter focus=runs/focus\n"
    "A request chooses by its field model: the base's name, focal or focus.\n\n"
    "Only this machine can connect unless --host says otherwise. TLS is the job of a reverse\n"
    "proxy. SIGTERM and Ctrl-C let running requests finish; a second one ends at once.\n"
    "docs/serving.md has the routes, metrics, limits, and a systemd unit.\n";

constexpr double kMostSeconds = 86400;

struct ServeVerbOptions {
  std::string model, name, key_file;
  ModelOptions how;
  FieldOptions fields;
  serve::ServerOptions server;
  double header_seconds = 10, request_seconds = 0, shutdown_seconds = 30;
};

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

/// The last part of a path that names something.
std::string name_of_path(const std::string& path) {
  std::filesystem::path clean = std::filesystem::path(path).lexically_normal();
  if (!clean.has_filename()) clean = clean.parent_path();
  const std::string name = clean.stem() == clean.filename() || clean.extension() != ".gguf"
                               ? clean.filename().string()
                               : clean.stem().string();
  return name.empty() || name == "." || name == ".." ? "model" : name;
}

/// NAME=FOLDER, unless that is a folder itself.
struct NamedAdapter {
  std::string name, folder;
};
std::optional<NamedAdapter> named_adapter(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == text.npos || std::filesystem::exists(text)) return std::nullopt;
  require<UsageError>(equals > 0 && equals + 1 < text.size(), "--adapter",
                      "expected FOLDER or NAME=FOLDER; got {}", text);
  return NamedAdapter{text.substr(0, equals), text.substr(equals + 1)};
}

/// Keys of a file, one a line, or of the environment.
std::vector<std::string> read_keys(const std::string& file) {
  const char* environment = std::getenv("FOVEA_API_KEY");
  std::istringstream lines(!file.empty() ? read_input(file)
                                         : std::string(environment == nullptr ? "" : environment));
  std::vector<std::string> keys;
  for (std::string line; std::getline(lines, line);) {
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == line.npos || line[begin] == '#') continue;
    keys.push_back(line.substr(begin, line.find_last_not_of(" \t\r") + 1 - begin));
  }
  require<UsageError>(file.empty() || !keys.empty(), "--api-key-file",
                      "expected a file with a key on a line of its own; {} has none", file);
  return keys;
}

/// The models that requests can name, with their facts.
struct Models {
  std::vector<EngineModel> models;
  std::vector<serve::ModelFacts> facts;

  void add(std::string name, std::string parent, const std::string& root, LoadedModel loaded) {
    facts.push_back(serve::facts_of(loaded));
    facts.back().root = root;
    models.push_back({.name = std::move(name), .loaded = std::move(loaded), .parent = parent});
  }
};

/// --focus and --focus-top-k change each model that has Focus; one must.
void choose_focus_of_all(Models& all, const ModelOptions& how) {
  const auto has_focus = [](const EngineModel& model) { return model.loaded.model.has("focus"); };
  const bool none = std::ranges::none_of(all.models, has_focus);
  for (EngineModel& model : all.models)
    if (none || has_focus(model))
      choose_focus(model.loaded.model, how.focus, how.focus_top_k, "--focus-top-k");
}

Models open_models(const ServeVerbOptions& options, Progress& log) {
  ModelOptions base = options.how;
  base.focus = ModelOptions().focus;
  base.focus_top_k = 0;
  std::vector<NamedAdapter> named;
  std::erase_if(base.change.adapters, [&](const std::string& text) {
    const std::optional<NamedAdapter> one = named_adapter(text);
    if (one) named.push_back(*one);
    return one.has_value();
  });
  const std::string name = options.name.empty() ? name_of_path(options.model) : options.name;
  Models all;
  log.message(fmt::format("loading {} as {}", options.model, name));
  all.add(name, "", options.model, open_model(options.model, base));
  for (const NamedAdapter& adapter : named) {
    log.message(fmt::format("loading {} as {}", adapter.folder, adapter.name));
    ModelOptions changed = base;
    changed.change.adapters.push_back(adapter.folder);
    all.add(adapter.name, name, adapter.folder, open_model(options.model, changed));
  }
  choose_focus_of_all(all, options.how);
  return all;
}

void run(const ServeVerbOptions& options, const Globals& globals) {
  Progress log(stderr_progress(globals));
  EngineOptions how;
  options.fields.apply(how);
  how.check();
  serve::ServerOptions server = options.server;
  server.routes.api_keys = read_keys(options.key_file);
  server.routes.deadline = milliseconds_of(options.request_seconds);
  server.header_time = milliseconds_of(options.header_seconds);
  server.shutdown_time = milliseconds_of(options.shutdown_seconds);
  Models all = open_models(options, log);
  Engine engine(std::move(all.models), how);
  const auto backend = serve::engine_backend(engine, std::move(all.facts));
  if (!globals.quiet)
    server.log = [](std::string_view line) { write_stderr(fmt::format("{}\n", line)); };
  server.routes.log = [](std::string_view line) { warn(line); };
  server.ready = [&](const std::string& address) {
    if (globals.json) {
      print(nlohmann::ordered_json{{"address", address}}.dump() + "\n");
      return;
    }
    log.message(fmt::format("serving at {}; Ctrl-C ends it", address));
    for (const ServedModel& model : engine.models())
      if (!model.why_one_by_one.empty())
        log.message(
            fmt::format("{}: texts do not share steps: {}", model.name, model.why_one_by_one));
  };
  if (serve::run_server(*backend, server) == SIGINT) fail<Interrupted>("serve", "ended by Ctrl-C");
}

}  // namespace

Verb add_serve_verb(Command& app, Globals& globals) {
  auto options = std::make_shared<ServeVerbOptions>();
  Command* verb = app.add_subcommand(
      "serve", "a model behind OpenAI's routes, and a page that shows it attend");
  verb->add_option("model", options->model, "run folder, checkpoint, model folder or .gguf file")
      ->required();
  verb->add_option("--name", options->name, "of the model, for requests [the folder's]");
  verb->add_option("--host", options->server.host,
                   "address to listen on; 0.0.0.0 or :: = all of this machine")
      ->capture_default_str();
  verb->add_option("--port", options->server.port, "0 = a free one")
      ->capture_default_str()
      ->check(in_range({0, 65535}));
  verb->add_option("--api-key-file", options->key_file,
                   "a file with keys, one a line, of which a request must bear one");
  verb->add_option("--allow-origin", options->server.routes.origins,
                   "web pages of this origin may ask, as https://example.org; * = of all (may be "
                   "given several times)")
      ->take_all();
  verb->add_option("--header-timeout", options->header_seconds,
                   "seconds that a client has for the header of a request")
      ->capture_default_str()
      ->check(in_range({0.1, kMostSeconds}));
  verb->add_option("--request-timeout", options->request_seconds,
                   "seconds after which a request ends; 0 = never")
      ->capture_default_str()
      ->check(in_range({0, kMostSeconds}));
  verb->add_option("--shutdown-timeout", options->shutdown_seconds,
                   "seconds that running requests have after SIGTERM or Ctrl-C")
      ->capture_default_str()
      ->check(in_range({0, kMostSeconds}));
  verb->add_option("--connections", options->server.connections, "open at once, at most")
      ->capture_default_str()
      ->check(in_range({1, 1 << 16}));
  verb->add_option("--body-bytes", options->server.body_bytes, "of a request, at most")
      ->capture_default_str()
      ->check(in_range({1024, 1 << 30}));
  options->fields.add<EngineOptions>(*verb);
  add_model_options(*verb, options->how);
  add_global_options(*verb, globals);
  verb->footer(kHelp);
  return {.parser = verb,
          .run = [options, &globals] { run(*options, globals); },
          .memory_remedy =
              "lower --context or --sequences, or take --dtype bfloat16, --weights "
              "q8_0 or a smaller model"};
}

}  // namespace fovea::cli
