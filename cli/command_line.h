// Verbs and options of the command line: a thin face over CLI11, whose headers cost seconds a unit.
//
// Members are named as in CLI11 and return the option, so calls chain. The parser owns its options
// and subcommands; pointers stay valid as long as the command they came from.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace fovea::cli {

/// Check of an option's value: `find_error` returns a message, or "" for a good value; the help
/// shows `description`.
struct ValueCheck {
  std::function<std::string(std::string&)> find_error;
  std::string description;
  std::string name;
};

class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option* required();
  /// The help shows the value that the variable has now.
  Option* capture_default_str();
  Option* check(const ValueCheck& check);
  /// One argument holds several values, with this character between them.
  Option* delimiter(char between);
  Option* type_name(const std::string& name);
  /// One value a use: the last use counts, or all do.
  Option* take_last();
  Option* take_all();
  /// How often the user gave it.
  size_t count() const;

 private:
  CLI::Option* option_;
};

class Command {
 public:
  explicit Command(CLI::App& parser) : parser_(parser) {}
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  Command* add_subcommand(std::string_view name, std::string_view help);
  Option* add_option(std::string_view name, std::string& value, std::string_view help);
  Option* add_option(std::string_view name, int64_t& value, std::string_view help);
  Option* add_option(std::string_view name, double& value, std::string_view help);
  Option* add_option(std::string_view name, std::vector<std::string>& value, std::string_view help);
  Option* add_option(std::string_view name, std::vector<int64_t>& value, std::string_view help);
  Option* add_option(std::string_view name, std::vector<double>& value, std::string_view help);
  Option* add_flag(std::string_view name, bool& value, std::string_view help);
  void require_subcommand(int count);
  void footer(std::string_view text);
  /// A footer that is made when the help is printed.
  void footer(std::function<std::string()> make);

  std::string name() const;
  /// True where the user named this verb.
  bool parsed() const;
  const CLI::App& parser() const { return parser_; }

 private:
  template <class T>
  Option* add(std::string_view name, T& value, std::string_view help);

  CLI::App& parser_;
  std::deque<Command> subcommands_;
  std::deque<Option> options_;
};

}  // namespace fovea::cli
