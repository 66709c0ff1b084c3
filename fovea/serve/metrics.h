// The numbers of a server as Prometheus reads them, with vLLM's names where the meaning is the
// same.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "fovea/engine/statistics.h"

namespace fovea::serve {

/// Counts of the server itself.
struct HttpStatistics {
  int64_t connections = 0;                                        ///< now
  int64_t accepted_connections = 0;                               ///< since the start
  std::map<std::pair<std::string, int>, int64_t> responses = {};  ///< by route and status
};

/// Text format 0.0.4.
std::string metrics_text(const EngineStatistics& engine, const HttpStatistics& http,
                         const std::string& model);

}  // namespace fovea::serve
