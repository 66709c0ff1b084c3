// The `fovea` program as a function: parses the command line, runs a verb, turns errors into exit
// codes.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/program.h"

#include <unistd.h>

#include <csignal>
#include <iostream>
#include <optional>

#include "cli/thread_waiting.h"
#include "cli/verbs.h"
#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"
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
    "  fovea eval runs/NAME --text FILE                bits per byte and perplexity of a text\n"
    "  fovea generate runs/NAME \"Once upon\"           text from a model; fovea chat runs/NAME\n"
    "  fovea inspect runs/A runs/B --text TEXT         what attention does on a text, side by "
    "side\n"
    "  fovea plan RECIPE                               parameters, memory, time and rules of "
    "thumb, before the run\n"
    "  fovea VERB --help                               what each verb and recipe key does";

int report(const fovea::Error& error, bool json) {
  if (json) {
    std::cerr << fmt::format("{{\"error\": \"{}\", \"exit_code\": {}}}\n", error.kind(),
                             error.exit_code());
  }
  // Names and values of files stand in messages: they must not act on the terminal.
  std::cerr << fovea::cli::error_prefix() << fovea::printable_line(error.what()) << "\n";
  return error.exit_code();
}

int run(const fovea::cli::Verb& verb, const fovea::cli::Globals& globals) {
  try {
    verb.run();
    return 0;
  } catch (const fovea::Interrupted& error) {
    const int code = report(error, globals.json);
    return verb.resumes && fovea::stop_signal() == SIGTERM ? 0 : code;
  } catch (const fovea::Error& error) {
    return report(error, globals.json);
  } catch (const std::exception& error) {
    const std::optional<std::string> shortage = fovea::memory_shortage();
    if (shortage) {
      return report(fovea::MemoryError(fmt::format("[memory] not enough memory ({}); {}", *shortage,
                                                   verb.memory_remedy)),
                    globals.json);
    }
    std::cerr << fovea::cli::error_prefix() << "[internal] " << fovea::printable(error.what())
              << "\nThis is a bug; please report it with the command and this message.\n";
    return 1;
  }
}

}  // namespace

int fovea::cli::run_program(int argc, char** argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (first == "train" || first == "compare" || first == "eval" || first == "generate" ||
      first == "chat")
    fovea::cli::limit_spinning(argv);
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an IoError with exit code 1, not a silent end
  CLI::App app(kDescription, "fovea");
  app.set_version_flag("--version", fovea::code_version());
  app.get_formatter()->column_width(34);
  app.require_subcommand(0, 1);
  fovea::cli::Globals globals;
  std::vector<fovea::cli::Verb> verbs{
      fovea::cli::add_train_verb(app, globals),   fovea::cli::add_compare_verb(app, globals),
      fovea::cli::add_eval_verb(app, globals),    fovea::cli::add_generate_verb(app, globals),
      fovea::cli::add_chat_verb(app, globals),    fovea::cli::add_export_verb(app, globals),
      fovea::cli::add_data_verb(app, globals),    fovea::cli::add_checkpoint_verb(app, globals),
      fovea::cli::add_adapter_verb(app, globals), fovea::cli::add_attention_verb(app, globals),
      fovea::cli::add_plan_verb(app, globals),    fovea::cli::add_inspect_verb(app, globals),
      fovea::cli::add_info_verb(app, globals),    fovea::cli::add_completion_verb(app, globals)};
  if (argc > 1 && argv[1][0] != '-') {
    std::vector<std::string> names;
    names.reserve(verbs.size());
    for (const auto& verb : verbs) names.push_back(verb.parser->get_name());
    if (std::find(names.begin(), names.end(), argv[1]) == names.end()) {
      std::cerr << fovea::cli::error_prefix()
                << fmt::format("unknown verb '{}'{}; known: {}; 'fovea --help' explains them\n",
                               argv[1], fovea::did_you_mean(argv[1], names),
                               fmt::join(names, ", "));
      return 2;
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) std::cerr << fovea::cli::error_prefix();
    return app.exit(error) == 0 ? 0 : 2;
  }
  for (const auto& verb : verbs)
    if (verb.parser->parsed()) return run(verb, globals);
  std::cout << app.help();
  return 0;
}
