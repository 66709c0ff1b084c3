// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/reach.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "fovea/base/error.h"
#include "fovea/text/result_json.h"

namespace fovea {
namespace {

constexpr int64_t kTokensAPass = 4096;

/// Distances 1, 2, 3 ... that grow to `last` in about `probes` steps.
std::set<int64_t> spread_distances(int64_t last, int64_t probes) {
  std::set<int64_t> distances;
  for (int64_t k = 0; k < probes; ++k) {
    const double share = static_cast<double>(k) / static_cast<double>(probes - 1);
    const auto geometric =
        static_cast<int64_t>(std::llround(std::pow(static_cast<double>(last), share)));
    distances.insert(
        std::clamp<int64_t>(std::max(geometric, std::min(k + 1, probes / 2)), 1, last));
  }
  return distances;
}

class Prober {
 public:
  Prober(const Transformer& model, std::span<const int32_t> tokens)
      : model_(model), ids_(at::empty({std::ssize(tokens)}, at::kLong)) {
    std::ranges::copy(tokens, ids_.mutable_data_ptr<int64_t>());
  }

  /// Changes at these distances, into `found`.
  void probe(const std::set<int64_t>& distances, std::map<int64_t, double>& found) const {
    const int64_t t = ids_.size(0);
    const auto rows = static_cast<size_t>(std::max<int64_t>(kTokensAPass / t - 1, 1));
    const std::vector<int64_t> all(distances.begin(), distances.end());
    for (size_t from = 0; from < all.size(); from += rows) {
      const std::span part = std::span(all).subspan(from, std::min(rows, all.size() - from));
      const at::Tensor changes = changes_of(part);
      for (size_t i = 0; i < part.size(); ++i) found[part[i]] = changes.const_data_ptr<double>()[i];
    }
  }

 private:
  // Row 0 is the text as it is.
  at::Tensor changes_of(std::span<const int64_t> distances) const {
    const int64_t t = ids_.size(0);
    const at::Tensor rows = ids_.repeat({std::ssize(distances) + 1, 1});
    for (size_t i = 0; i < distances.size(); ++i) {
      int64_t& token =
          rows.mutable_data_ptr<int64_t>()[(static_cast<int64_t>(i) + 2) * t - 1 - distances[i]];
      token = (token + model_.config().vocab_size / 2) % model_.config().vocab_size;
    }
    const at::Tensor states = model_.hidden({.tokens_bt = rows.to(model_.device())})
                                  .select(1, t - 1)
                                  .to(at::kCPU, at::kDouble);
    return (states.slice(0, 1) - states[0]).norm(2, 1) / states[0].norm();
  }

  const Transformer& model_;
  at::Tensor ids_;
};

}  // namespace

template <class V>
void describe(V& v, ReachPoint& p) {
  v("distance", p.distance);
  v("change", p.change);
}

template <class V>
void describe(V& v, Reach& r) {
  v("tokens", r.tokens);
  v("farthest", r.farthest);
  v("points", r.points);
}

nlohmann::ordered_json Reach::to_json() const { return described_json(*this); }

Reach measure_reach(const Transformer& model, std::span<const int32_t> tokens, int64_t probes) {
  require<InputError>(tokens.size() >= 2, "reach", "expected a text of at least two tokens; got {}",
                      tokens.size());
  require<ConfigError>(probes >= 2, "reach", "expected at least 2 probes; got {}", probes);
  const at::NoGradGuard no_grad;
  const auto last = std::ssize(tokens) - 1;
  const Prober prober(model, tokens);
  std::map<int64_t, double> found;
  prober.probe(spread_distances(last, probes), found);
  const auto arrives = [](const auto& point) { return point.second > kLeastChange; };
  while (true) {
    const auto edge = std::find_if(found.rbegin(), found.rend(), arrives);
    const int64_t near = edge == found.rend() ? 0 : edge->first;
    const auto beyond = found.upper_bound(near);
    if (beyond == found.end() || beyond->first == near + 1) break;
    prober.probe({(near + beyond->first) / 2}, found);
  }
  Reach reach{.tokens = last + 1};
  for (const auto& [distance, change] : found) {
    reach.points.push_back({distance, change});
    if (change > kLeastChange) reach.farthest = distance;
  }
  return reach;
}

}  // namespace fovea
