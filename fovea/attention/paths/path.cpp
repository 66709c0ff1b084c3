// The list of paths.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/paths/path.h"

#include <fmt/format.h>

#include "fovea/attention/backend.h"

namespace fovea {

std::span<const AttentionPath> attention_paths() {
  static const AttentionPath paths[] = {
      fused_decode_path(),   fused_path(),         mixing_decode_path(), mixing_path(),
      grouped_decode_path(), planned_there_path(), grouped_path(),       listed_path(),
      parts_path(),          selected_path(),      sums_path(),          torch_sdpa_path(),
      reference_path(),
  };
  return paths;
}

std::optional<std::string> AttentionPath::reason_against(const AttentionCall& call) const {
  const kernels::Backend* const backend = backend_of(call.q.device());
  if (runs_on != nullptr && (backend == nullptr || !runs_on(*backend)))
    return fmt::format("the {} kernels run on CPU; got {}", enum_name(name),
                       c10::DeviceTypeName(call.q.device().type()));
  return why_not(call);
}

}  // namespace fovea
