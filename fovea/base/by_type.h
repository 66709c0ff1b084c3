// ByType: values of any types, one of each, which only those know who name the type.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <any>
#include <map>
#include <typeindex>

namespace fovea {

class ByType {
 public:
  /// The value of type T; made with its defaults at first use.
  template <class T>
  T& of() {
    std::any& value = values_[typeid(T)];
    if (!value.has_value()) value = T{};
    return *std::any_cast<T>(&value);
  }

  /// Null where of<T>() made none.
  template <class T>
  const T* find() const {
    const auto found = values_.find(typeid(T));
    return found != values_.end() ? std::any_cast<T>(&found->second) : nullptr;
  }

 private:
  std::map<std::type_index, std::any> values_;
};

}  // namespace fovea
