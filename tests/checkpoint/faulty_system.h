// System calls that fail, fall short or end the process, on request: this program's own `write`,
// `rename`, ... stand in front of those of the C library.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fovea::testing {

struct Fault {
  enum class Kind {
    none,
    kill,        ///< the process ends at call number `at`, before it acts (kill -9)
    error,       ///< call number `at` fails with `error`
    full,        ///< calls from number `at` on that need space fail with ENOSPC: a full disk
    read_only,   ///< calls from number `at` on that change anything fail with EROFS
    short_calls  ///< reads and writes take half of what is asked; every third one fails with EINTR
  };
  Kind kind = Kind::none;
  int at = 0;  ///< counted from 1 over open, read, write, fsync, rename, mkdir, unlink, rmdir
  int error = 0;
};

/// Counts and disturbs the calls of this process from now on. Meant for a child process.
void arm(const Fault& fault);
/// Calls since arm().
int calls_made();

}  // namespace fovea::testing
