// Error types of Fovea. The *type* is API; the message is for people.
//
// Every message reads "[where] expected ...; got ...", followed by the remedy. The library throws;
// it never prints, exits or aborts. `exit_code()` is what the command line returns: 1 failed while
// running, 2 wrong usage, recipe or input, 130 interrupted.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace fovea {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
  virtual int exit_code() const { return 1; }
  /// The name of the type, for `--json` errors and tests: "ConfigError".
  virtual std::string_view kind() const { return "Error"; }
};

#define FOVEA_ERROR_TYPE(Name, code)                         \
  class Name : public Error {                                \
   public:                                                   \
    using Error::Error;                                      \
    int exit_code() const override { return code; }          \
    std::string_view kind() const override { return #Name; } \
  }

/// Wrong command line.
FOVEA_ERROR_TYPE(UsageError, 2);
/// A recipe, spec or config that is malformed, impossible or contradicts itself.
FOVEA_ERROR_TYPE(ConfigError, 2);
/// Data of the user that cannot be used: text, JSONL, token files, case files.
FOVEA_ERROR_TYPE(InputError, 2);
/// Tensors whose shapes, dtypes or devices do not fit together.
FOVEA_ERROR_TYPE(ShapeError, 2);
/// A combination or path that has no meaning or no implementation; the message names both parts.
FOVEA_ERROR_TYPE(UnsupportedError, 2);
/// A checkpoint or model folder that is missing, damaged or of another model.
FOVEA_ERROR_TYPE(CheckpointError, 2);
/// A run folder that another process uses.
FOVEA_ERROR_TYPE(LockedError, 2);
/// The operating system refused: disk full, read-only, permission.
FOVEA_ERROR_TYPE(IoError, 1);
/// Loss or gradients that stopped being numbers.
FOVEA_ERROR_TYPE(NumericalError, 1);
/// Not enough memory; the message says what was asked for and what to lower.
FOVEA_ERROR_TYPE(MemoryError, 1);
/// Ctrl-C or SIGTERM, after everything was saved.
FOVEA_ERROR_TYPE(Interrupted, 130);

#undef FOVEA_ERROR_TYPE

/// Throws E("[where] message") with fmt arguments: `fail<ShapeError>("attention", "q must be ...;
/// got {}", n)`.
template <class E, class... Args>
[[noreturn]] void fail(std::string_view where, fmt::format_string<Args...> message,
                       Args&&... args) {
  throw E(fmt::format("[{}] {}", where, fmt::format(message, std::forward<Args>(args)...)));
}

/// Throws like fail() unless `condition`. Arguments are formatted only on failure.
template <class E, class... Args>
void require(bool condition, std::string_view where, fmt::format_string<Args...> message,
             Args&&... args) {
  if (!condition) fail<E>(where, message, std::forward<Args>(args)...);
}

}  // namespace fovea
