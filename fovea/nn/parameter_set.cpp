// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/parameter_set.h"

#include <algorithm>

#include "fovea/base/error.h"
#include "fovea/nn/mechanisms/mechanism.h"

namespace fovea {
namespace {

constexpr std::string_view kOrigins[] = {"all", "base", "added"};

bool is_origin(std::string_view name) {
  return std::ranges::find(kOrigins, name) != std::end(kOrigins);
}

std::vector<std::string_view> legal_names() {
  std::vector<std::string_view> names(std::begin(kOrigins), std::end(kOrigins));
  for (const LearnedMechanism& m : learned_mechanisms()) names.push_back(m.name);
  names.push_back(kLoraMechanism);
  return names;
}

}  // namespace

ParameterSet ParameterSet::parse(std::string_view text, std::string_view key) {
  ParameterSet set;
  const std::vector<std::string_view> legal = legal_names();
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('+', begin), text.size());
    const std::string_view name = text.substr(begin, end - begin);
    require<ConfigError>(std::ranges::find(legal, name) != legal.end(), "recipe",
                         "'{}' must be one of {}, or several joined by '+'; got '{}'", key,
                         fmt::join(legal, ", "), text);
    set.names_.emplace_back(name);
    begin = end + 1;
  }
  std::ranges::sort(set.names_);
  const auto twice = std::ranges::unique(set.names_);
  set.names_.erase(twice.begin(), twice.end());
  return set;
}

bool ParameterSet::contains(const Parameter& parameter) const {
  const bool added = parameter.origin == Parameter::Origin::added;
  return std::ranges::any_of(names_, [&](const std::string& name) {
    return name == "all" || name == (added ? "added" : "base") ||
           (added && name == parameter.mechanism);
  });
}

bool ParameterSet::names(std::string_view name) const {
  return std::ranges::find(names_, name) != names_.end();
}

std::vector<std::string> ParameterSet::mechanisms() const {
  std::vector<std::string> found;
  for (const std::string& name : names_)
    if (!is_origin(name)) found.push_back(name);
  return found;
}

}  // namespace fovea
