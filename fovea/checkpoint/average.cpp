// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/average.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/checkpoint/weight_files.h"
#include "fovea/config/reader.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

void require_same(const Json& first, const Json& other, const std::filesystem::path& folder) {
  const Json wanted = first.flatten(), there = other.flatten();
  for (const auto& [key, value] : wanted.items()) {
    const Json found = there.value(key, Json());
    require<CheckpointError>(found == value, folder.string(),
                             "is another model than the first: {} is {}, there {}; average models "
                             "of one configuration",
                             key, found.dump(), value.dump());
  }
}

}  // namespace

LoadedModel average_models(const std::vector<std::filesystem::path>& folders) {
  require<CheckpointError>(!folders.empty(), "average", "expected at least one model; got none");
  LoadedModel mean = load_model(folders.front());
  const Json config = fields_to_json(mean.config);
  const std::string tokenizer = mean.tokenizer->fingerprint();
  std::vector<at::Tensor> sums;
  for (const Parameter& p : mean.model.parameters().all())
    sums.push_back(p.value.detach().to(at::kDouble));
  for (size_t i = 1; i < folders.size(); ++i) {
    // One model at a time: memory does not grow with the number of folders.
    const LoadedModel other = load_model(folders[i]);
    require_same(config, fields_to_json(other.config), folders[i]);
    require<CheckpointError>(other.tokenizer->fingerprint() == tokenizer, folders[i].string(),
                             "has another tokenizer than '{}'", folders.front().string());
    size_t n = 0;
    for (const Parameter& p : other.model.parameters().all()) sums[n++].add_(p.value.detach());
  }
  size_t n = 0;
  const at::NoGradGuard no_grad;
  for (Parameter& p : mean.model.parameters().all()) {
    p.value.copy_(sums[n++].div_(static_cast<double>(folders.size())));
    p.stored = at::kFloat;  // a mean has more digits than what it was made of
  }
  return mean;
}

}  // namespace fovea
