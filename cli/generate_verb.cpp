// fovea generate: a model continues a prompt, or many.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>

#include "cli/interruption.h"
#include "cli/options.h"
#include "cli/prompts.h"
#include "cli/verbs.h"
#include "fovea/infer/generate.h"
#include "fovea/report/format.h"

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
    json["prompt"] = line.request.prompt;
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
  const std::vector<PromptLine> lines =
      read_prompts(options.prompts, settings.generate, settings.context, loaded);
  const std::vector<TextRequest> requests = requests_of(lines);
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
  InterruptGuard interrupt;
  leave_within_a_second(interrupt, globals, "[generate] interrupted");
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
    "for this line; in a .txt file it is the prompt itself, a .csv or .tsv file has columns prompt "
    "and id.\n"
    "Each gives one line of JSON, and the same text whatever --batch is.\n";

}  // namespace

Verb add_generate_verb(Command& app, Globals& globals) {
  auto options = std::make_shared<GenerateVerbOptions>();
  Command* verb = app.add_subcommand("generate", "continue a prompt: sampling, streaming, batches");
  verb->add_option("model", options->model, "run folder, checkpoint, model folder or .gguf file")
      ->required();
  Option* prompt = verb->add_option("prompt", options->prompt,
                                    "the text to continue; without it --file, or stdin");
  verb->add_option("--file", options->file, "read the prompt from this file (- = stdin)");
  verb->add_option("--prompts", options->prompts,
                   "JSONL, .txt, .csv or .tsv file of prompts (- = stdin)");
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
