// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "cli/verbs.h"
#include "fovea/base/error.h"
#include "fovea/compare/config.h"
#include "fovea/config/reader.h"
#include "fovea/train/recipe.h"

namespace fovea::cli {
namespace {

/// False where the system refuses; errno says why.
bool write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(descriptor, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    text.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

std::string listing(const std::vector<FieldLine>& lines, const std::string& prefix) {
  std::string out;
  for (const FieldLine& line : lines) {
    out += fmt::format("  {}{}  {} = {}\n      {}\n", prefix, line.key, line.type, line.initial,
                       line.help);
  }
  return out;
}

}  // namespace

void add_global_options(Command& verb, Globals& globals) {
  verb.add_flag("--json", globals.json, "print the result as JSON");
  verb.add_flag("-q,--quiet", globals.quiet, "no progress on stderr, warnings alone");
}

ProgressOptions stderr_progress(const Globals& globals) {
  ProgressOptions options;
  options.mode = globals.quiet             ? ProgressOptions::Mode::quiet
                 : ::isatty(STDERR_FILENO) ? ProgressOptions::Mode::bar
                                           : ProgressOptions::Mode::lines;
  options.sink = write_stderr;
  options.width = [] { return terminal_width(STDERR_FILENO); };
  return options;
}

std::string error_prefix() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string_view(value == nullptr ? "" : value);
  };
  const bool colour = ::isatty(STDERR_FILENO) && variable("NO_COLOR").empty() &&
                      !variable("TERM").empty() && variable("TERM") != "dumb";
  return colour ? "\033[1;31mfovea:\033[0m " : "fovea: ";
}

void print(std::string_view text) {
  if (write_all(STDOUT_FILENO, text)) return;
  fail<IoError>("stdout", "cannot write: {}; check where the output goes", std::strerror(errno));
}

void write_stderr(std::string_view text) {
  // Its reader may have gone, its disk may be full: neither is a reason to end a run.
  static_cast<void>(write_all(STDERR_FILENO, text));
}

void warn(std::string_view text) { write_stderr(fmt::format("warning: {}\n", text)); }

int64_t stdout_width(int64_t fallback) { return terminal_width(STDOUT_FILENO, fallback); }

std::string recipe_keys_help() {
  return "\nRecipe keys (in the YAML file, or as overrides key=value):\n" +
         listing(list_fields<Recipe>(), "");
}

std::string compare_keys_help() {
  return recipe_keys_help() + "\nKeys of the comparison:\n" +
         listing(list_fields<CompareConfig>(), "compare.") +
         "  compare.variants.N.set  map of recipe keys = {}\n      what this variant changes: "
         "'set: {model.layers: 8}'\n";
}

}  // namespace fovea::cli
