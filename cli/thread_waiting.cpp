// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "cli/thread_waiting.h"

#include <alloca.h>
#include <unistd.h>

namespace fovea::cli {
namespace {

// About 10 us: longer than the gap between two parallel regions of a step, shorter than a time
// slice by far.
char spin_count[] = "GOMP_SPINCOUNT=3000";

#define FOVEA_BEFORE_ALL __attribute__((no_sanitize("address", "undefined", "thread")))

FOVEA_BEFORE_ALL bool sets(const char* entry, const char* name) {
  while (*name != '\0' && *entry == *name) ++entry, ++name;
  return *name == '\0' && *entry == '=';
}

FOVEA_BEFORE_ALL bool equals(const char* a, const char* b) {
  while (*a != '\0' && *a == *b) ++a, ++b;
  return *a == *b;
}

/// Whether the program will only print a text, which starts no threads.
FOVEA_BEFORE_ALL bool asks_for_help(int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (equals(argv[i], "--help") || equals(argv[i], "-h") || equals(argv[i], "--version"))
      return true;
  return argc < 2;
}

/// Runs before the constructors of any library, which take most of the program's start: only
/// system calls and memory of its own are there.
FOVEA_BEFORE_ALL void start_again(int argc, char** argv, char** environment) {
  if (asks_for_help(argc, argv)) return;
  size_t entries = 0;
  for (; environment[entries] != nullptr; ++entries) {
    if (sets(environment[entries], "GOMP_SPINCOUNT")) return;
    if (sets(environment[entries], "OMP_WAIT_POLICY")) return;
  }
  auto** const more = static_cast<char**>(alloca((entries + 2) * sizeof(char*)));
  for (size_t i = 0; i < entries; ++i) more[i] = environment[i];
  more[entries] = spin_count;
  more[entries + 1] = nullptr;
  ::execve("/proc/self/exe", argv, more);  // where this fails the program just goes on
}

using BeforeAll = void (*)(int, char**, char**);
__attribute__((section(".preinit_array"), used)) const BeforeAll before_all = start_again;

}  // namespace

void limit_spinning() {}  // before_all has done it

}  // namespace fovea::cli
