// The `fovea` program as a function: parses the command line, runs a verb, turns errors into exit
// codes.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/program.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <filesystem>
#include <optional>
#include <sstream>

#include "cli/eval_workers.h"
#include "cli/ranks.h"
#include "cli/thread_waiting.h"
#include "cli/verbs.h"
#include "cli/worker.h"
#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"
#include "fovea/base/paths.h"
#include "fovea/base/printable.h"
#include "fovea/runtime/interrupt.h"
#include "fovea/runtime/machine.h"
#include "fovea/runtime/memory_shortage.h"

namespace {

constexpr const char* kDescription =
    "Fovea trains, compares and scores language models with focused attention.\n"
    "\n"
    "  fovea compare recipes/demo.yaml                 standard against Focal attention, with a "
    "report\n"
    "  fovea train RECIPE model.layers=8               one model; run again to resume\n"
    "  fovea retrofit MODEL --with focus --text FILE --out DIR   another attention on a pretrained "
    "model\n"
    "  fovea eval runs/NAME --text FILE                bits per byte and perplexity of a text\n"
    "  fovea generate runs/NAME \"Once upon\"           text from a model; fovea chat runs/NAME\n"
    "  fovea serve runs/NAME                           OpenAI's routes, and a page in the browser\n"
    "  fovea inspect runs/A runs/B --text TEXT         what attention does on a text, side by "
    "side\n"
    "  fovea reproduce                                 the papers' claims: what holds here, and "
    "how to "
    "run each\n"
    "  fovea plan RECIPE                               parameters, memory, time and rules of "
    "thumb, before the run\n"
    "  fovea VERB --help                               what each verb and recipe key does";

using fovea::cli::error_prefix, fovea::cli::write_stderr;

/// Descriptors 0 to 2 that the caller closed are opened on the null device: else the next file that
/// is opened, a lock or a checkpoint, would receive what is printed. The opposite direction makes
/// reading stdin and writing stdout the errors that they are.
void open_closed_streams() {
  constexpr int directions[] = {O_WRONLY, O_RDONLY, O_RDWR};
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    // open() takes the lowest number that is free, which is this one.
    if (::fcntl(descriptor, F_GETFD) < 0) ::open("/dev/null", directions[descriptor]);
  }
}

/// oneDNN keeps what it compiles for each shape of product, 1,024 shapes unless told: questions and
/// prompts of ever new lengths let a process grow by some 0.2 GB. What runs again and again needs
/// few.
void limit_compiled_products() {
  constexpr int kKeepTheUsersOwn = 0;
  ::setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64", kKeepTheUsersOwn);
}

/// A closed pipe and a file-size limit become IoErrors with exit code 1, like a full disk.
void ignore_output_signals() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

int report(const fovea::Error& error, bool json) {
  if (json) {
    write_stderr(
        fmt::format("{{\"error\": \"{}\", \"exit_code\": {}}}\n", error.kind(), error.exit_code()));
  }
  // Names and values of files stand in messages: they must not act on the terminal, nor fill it.
  constexpr size_t kMostBytes = 4000;
  write_stderr(fmt::format("{}{}\n", error_prefix(),
                           fovea::shortened(fovea::printable_line(error.what()), kMostBytes)));
  return error.exit_code();
}

bool saved_for_later(const fovea::cli::Verb& verb) {
  const int signal = fovea::stop_signal();
  return verb.resumes && (signal == SIGTERM || signal == SIGHUP);
}

int run_verb(const fovea::cli::Verb& verb, const fovea::cli::Globals& globals) {
  try {
    verb.run();
    return 0;
  } catch (const fovea::cli::RanksEnded& end) {
    return end.exit_code;
  } catch (const fovea::Interrupted& error) {
    const int code = report(error, globals.json);
    return saved_for_later(verb) ? 0 : code;
  } catch (const fovea::Error& error) {
    return report(error, globals.json);
  } catch (const std::filesystem::filesystem_error& error) {
    return report(
        fovea::IoError(fmt::format("[file] cannot use '{}': {}; {}", error.path1().string(),
                                   error.code().message(), fovea::remedy_of(error.code().value()))),
        globals.json);
  } catch (const std::exception& error) {
    const std::optional<std::string> shortage = fovea::memory_shortage();
    if (shortage) {
      return report(fovea::MemoryError(fmt::format("[memory] not enough memory ({}); {}", *shortage,
                                                   verb.memory_remedy)),
                    globals.json);
    }
    write_stderr(fmt::format(
        "{}[internal] {}\nThis is a bug; please report it with the command and this message.\n",
        error_prefix(), fovea::printable(error.what())));
    return 1;
  }
}

int print_help(const std::string& text) {
  try {
    fovea::cli::print(text);
    return 0;
  } catch (const fovea::Error& error) {
    return report(error, false);
  }
}

}  // namespace

int fovea::cli::run_program(int argc, char** argv) {
  open_closed_streams();
  ::prctl(PR_SET_NAME, "fovea");  // what started itself again would be "exe" to `top` and `pkill`
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (first == "train" || first == "compare" || first == "eval" || first == "generate" ||
      first == "chat" || first == "retrofit" || first == "serve" || first == kEvalWorkerWord)
    fovea::cli::limit_spinning();
  // Passes of one size after the other: what one frees serves the next.
  if (first == "train" || first == "compare" || first == "retrofit" || first == "eval" ||
      first == kWorkerWord || first == kEvalWorkerWord)
    keep_freed_memory();
  ignore_output_signals();
  limit_compiled_products();
  if (first == kWorkerWord) {
    Globals quiet;
    return run_verb({.run =
                         [&] {
                           run_worker_process({argv + 2, argv + argc});
                         },
                     .resumes = true},
                    quiet);
  }
  CLI::App app(kDescription, "fovea");
  app.set_version_flag("--version", fovea::code_version());
  app.get_formatter()->column_width(34);
  app.require_subcommand(0, 1);
  fovea::cli::Globals globals;
  if (first == kEvalWorkerWord) {
    const int code =
        run_verb({.run = [&] { globals.eval_workers = become_eval_worker(argc, argv); }}, globals);
    if (code != 0) return code;
  }
  globals.arguments.assign(argv + std::min(argc, 1), argv + argc);
  fovea::cli::Command root(app);
  std::vector<fovea::cli::Verb> verbs{
      fovea::cli::add_train_verb(root, globals),    fovea::cli::add_compare_verb(root, globals),
      fovea::cli::add_eval_verb(root, globals),     fovea::cli::add_generate_verb(root, globals),
      fovea::cli::add_chat_verb(root, globals),     fovea::cli::add_export_verb(root, globals),
      fovea::cli::add_data_verb(root, globals),     fovea::cli::add_checkpoint_verb(root, globals),
      fovea::cli::add_adapter_verb(root, globals),  fovea::cli::add_attention_verb(root, globals),
      fovea::cli::add_plan_verb(root, globals),     fovea::cli::add_inspect_verb(root, globals),
      fovea::cli::add_info_verb(root, globals),     fovea::cli::add_completion_verb(root, globals),
      fovea::cli::add_retrofit_verb(root, globals), fovea::cli::add_reproduce_verb(root, globals),
      fovea::cli::add_serve_verb(root, globals)};
  if (argc > 1 && argv[1][0] != '-') {
    std::vector<std::string> names;
    names.reserve(verbs.size());
    for (const auto& verb : verbs) names.push_back(verb.parser->name());
    if (std::find(names.begin(), names.end(), argv[1]) == names.end()) {
      write_stderr(fmt::format("{}unknown verb '{}'{}; known: {}; 'fovea --help' explains them\n",
                               error_prefix(), argv[1], fovea::did_you_mean(argv[1], names),
                               fmt::join(names, ", ")));
      return 2;
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream help, refusal;
    const bool asked_for_help = app.exit(error, help, refusal) == 0;
    if (asked_for_help) return print_help(help.str());
    write_stderr(error_prefix() + refusal.str());
    return 2;
  }
  for (const auto& verb : verbs)
    if (verb.parser->parsed()) return run_verb(verb, globals);
  return print_help(app.help());
}
