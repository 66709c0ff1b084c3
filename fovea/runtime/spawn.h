// A program started as a child process: the one place that calls posix_spawn.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace fovea {

/// The path of the program that runs, for a child that is the same program.
inline constexpr const char* kThisProgram = "/proc/self/exe";

struct SpawnRequest {
  std::vector<std::string> arguments;       ///< [0] is the path of the program
  std::vector<std::string> variables = {};  ///< NAME=value: before this process's own ones
  /// Descriptors that become its streams; -1 = this process's own stream.
  int in = -1, out = -1, err = -1;
  /// A process group of its own: Ctrl-C at a terminal reaches the parent alone, which decides.
  bool own_group = false;
};

/// Returns the child's process id. IoError says `where`.
pid_t spawn(std::string_view where, const SpawnRequest& request);

}  // namespace fovea
