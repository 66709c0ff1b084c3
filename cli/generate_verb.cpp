// fovea generate: a model continues a prompt, or many.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>

#include "cli/options.h"
#include "cli/verbs.h"
#include "fovea/infer/generate.h"
#include "fovea/report/format.h"
#include "fovea/runtime/interrupt.h"

namespace fovea::cli {
namespace {

using Json = nlohmann::ordered_json;

struct GenerateVerbOptions {
  std::string model, prompt, file, prompts, batch;
  double cache_gb = 0.0;
  bool prompt_given = false, echo = false, unordered = false;
  ModelOptions how;
  FieldOptions fields;
};

/// What every prompt starts from; a line of --prompts may change it.
struct Settings {
  GenerateOptions generate;
  ContextOptions context;
};

struct PromptLine {
  std::string prompt;
  Json id;
  GenerateOptions options;
};

std::string without_last_newline(std::string text) {
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

std::string the_prompt(const GenerateVerbOptions& options) {
  if (options.prompt_given) return options.prompt;
  if (!options.file.empty()) return without_last_newline(read_input(options.file));
  require<UsageError>(::isatty(STDIN_FILENO) == 0, "generate",
                      "expected a prompt: as an argument, with --file FILE, or on stdin");
  return without_last_newline(read_input("-"));
}

/// "a list of texts", "a number", "a text": what JSON must give for a key with this initial value.
std::string_view wanted_type(const Json& initial) {
  if (initial.is_array()) return "a list of texts";
  return initial.is_number() ? "a number" : initial.type_name();
}

bool has_wanted_type(const Json& value, const Json& initial) {
  if (initial.is_number()) return value.is_number();
  if (!initial.is_array()) return value.type() == initial.type();
  return value.is_array() &&
         std::all_of(value.begin(), value.end(), [](const Json& v) { return v.is_string(); });
}

/// JSON tells texts from numbers, which ConfigNode does not keep.
void require_types(const Json& line, const std::string& place, const GenerateOptions& defaults) {
  require<InputError>(line.is_object(), place,
                      "expected a JSON object with the key 'prompt'; got another value");
  require<InputError>(line.contains("prompt") && line["prompt"].is_string(), place,
                      "expected the key 'prompt' with text; got {}",
                      line.contains("prompt") ? line["prompt"].dump() : "no such key");
  const Json known = fields_to_json(defaults);
  for (const auto& [key, initial] : known.items()) {
    const auto given = line.find(key);
    require<InputError>(given == line.end() || has_wanted_type(*given, initial), place,
                        "expected '{}' to be {}; got {}", key, wanted_type(initial),
                        given == line.end() ? "" : given->dump());
  }
}

/// A line is an object with "prompt", maybe "id", and keys of GenerateOptions.
PromptLine parse_line(std::string_view line, const std::string& place,
                      const GenerateOptions& defaults) {
  ConfigNode node = parse_json(line, place);
  const Json json = Json::parse(line);
  require_types(json, place, defaults);
  PromptLine result{.prompt = json["prompt"].get<std::string>(),
                    .id = json.value("id", Json()),
                    .options = defaults};
  std::erase_if(node.fields,
                [](const ConfigField& f) { return f.first == "prompt" || f.first == "id"; });
  node.place = place;
  read_fields(node, result.options);
  return result;
}

/// The sentence of an error that names another place, or none.
std::string_view without_place(std::string_view message) {
  const size_t end = message.starts_with('[') ? message.find("] ") : message.npos;
  return end == message.npos ? message : message.substr(end + 2);
}

/// All lines are read and checked before the first is answered. A line of a .txt file is a prompt
/// as it stands.
std::vector<PromptLine> read_prompts(const std::string& path, const Settings& settings,
                                     const LoadedModel& loaded) {
  const std::string text = read_input(path);
  const bool plain = path.ends_with(".txt");
  std::vector<PromptLine> lines;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string place = fmt::format("{}:{}", path == "-" ? "stdin" : path, number);
    if (plain && line.ends_with('\r')) line.remove_suffix(1);
    lines.push_back(plain ? PromptLine{.prompt = std::string(line), .options = settings.generate}
                          : parse_line(line, place, settings.generate));
    try {
      lines.back().options.check();
      check_prompt(loaded.model, *loaded.tokenizer, lines.back().prompt, settings.context);
    } catch (const Error& error) {
      fail<InputError>(place, "{}", without_place(error.what()));
    }
  }
  require<InputError>(!lines.empty(), path, "expected at least one line with a prompt; got none");
  return lines;
}

void note_end(const GenerateResult& r, const LoadedModel& loaded, const ContextOptions& context,
              Progress& log) {
  log.message(
      fmt::format("{} tokens in {:.2f} s ({:.1f} tokens/s) after {} of the prompt in "
                  "{:.2f} s; ended: {}",
                  r.tokens, r.seconds, r.tokens_per_second(), r.prompt_tokens, r.prompt_seconds,
                  enum_name(r.reason)));
  if (r.reason != FinishReason::context) return;
  const int64_t trained = loaded.config.context;
  log.message(
      fmt::format("the text reached the last of {} positions (trained: {}); --context N goes "
                  "on past it, --when-full slide forgets the older half",
                  context.context == 0 ? trained : context.context, trained));
}

void warn_of_length(const LoadedModel& loaded, const ContextOptions& context, Progress& log) {
  if (context.context <= loaded.config.context) return;
  log.warning(fmt::format("positions from {} on were never trained; RoPE goes on with theta {}",
                          loaded.config.context, loaded.config.rope.theta));
}

/// Texts at once, as --batch says it.
int64_t texts_at_once(const GenerateVerbOptions& options) {
  BatchOptions batch;
  if (options.batch.empty()) return batch.batch;
  const char* const end = options.batch.data() + options.batch.size();
  const auto [stop, error] = std::from_chars(options.batch.data(), end, batch.batch);
  require<UsageError>(
      error == std::errc{} && stop == end && batch.batch >= 1 && batch.batch <= BatchOptions::kMost,
      "--batch", "expected 1 to {} texts at once; got '{}'; a file of prompts is --prompts FILE",
      BatchOptions::kMost, options.batch);
  return batch.batch;
}

/// Prints answers as lines of JSON, and says on stderr how far the batch is.
class Answers {
 public:
  Answers(const std::vector<PromptLine>& lines, Progress& progress)
      : lines_(lines), progress_(progress) {}

  void print_line(size_t i, const GenerateResult& r) {
    if (r.reason == FinishReason::interrupted) return;
    const PromptLine& line = lines_[i];
    Json json{{"index", i}};
    if (!line.id.is_null()) json["id"] = line.id;
    json["prompt"] = line.prompt;
    json.update(r.to_json());
    print(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
    ++printed_;
  }
  void show(const BatchProgress& now) {
    now_ = now;
    progress_.update({.label = "generating",
                      .done = static_cast<double>(now.finished),
                      .total = static_cast<double>(lines_.size()),
                      .tokens_per_second = static_cast<double>(now.tokens) / seconds()});
  }
  /// After the last one.
  void finish() {
    progress_.finish();
    progress_.message(fmt::format("{} prompts, {} tokens in {:.2f} s ({:.1f} tokens/s); caches {}",
                                  lines_.size(), now_.tokens, seconds(),
                                  static_cast<double>(now_.tokens) / seconds(),
                                  bytes_text(static_cast<double>(now_.most_cache_bytes))));
    require<Interrupted>(printed_ == lines_.size(), "generate",
                         "interrupted; {} of {} prompts are answered", printed_, lines_.size());
  }

 private:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  const std::vector<PromptLine>& lines_;
  Progress& progress_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  size_t printed_ = 0;
  BatchProgress now_;
};

void run_prompts(const GenerateVerbOptions& options, const Settings& settings,
                 const LoadedModel& loaded, Progress& progress,
                 const std::atomic<bool>* interrupt) {
  using Order = BatchOptions::Order;
  const std::vector<PromptLine> lines = read_prompts(options.prompts, settings, loaded);
  std::vector<TextRequest> requests;
  requests.reserve(lines.size());
  for (const PromptLine& line : lines)
    requests.push_back({.prompt = line.prompt, .options = line.options});
  Answers answers(lines, progress);
  const BatchOptions batch{.batch = texts_at_once(options),
                           .order = options.unordered ? Order::finished : Order::requests,
                           .cache_bytes = static_cast<int64_t>(options.cache_gb * 1e9),
                           .progress = [&](const BatchProgress& now) { answers.show(now); }};
  progress.message(
      fmt::format("{} prompts, up to {} at once: caches of at most {}", lines.size(), batch.batch,
                  bytes_text(static_cast<double>(batch_cache_bytes(
                      loaded.model, *loaded.tokenizer, requests, settings.context, batch)))));
  generate_texts(
      loaded.model, *loaded.tokenizer, requests, settings.context,
      [&](size_t i, const GenerateResult& r) { answers.print_line(i, r); }, interrupt, batch);
  answers.finish();
}

void run_one(const GenerateVerbOptions& options, const Settings& settings,
             const LoadedModel& loaded, const Globals& globals, Progress& log,
             const std::atomic<bool>* interrupt) {
  const std::string prompt = the_prompt(options);
  const TextStream stream = globals.json ? TextStream{} : TextStream{print};
  if (options.echo && stream) stream(repair_utf8(prompt));
  const GenerateResult r = generate_text(loaded.model, *loaded.tokenizer, prompt, settings.generate,
                                         stream, settings.context, interrupt);
  if (globals.json) {
    Json json{{"prompt", prompt}};
    json.update(r.to_json());
    json["seed"] = settings.generate.seed;
    print(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  } else {
    print("\n");
  }
  note_end(r, loaded, settings.context, log);
  require<Interrupted>(r.reason != FinishReason::interrupted, "generate",
                       "interrupted after {} tokens", r.tokens);
}

void run(const GenerateVerbOptions& options, const Globals& globals) {
  require<UsageError>(
      options.prompt_given + !options.file.empty() + !options.prompts.empty() <= 1, "generate",
      "expected one of a prompt, --file and --prompts; got several; leave all but one out");
  texts_at_once(options);
  require<UsageError>(
      !options.prompts.empty() ||
          (options.batch.empty() && !options.unordered && options.cache_gb == 0.0),
      "generate",
      "expected --batch, --unordered and --cache-gb beside --prompts FILE; got them "
      "without it; add it, or leave them out");
  Settings settings;
  options.fields.apply(settings.generate);
  options.fields.apply(settings.context);
  settings.generate.check();
  const LoadedModel loaded = open_model(options.model, options.how);
  Progress log(stderr_progress(globals));
  const InterruptGuard interrupt;
  warn_of_length(loaded, settings.context, log);
  if (options.prompts.empty()) {
    run_one(options, settings, loaded, globals, log, interrupt.flag());
  } else {
    run_prompts(options, settings, loaded, log, interrupt.flag());
  }
}

constexpr const char* kHelp =
    "\nExamples:\n"
    "  fovea generate runs/mine \"Once upon a time\" --temperature 0.7 --top-p 0.95\n"
    "  echo \"def main\" | fovea generate runs/mine --max-tokens 60 --stop $'\\n\\n'\n"
    "  fovea generate runs/mine --prompts prompts.jsonl --batch 8 > answers.jsonl\n"
    "\n"
    "The text goes to stdout as it comes, numbers go to stderr. One newline at the end of a file "
    "or of\n"
    "stdin is not part of the prompt.\n"
    "A line of --prompts is {\"prompt\": \"...\"}, with \"id\" and any of the sampling keys "
    "(max_tokens, ...)\n"
    "for this line; in a .txt file it is the prompt itself. Each gives one line of JSON, and the "
    "same text\n"
    "whatever --batch is.\n";

}  // namespace

Verb add_generate_verb(Command& app, Globals& globals) {
  auto options = std::make_shared<GenerateVerbOptions>();
  Command* verb = app.add_subcommand("generate", "continue a prompt: sampling, streaming, batches");
  verb->add_option("model", options->model, "run folder, checkpoint, model folder or .gguf file")
      ->required();
  Option* prompt = verb->add_option("prompt", options->prompt,
                                    "the text to continue; without it --file, or stdin");
  verb->add_option("--file", options->file, "read the prompt from this file (- = stdin)");
  verb->add_option("--prompts", options->prompts, "JSONL or .txt file of prompts (- = stdin)");
  verb->add_option("--batch", options->batch,
                   "texts written at once, 1 to 1024 (default 8); a finished one makes room");
  verb->add_flag("--unordered", options->unordered, "answers come as they finish");
  verb->add_option("--cache-gb", options->cache_gb,
                   "GB that the caches of texts at once may take; 0 = half of the memory")
      ->check(in_range({.least = 0.0, .most = 1e6}));
  verb->add_flag("--echo", options->echo, "print the prompt before its continuation");
  options->fields.add<GenerateOptions>(*verb);
  options->fields.add<ContextOptions>(*verb);
  add_model_options(*verb, options->how);
  add_global_options(*verb, globals);
  verb->footer(kHelp);
  return {.parser = verb,
          .run =
              [options, prompt, &globals] {
                options->prompt_given = prompt->count() > 0;
                run(*options, globals);
              },
          .memory_remedy = "lower --context, or take --dtype bfloat16 or a smaller model"};
}

}  // namespace fovea::cli
