// fovea reproduce: the papers' claims with their verdicts; a claim's small twin, and its numbers
// beside the paper's.
//
// A twin is a command of this program (`fovea compare recipes/...`), which runs as a process of its
// own: there is no second form of any verb, and what an interrupted run left is taken up again.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>
#include <tuple>

#include "cli/verbs.h"
#include "fovea/base/error.h"
#include "fovea/report/claims.h"
#include "fovea/report/table.h"
#include "fovea/runtime/interrupt.h"
#include "fovea/runtime/spawn.h"

namespace fovea::cli {
namespace {

struct ReproduceOptions {
  std::vector<std::string> ids;
  std::vector<std::string> overrides;
  std::string root = ".", model, text, data;
  bool print_commands = false, markdown = false;
};

nlohmann::ordered_json claim_json(const DecidedClaim& decided) {
  const Claim& claim = decided.claim;
  nlohmann::ordered_json out = {{"id", decided.id()},
                                {"place", claim.place},
                                {"claim", claim.claim},
                                {"paper", claim.paper},
                                {"verdict", std::string(enum_name(decided.verdict))},
                                {"reason", decided.reason},
                                {"effect", effect_text(decided)},
                                {"here", claim.here},
                                {"command", claim.command},
                                {"result", claim.result},
                                {"paper_recipe", claim.paper_recipe}};
  if (!decided.evidence || decided.evidence->is_benchmark()) return out;
  const PairedTest& test = decided.evidence->test;
  out["difference"] = test.mean;
  out["pairs"] = test.pairs;
  const auto put = [&](const char* key, double value) {
    out[key] = std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
  };
  put("low", test.interval.low);
  put("high", test.interval.high);
  put("corrected_p", decided.evidence->corrected_p());
  return out;
}

/// recipes/... where the caller is, beside an installed program, or above one that was built.
std::string find_recipe(const std::string& word) {
  if (!word.starts_with("recipes/") || std::filesystem::exists(word)) return word;
  std::error_code unknown;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", unknown);
  const std::filesystem::path bin = program.parent_path();
  for (const char* folder : {"../share/fovea", "../..", "../../.."}) {
    const std::filesystem::path there = (bin / folder / word).lexically_normal();
    if (std::filesystem::exists(there)) return there.string();
  }
  fail<IoError>("reproduce",
                "cannot find '{}' here or beside the program; run it in the source tree", word);
}

/// The commands of a twin, which stand behind each other with "&&".
std::vector<std::string> commands_of(const std::string& twin) {
  std::vector<std::string> commands;
  constexpr std::string_view kBetween = " && ";
  size_t begin = 0;
  for (size_t at; (at = twin.find(kBetween, begin)) != std::string::npos;
       begin = at + kBetween.size())
    commands.push_back(twin.substr(begin, at - begin));
  commands.push_back(twin.substr(begin));
  return commands;
}

/// The words of one command behind "fovea", with $M, $TEXT and $DATA replaced.
std::vector<std::string> words_of(const std::string& command, const ReproduceOptions& options) {
  std::vector<std::string> words;
  std::istringstream stream(command.substr(command.find(' ') + 1));
  for (std::string word; stream >> word;) {
    for (const auto& [name, value, option] : {std::tuple("$TEXT", &options.text, "--text"),
                                              std::tuple("$DATA", &options.data, "--data"),
                                              std::tuple("$M", &options.model, "--model")}) {
      const size_t at = word.find(name);
      if (at == std::string::npos) continue;
      require<ConfigError>(!value->empty(), "reproduce", "this twin needs {} PATH: {}", option,
                           command);
      word.replace(at, std::strlen(name), *value);
    }
    words.push_back(find_recipe(word));
  }
  const bool trains = words.front() != "eval";
  if (trains) words.insert(words.end(), options.overrides.begin(), options.overrides.end());
  return words;
}

/// The status of a finished child. A signal to end that only this process got is passed on once;
/// the terminal's Ctrl-C reaches both.
int wait_for(pid_t child) {
  InterruptGuard interrupt;
  bool told = false;
  for (;;) {
    int status = 0;
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) return status;
    require<IoError>(ended == 0 || errno == EINTR, "reproduce", "cannot wait for a twin: {}",
                     std::strerror(errno));
    if (*interrupt.flag() && !told && stop_signal() != SIGINT) ::kill(child, stop_signal());
    told = told || *interrupt.flag();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

/// Runs this program with `words`. Error where it fails; Interrupted where a signal ended it.
/// With `--json` its standard output goes to standard error, so that ours stays one document.
void run_program_again(const std::vector<std::string>& words, const std::string& command,
                       const Globals& globals) {
  std::vector<std::string> arguments{kThisProgram};
  arguments.insert(arguments.end(), words.begin(), words.end());
  if (globals.quiet) arguments.emplace_back("--quiet");
  const int status = wait_for(
      spawn("reproduce", {.arguments = arguments, .out = globals.json ? STDERR_FILENO : -1}));
  require<Interrupted>(!stop_signal() && !WIFSIGNALED(status) && WEXITSTATUS(status) != 130,
                       "reproduce", "'{}' was stopped; the same command goes on", command);
  require<InputError>(WEXITSTATUS(status) == 0, "reproduce", "'{}' ended with exit code {}",
                      command, WEXITSTATUS(status));
}

std::string listing(const std::vector<DecidedClaim>& claims, int64_t width) {
  TextTable table({{.title = "claim"},
                   {.title = "place", .importance = 40},
                   {.title = "says", .shrinks = true, .importance = 30},
                   {.title = "paper", .importance = 20},
                   {.title = "here", .importance = 60},
                   {.title = "verdict"},
                   {.title = "twin", .importance = 50}});
  for (const DecidedClaim& c : claims) {
    table.add_row({c.id(), c.claim.place, c.claim.claim, c.claim.paper, effect_text(c),
                   std::string(enum_name(c.verdict)), c.claim.command.empty() ? "" : "yes"});
  }
  return table.render(width);
}

std::string details(const std::vector<DecidedClaim>& claims) {
  std::string out;
  for (const DecidedClaim& c : claims) {
    out += fmt::format("\n{} ({}): {}\n", c.id(), c.claim.place, c.claim.claim);
    const auto line = [&](std::string_view name, const std::string& text) {
      if (!text.empty()) out += fmt::format("  {:<12} {}\n", name, text);
    };
    line("paper", c.claim.paper);
    line("here", effect_text(c));
    line("measured on", c.claim.here);
    line("verdict", std::string(enum_name(c.verdict)));
    line("reason", c.reason);
    line("note", c.claim.note);
    line("twin", c.claim.command);
    line("result", c.claim.result);
    line("paper size", c.claim.paper_recipe);
  }
  return out;
}

/// Runs the twins of `claims`, each command once; gives the claims decided by the new results.
std::vector<DecidedClaim> run_twins(const std::vector<ClaimFile>& files,
                                    const std::vector<DecidedClaim>& claims,
                                    const ReproduceOptions& options, const Globals& globals) {
  std::set<std::string> done;
  std::vector<DecidedClaim> out;
  for (const DecidedClaim& c : claims) {
    if (c.claim.command.empty()) continue;
    const std::vector<std::string> commands = commands_of(c.claim.command);
    for (const std::string& command : commands)
      (void)words_of(command, options);  // before the first
    for (const std::string& command : commands) {
      if (!done.insert(command).second) continue;
      if (!globals.quiet) write_stderr(fmt::format("running: {}\n", command));
      run_program_again(words_of(command, options), command, globals);
    }
    const auto file = std::ranges::find(files, c.seed, &ClaimFile::seed);
    out.push_back(c.claim.output.empty() ? c
                                         : decide(*file, c.claim, options.root, c.claim.output));
  }
  require<ConfigError>(!done.empty(), "reproduce", "'{}' has no small twin yet; {}",
                       claims.front().id(),
                       claims.front().claim.paper_recipe.empty()
                           ? "docs/findings/claims.md says what is missing"
                           : "at the paper's size: " + claims.front().claim.paper_recipe);
  return out;
}

std::string side_by_side(const std::vector<DecidedClaim>& fresh, int64_t width) {
  TextTable table({{.title = "claim"},
                   {.title = "says", .shrinks = true, .importance = 30},
                   {.title = "paper"},
                   {.title = "ours, this run"},
                   {.title = "verdict of this run"}});
  for (const DecidedClaim& c : fresh) {
    table.add_row(
        {c.id(), c.claim.claim, c.claim.paper, effect_text(c),
         fmt::format("{}{}", enum_name(c.verdict), c.reason.empty() ? "" : ": " + c.reason)});
  }
  std::string out = table.render(width);
  for (const DecidedClaim& c : fresh) {
    if (!c.claim.paper_recipe.empty())
      out += fmt::format("\n{} at the paper's size: {}", c.id(), c.claim.paper_recipe);
  }
  return out + "\n";
}

void run(const ReproduceOptions& options, const Globals& globals) {
  const std::vector<ClaimFile> files = known_claims();
  const std::vector<DecidedClaim> all = decide_all(files, options.root);
  if (options.markdown) {
    print(claims_markdown(files, all));
    return;
  }
  std::vector<DecidedClaim> chosen;
  for (const std::string& id : options.ids)
    for (DecidedClaim& claim : claims_named(all, id)) chosen.push_back(std::move(claim));
  const bool runs = !options.ids.empty() && !options.print_commands;
  const std::vector<DecidedClaim> shown = runs ? run_twins(files, chosen, options, globals)
                                          : options.ids.empty() ? all
                                                                : chosen;
  if (globals.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const DecidedClaim& claim : shown) list.push_back(claim_json(claim));
    print(list.dump(2) + "\n");
    return;
  }
  const int64_t width = stdout_width();
  print(runs                  ? "\n" + side_by_side(shown, width)
        : options.ids.empty() ? listing(all, width)
                              : details(chosen));
}

}  // namespace

Verb add_reproduce_verb(Command& app, Globals& globals) {
  auto options = std::make_shared<ReproduceOptions>();
  Command* verb = app.add_subcommand(
      "reproduce", "the papers' tables and figures: what holds here, and their small twins");
  verb->add_option("claims", options->ids,
                   "claims to run, for example mta/table-2; none: list them all");
  verb->add_option("--set", options->overrides,
                   "key=value for the twin's command, for example --set train.steps=20")
      ->take_all();
  verb->add_flag("--show", options->print_commands,
                 "print the claims with their commands and results; run nothing");
  verb->add_option("--model", options->model, "the pretrained model that a twin asks for ($M)");
  verb->add_option("--text", options->text, "the text that a twin asks for ($TEXT)");
  verb->add_option("--data", options->data, "the folder of tasks that a twin asks for ($DATA)");
  verb->add_option("--results", options->root,
                   "folder that holds docs/findings/results and benchmarks/results");
  verb->add_flag("--markdown", options->markdown, "print the page docs/findings/claims.md");
  add_global_options(*verb, globals);
  return {.parser = verb, .run = [options, &globals] { run(*options, globals); }, .resumes = true};
}

}  // namespace fovea::cli
