// Reading and running the cases of parts.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/part_case.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "fovea/attention/mechanisms/focus.h"
#include "fovea/attention/mechanisms/routing.h"
#include "fovea/attention/mechanisms/sinkhorn.h"
#include "fovea/attention/positions/rope.h"
#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"
#include "fovea/config/reader.h"

namespace fovea {
namespace {

constexpr int64_t kMostPositions = int64_t{1} << 20;  // rows of the table of angles

// Metadata `spec` of the kinds that have no spec elsewhere.
struct SinkhornPart {
  int64_t rounds = 10;
  void describe(FieldVisitor& v) { v.integer({"rounds", "rounds of columns then rows"}, rounds); }
};
struct CentroidsPart {
  int64_t clusters = 0;
  double decay = 0.999;
  void describe(FieldVisitor& v) {
    v.integer({"clusters", "centroids of a head"}, clusters);
    v.real({"decay", "of the running sizes and sums"}, decay);
  }
};

// The tensors of one case, by name.
class PartInputs {
 public:
  PartInputs(const SafetensorsFile& file, const CaseOptions& options)
      : file_(file), options_(options) {}

  // Undefined if absent and not `needed`.
  at::Tensor take(const std::string& name, int64_t dims, bool floating, bool needed = true) {
    known_.push_back(name);
    const auto& entries = file_.entries();
    const bool present =
        std::ranges::any_of(entries, [&](const SafetensorsEntry& e) { return e.name == name; });
    require<InputError>(present || !needed, kCaseWhere, "{}: '{}' is missing",
                        file_.path().string(), name);
    if (!present) return {};
    const at::Tensor x = case_tensor(file_, name);
    require<InputError>(x.dim() == dims && x.is_floating_point() == floating, kCaseWhere,
                        "{}: '{}' must be {} with {} dimensions; got {} with {}",
                        file_.path().string(), name, floating ? "floating" : "integers", dims,
                        at::toString(x.scalar_type()), x.dim());
    return floating ? x.to(options_.device, options_.dtype.value_or(x.scalar_type()))
                    : x.to(options_.device, at::kLong);
  }

  template <class Spec>
  Spec spec() const {
    Spec spec;
    const auto found = file_.metadata().find("spec");
    if (found != file_.metadata().end())
      read_fields(parse_json(found->second, file_.path().string() + ": spec"), spec);
    return spec;
  }

  // Compares with what is expected; any other tensor is an error.
  void finish(CaseResult& result) const {
    std::vector<std::string> known = known_;
    for (const auto& [name, tensor] : result.tensors)
      known.push_back(std::string(kExpectedPrefix) + name);
    for (const SafetensorsEntry& entry : file_.entries()) {
      require<InputError>(std::ranges::find(known, entry.name) != known.end(), kCaseWhere,
                          "{}: '{}' is no tensor of this kind{}; known are {}",
                          file_.path().string(), entry.name, did_you_mean(entry.name, known),
                          fmt::join(known, ", "));
      if (!entry.name.starts_with(kExpectedPrefix)) continue;
      const std::string name = entry.name.substr(kExpectedPrefix.size());
      result.errors[name] = case_error(result.tensors.at(name), case_tensor(file_, entry.name));
    }
  }

 private:
  const SafetensorsFile& file_;
  const CaseOptions& options_;
  std::vector<std::string> known_;
};

TensorMap run_rope(PartInputs& in) {
  const RopeSpec spec = in.spec<RopeSpec>();
  const at::Tensor x = in.take("x", 4, true), positions = in.take("positions", 1, false);
  spec.check(x.size(3));
  require<InputError>(
      positions.size(0) == x.size(2) &&
          (positions.numel() == 0 || (positions.min().item<int64_t>() >= 0 &&
                                      positions.max().item<int64_t>() < kMostPositions)),
      kCaseWhere, "positions must be {} integers from 0 to {}", x.size(2), kMostPositions - 1);
  const int64_t length = positions.numel() > 0 ? positions.max().item<int64_t>() + 1 : 1;
  const at::Tensor heads =
      spec.layout == RopeLayout::interleaved ? heads_to_half_split(x, spec.rotary_dim) : x;
  const RopeTable table =
      make_rope_table(spec, x.size(3), length, x.device(),
                      x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  return {{"out", apply_rope(heads, table, positions)}};
}

TensorMap run_sinkhorn(PartInputs& in) {
  const SinkhornPart spec = in.spec<SinkhornPart>();
  require<ConfigError>(spec.rounds >= 1, kCaseWhere, "rounds must be at least 1; got {}",
                       spec.rounds);
  const at::Tensor scores = in.take("scores", 2, true);
  const at::Tensor potentials = sinkhorn_potentials(scores, spec.rounds);
  return {{"potentials", potentials}, {"assignment", at::softmax(scores + potentials, -1)}};
}

TensorMap run_groups(PartInputs& in) {
  const FocusSpec spec = in.spec<FocusSpec>();
  spec.check();
  const at::Tensor scores = in.take("scores", 3, true),
                   potentials = in.take("potentials", 1, true, false);
  require<InputError>(
      scores.size(2) == spec.groups && (!potentials.defined() || potentials.size(0) == spec.groups),
      kCaseWhere, "scores must be [b, t, {}] and potentials [{}]", spec.groups, spec.groups);
  const FocusGroups groups = group_tokens(spec, scores, potentials);
  return {{"groups", groups.groups_btk}, {"members", groups.members_bt}};
}

TensorMap run_centroids(PartInputs& in) {
  const CentroidsPart spec = in.spec<CentroidsPart>();
  const at::Tensor q = in.take("q", 4, true), k = in.take("k", 4, true),
                   centroids = in.take("centroids", 3, true), sizes = in.take("sizes", 2, true),
                   sums = in.take("sums", 3, true);
  const int64_t h = q.size(1), c = spec.clusters, d = q.size(3);
  require<InputError>(
      k.size(1) >= 1 && h % k.size(1) == 0 && k.size(3) == d && c >= 1 &&
          centroids.sizes() == at::IntArrayRef({h, c, d}) &&
          sizes.sizes() == at::IntArrayRef({h, c}) && sums.sizes() == at::IntArrayRef({h, c, d}),
      kCaseWhere,
      "centroids and sums must be [{0}, {1}, {2}], sizes [{0}, {1}], key heads a divisor of {0}", h,
      c, d);
  const Routes routes = route_tokens({.clusters = c}, centroids, q, k);
  const at::Tensor moved =
      follow_clusters(observe_routes(routes, c, q, k), spec.decay, sizes, sums);
  return {{"query_routes", routes.query_bht},
          {"key_routes", routes.key_bhs},
          {"sizes", sizes},
          {"sums", sums},
          {"centroids", moved}};
}

}  // namespace

std::span<const std::string_view> enum_names(CaseKind) {
  static constexpr std::string_view names[] = {"attention", "rope", "sinkhorn", "groups",
                                               "centroids"};
  return names;
}

CaseKind case_kind(const SafetensorsFile& file) {
  const auto found = file.metadata().find("kind");
  if (found == file.metadata().end()) return CaseKind::attention;
  const auto names = enum_names(CaseKind{});
  const auto at = std::ranges::find(names, found->second);
  require<InputError>(at != names.end(), kCaseWhere,
                      "{}: metadata 'kind' must be one of {}; got '{}'", file.path().string(),
                      fmt::join(names, ", "), found->second);
  return static_cast<CaseKind>(at - names.begin());
}

at::Tensor case_tensor(const SafetensorsFile& file, const std::string& name) {
  const at::Tensor x = file.tensor(name);
  switch (x.scalar_type()) {
    case at::kFloat:
    case at::kDouble:
    case at::kBFloat16:
    case at::kHalf:
    case at::kLong:
    case at::kInt:
    case at::kShort:
    case at::kChar:
    case at::kByte:
    case at::kBool:
      return x.clone();
    default:
      fail<InputError>(kCaseWhere,
                       "{}: expected '{}' in F32, F16, BF16, F64 or as integers (I8 to I64, U8, "
                       "BOOL); got {}",
                       file.path().string(), name, at::toString(x.scalar_type()));
  }
}

CaseResult run_part_case(const SafetensorsFile& file, const CaseOptions& options) {
  const CaseKind kind = case_kind(file);
  const std::string_view name = enum_names(kind)[static_cast<size_t>(kind)];
  require<UnsupportedError>(!options.gradient_seed.has_value(), kCaseWhere,
                            "cases of kind {} have no gradients", name);
  require<UnsupportedError>(
      options.path == CasePath::automatic || options.path == CasePath::reference, kCaseWhere,
      "cases of kind {} have path reference alone", name);
  const at::NoGradGuard no_gradient;
  PartInputs in(file, options);
  CaseResult result;
  result.path = {.name = PathName::reference, .reason = {.kind = PathReason::Kind::requested}};
  switch (kind) {
    case CaseKind::rope:
      result.tensors = run_rope(in);
      break;
    case CaseKind::sinkhorn:
      result.tensors = run_sinkhorn(in);
      break;
    case CaseKind::groups:
      result.tensors = run_groups(in);
      break;
    case CaseKind::centroids:
      result.tensors = run_centroids(in);
      break;
    case CaseKind::attention:
      fail<InputError>(kCaseWhere, "{}: this is a case of attention", file.path().string());
  }
  in.finish(result);
  return result;
}

}  // namespace fovea
