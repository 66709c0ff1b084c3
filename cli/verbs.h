// The verbs of the `fovea` program: each adds its options to the parser and returns what to run.
//
// Results go to stdout, progress and log to stderr; `--json` prints machine-readable results,
// `--quiet` no progress, but warnings.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "fovea/report/progress.h"

namespace fovea::cli {

struct Globals {
  bool json = false;
  bool quiet = false;
  std::vector<std::string> arguments;  ///< of the program, its name left out
  int64_t eval_workers = 0;            ///< above 0: this process is one of them (eval_workers.h)
};

/// A verb: its parser and the function that runs it (set by add_*_verb).
struct Verb {
  Command* parser = nullptr;
  std::function<void()> run;
  /// It saves when SIGTERM (a cluster that ends its job) or SIGHUP (a terminal that closes) comes
  /// and goes on when started again: then the exit code is 0. Ctrl-C gives 130 everywhere.
  bool resumes = false;
  /// Advice to a user whose memory is short.
  std::string memory_remedy = "take a smaller model, or a machine with more memory";
};

Verb add_train_verb(Command& app, Globals& globals);
Verb add_compare_verb(Command& app, Globals& globals);
Verb add_retrofit_verb(Command& app, Globals& globals);
Verb add_reproduce_verb(Command& app, Globals& globals);
Verb add_eval_verb(Command& app, Globals& globals);
Verb add_generate_verb(Command& app, Globals& globals);
Verb add_chat_verb(Command& app, Globals& globals);
Verb add_serve_verb(Command& app, Globals& globals);
Verb add_export_verb(Command& app, Globals& globals);
Verb add_adapter_verb(Command& app, Globals& globals);
Verb add_data_verb(Command& app, Globals& globals);
Verb add_checkpoint_verb(Command& app, Globals& globals);
Verb add_attention_verb(Command& app, Globals& globals);
Verb add_inspect_verb(Command& app, Globals& globals);
Verb add_plan_verb(Command& app, Globals& globals);
Verb add_info_verb(Command& app, Globals& globals);

Verb add_completion_verb(Command& app, Globals& globals);

/// Adds --json and --quiet.
void add_global_options(Command& verb, Globals& globals);

/// A progress display on stderr: a bar on a terminal, plain lines elsewhere, nothing when quiet.
ProgressOptions stderr_progress(const Globals& globals);

/// "fovea: ", in red where stderr is a terminal that shows colours and NO_COLOR is not set.
std::string error_prefix();

/// Writes bytes to stdout; IoError if that fails (a closed pipe, a full disk).
void print(std::string_view text);

/// Writes bytes to stderr; what cannot be written is lost, and the work goes on.
void write_stderr(std::string_view text);

/// A line "warning: ..." on stderr, also under --quiet.
void warn(std::string_view text);

/// Columns of stdout's terminal; `fallback` elsewhere.
int64_t stdout_width(int64_t fallback = 120);

/// The key listing of the recipe, for --help.
std::string recipe_keys_help();
/// The same with the keys of `compare`.
std::string compare_keys_help();

}  // namespace fovea::cli
