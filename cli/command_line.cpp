// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line.h"

#include <CLI/CLI.hpp>

namespace fovea::cli {
Option* Option::required() {
  option_->required();
  return this;
}

Option* Option::capture_default_str() {
  option_->capture_default_str();
  return this;
}

Option* Option::check(const ValueCheck& check) {
  option_->check(CLI::Validator(check.find_error, check.description, check.name));
  return this;
}

Option* Option::delimiter(char between) {
  option_->delimiter(between);
  return this;
}

Option* Option::type_name(const std::string& name) {
  option_->type_name(name);
  return this;
}

Option* Option::take_last() {
  option_->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  return this;
}

Option* Option::take_all() {
  option_->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  return this;
}

size_t Option::count() const { return option_->count(); }

Command* Command::add_subcommand(std::string_view name, std::string_view help) {
  return &subcommands_.emplace_back(*parser_.add_subcommand(std::string(name), std::string(help)));
}

template <class T>
Option* Command::add(std::string_view name, T& value, std::string_view help) {
  CLI::Option* option = parser_.add_option(std::string(name), value, std::string(help));
  // Of a list, CLI11 would take the texts that follow too: `--temperature 0 "PROMPT"`.
  if (name.starts_with('-')) option->allow_extra_args(false);
  return &options_.emplace_back(option);
}

Option* Command::add_option(std::string_view name, std::string& value, std::string_view help) {
  return add(name, value, help);
}

Option* Command::add_option(std::string_view name, int64_t& value, std::string_view help) {
  return add(name, value, help);
}

Option* Command::add_option(std::string_view name, double& value, std::string_view help) {
  return add(name, value, help);
}

Option* Command::add_option(std::string_view name, std::vector<std::string>& value,
                            std::string_view help) {
  return add(name, value, help);
}

Option* Command::add_option(std::string_view name, std::vector<int64_t>& value,
                            std::string_view help) {
  return add(name, value, help);
}

Option* Command::add_option(std::string_view name, std::vector<double>& value,
                            std::string_view help) {
  return add(name, value, help);
}

Option* Command::add_flag(std::string_view name, bool& value, std::string_view help) {
  return &options_.emplace_back(parser_.add_flag(std::string(name), value, std::string(help)));
}

void Command::require_subcommand(int count) { parser_.require_subcommand(count); }

void Command::footer(std::string_view text) { parser_.footer(std::string(text)); }

void Command::footer(std::function<std::string()> make) { parser_.footer(std::move(make)); }

std::string Command::name() const { return parser_.get_name(); }

bool Command::parsed() const { return parser_.parsed(); }

}  // namespace fovea::cli
