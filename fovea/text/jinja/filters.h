// The one table of filters, which several files fill.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <string_view>

#include "fovea/text/jinja/arguments.h"
#include "fovea/text/jinja/builtins.h"

namespace fovea::jinja {

using Filter = std::function<Value(const Value&, ArgumentReader&, Budget&)>;
using FilterTable = std::map<std::string_view, Filter>;

/// Filters of lists and dicts: join, map, selectattr, sort and the like.
void add_sequence_filters(FilterTable& table);

}  // namespace fovea::jinja
