// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/runtime/choices.h"

#include <array>

namespace fovea {

std::span<const std::string_view> enum_names(DtypeChoice) {
  static constexpr std::array<std::string_view, 3> names = {"auto", "float32", "bfloat16"};
  return names;
}

std::span<const std::string_view> enum_names(DeviceChoice) {
  static constexpr std::array<std::string_view, 3> names = {"auto", "cpu", "cuda"};
  return names;
}

}  // namespace fovea
