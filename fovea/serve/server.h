// The server: HTTP on one thread, routes, and an orderly end.
//
// Each connection is a coroutine on one thread, so a stream holds no thread. While an answer is
// written, the connection is read too: a client that went away frees its slot within one step.
// Routes that read long texts run on one thread beside it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "fovea/serve/backend.h"
#include "fovea/serve/routes.h"

namespace fovea::serve {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int64_t port = 8000;  ///< 0 = a free one
  RouteOptions routes = {};

  int64_t connections = 2048;                     ///< open at once; more wait
  int64_t header_bytes = 16 << 10;                ///< of a request
  int64_t body_bytes = 4 << 20;                   ///< of a request
  std::chrono::milliseconds header_time{10'000};  ///< from the first byte of a request
  std::chrono::milliseconds body_time{30'000};
  std::chrono::milliseconds idle_time{75'000};  ///< of a connection between requests
  /// A client that takes nothing of its answer for so long is dropped.
  std::chrono::milliseconds write_time{30'000};
  /// From the first SIGTERM or SIGINT until requests that still run end with an error.
  std::chrono::milliseconds shutdown_time{30'000};

  /// Told each line of the log; from any thread.
  std::function<void(std::string_view)> log = [](std::string_view) {};
  /// Told the port once the server listens.
  std::function<void(const std::string& address)> ready = [](const std::string&) {};
};

/// Serves until SIGTERM or SIGINT; a second one ends the process as usual. Returns the first
/// signal. At the end the backend is stopped. IoError where it cannot listen.
int run_server(Backend& backend, const ServerOptions& options);

}  // namespace fovea::serve
