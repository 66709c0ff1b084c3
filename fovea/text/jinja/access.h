// Attributes, items, slices and methods of values.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "fovea/text/jinja/value.h"

namespace fovea::jinja {

/// object.name: a method or attribute, else the item of that name, else undefined. A Fault where
/// the object itself is undefined.
Value get_attribute(const Value& object, const std::string& name, Budget& budget);
/// object[key]: the item, else the attribute of that name, else undefined.
Value get_item(const Value& object, const Value& key, Budget& budget);
/// object[start:stop:step]; absent bounds are none.
Value get_slice(const Value& object, const Value& start, const Value& stop, const Value& step,
                Budget& budget);

/// The method bound to the object; nothing where its type has no method of that name. A Fault for
/// methods of Python that are not supported.
std::optional<Value> find_method(const Value& object, const std::string& name);

}  // namespace fovea::jinja
