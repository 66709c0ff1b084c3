// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/runtime/spawn.h"

#include <spawn.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "fovea/base/error.h"

namespace fovea {
namespace {

/// The form that C takes: pointers into `texts`, then null.
std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  out.reserve(texts.size() + 1);
  for (const std::string& text : texts) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

std::vector<std::string> environment(const std::vector<std::string>& first) {
  std::vector<std::string> all = first;
  for (char** variable = ::environ; *variable != nullptr; ++variable) all.emplace_back(*variable);
  return all;
}

}  // namespace

pid_t spawn(std::string_view where, const SpawnRequest& request) {
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  for (const auto& [from, to] :
       {std::pair{request.in, STDIN_FILENO}, std::pair{request.out, STDOUT_FILENO},
        std::pair{request.err, STDERR_FILENO}})
    if (from >= 0) ::posix_spawn_file_actions_adddup2(&actions, from, to);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  if (request.own_group) ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  const std::vector<std::string> variables = environment(request.variables);
  pid_t child = -1;
  const int refused = ::posix_spawn(&child, request.arguments.at(0).c_str(), &actions, &attributes,
                                    pointers(request.arguments).data(), pointers(variables).data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  require<IoError>(refused == 0, where, "cannot start '{}': {}", request.arguments[0],
                   std::strerror(refused));
  return child;
}

}  // namespace fovea
