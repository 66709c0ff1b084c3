// The filters, tests and global functions that templates may use.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ctime>
#include <string>
#include <string_view>

#include "fovea/text/jinja/value.h"

namespace fovea::jinja {

/// `refused`: Jinja has it and Fovea does not.
enum class Support { supported, refused, unknown };

Support filter_support(std::string_view name);
/// input | name(arguments). A Fault for a name without support.
Value apply_filter(const std::string& name, const Value& input, const Arguments& arguments,
                   Budget& budget);

Support test_support(std::string_view name);
/// input is name(arguments).
bool apply_test(const std::string& name, const Value& input, const Arguments& arguments,
                Budget& budget);

/// Thrown by raise_exception(): the template refuses the conversation.
class Refusal : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// range, namespace, dict, raise_exception, strftime_now; undefined for other names. `now` is what
/// strftime_now writes.
Value global_function(std::string_view name, const std::tm& now);

}  // namespace fovea::jinja
