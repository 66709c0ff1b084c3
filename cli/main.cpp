// The `fovea` program.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <climits>
#include <cstring>

#include "cli/program.h"

namespace {

// A library that torch brings ends the process, before main(), where the current folder is gone.
// The loader calls what stands in .preinit_array before the constructors of all libraries.
void require_working_folder() {
  char folder[PATH_MAX];
  if (::getcwd(folder, sizeof(folder)) != nullptr) return;
  constexpr char kMessage[] =
      "fovea: [working folder] expected the current folder to exist; got one that is gone, or that "
      "must not be read; change to another (cd)\n";
  constexpr int kWrongUsage = 2;
  if (::write(STDERR_FILENO, kMessage, std::strlen(kMessage)) < 0) ::_exit(kWrongUsage);
  ::_exit(kWrongUsage);
}

[[gnu::section(".preinit_array"), gnu::used]] void (*const before_all)() = require_working_folder;

}  // namespace

int main(int argc, char** argv) { return fovea::cli::run_program(argc, argv); }
