// The line with which a worker tells an error, and the error that the line tells.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "fovea/base/error.h"

namespace fovea {

std::string worker_error_line(const Error& error);
/// Throws the error of that type, with `before` in front of its message.
[[noreturn]] void throw_worker_error(const nlohmann::ordered_json& line, const std::string& before);

}  // namespace fovea
