// Reading and running case files.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/attention_case.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <vector>

#include "fovea/attention/decode/cached_attention.h"
#include "fovea/attention/mechanism.h"
#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"
#include "fovea/checkpoint/part_case.h"
#include "fovea/config/reader.h"

namespace fovea {
namespace {

/// Every tensor name a case may have, and where it goes.
std::vector<std::pair<std::string, at::Tensor*>> slots(AttentionCase& c) {
  std::vector<std::pair<std::string, at::Tensor*>> all{
      {"q", &c.q_bhtd}, {"k", &c.k_bgsd}, {"v", &c.v_bgse}};
  for (const auto& [name, tensor] : c.tensors.named()) all.emplace_back(name, tensor);
  for (const auto& [name, tensor] : {std::pair{"query_positions", &c.context.query_positions_bt},
                                     {"key_positions", &c.context.key_positions_bs},
                                     {"query_documents", &c.context.query_documents_bt},
                                     {"key_documents", &c.context.key_documents_bs},
                                     {"grad_out", &c.grad_out_bhte},
                                     {"grad_lse", &c.grad_lse_bht}})
    all.emplace_back(name, tensor);
  return all;
}

const std::vector<std::string>& result_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all{"out", "lse", "grad_q", "grad_k", "grad_v"};
    AttentionTensors tensors;
    for (const auto& [name, tensor] : tensors.named()) all.push_back(fmt::format("grad_{}", name));
    return all;
  }();
  return names;
}

uint64_t read_number(const TextMap& metadata, const std::string& key, const std::string& file) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return 0;
  const std::string& text = found->second;
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require<InputError>(error == std::errc() && end == text.data() + text.size(), kCaseWhere,
                      "{}: metadata '{}' must be a whole number; got '{}'", file, key, text);
  return value;
}

void read_metadata(const SafetensorsFile& file, AttentionCase& c) {
  const std::string name = file.path().string();
  const TextMap& metadata = file.metadata();
  const auto spec = metadata.find("attention_spec");
  require<InputError>(spec != metadata.end(), kCaseWhere,
                      "{}: the metadata must have 'attention_spec' (JSON); this is not a case file",
                      name);
  read_fields(parse_json(spec->second, name + ": attention_spec"), c.spec);
  c.spec.check();
  c.context.layer = static_cast<int64_t>(read_number(metadata, "layer", name));
  c.context.dropout_seed = read_number(metadata, "dropout_seed", name);
  c.context.training = metadata.contains("dropout_seed");
}

void read_tensor(const SafetensorsFile& file, const std::string& name, AttentionCase& c) {
  std::vector<std::string> known;
  for (const auto& [slot, place] : slots(c)) {
    if (slot == name) {
      *place = case_tensor(file, name);
      return;
    }
    known.push_back(slot);
  }
  for (const std::string& result : result_names()) {
    known.push_back(std::string(kExpectedPrefix) + result);
    if (name == known.back()) {
      c.expected[result] = case_tensor(file, name);
      return;
    }
  }
  fail<InputError>(kCaseWhere, "{}: '{}' is no tensor of a case{}; known are {}",
                   file.path().string(), name, did_you_mean(name, known), fmt::join(known, ", "));
}

void check_gradient(const at::Tensor& grad, at::IntArrayRef sizes, std::string_view name) {
  require<InputError>(!grad.defined() || (grad.sizes() == sizes && grad.is_floating_point()),
                      kCaseWhere, "{} must be a floating tensor [{}]; got [{}]", name,
                      fmt::join(sizes, ", "),
                      fmt::join(grad.defined() ? grad.sizes() : at::IntArrayRef{}, ", "));
}

// The case in the dtype and on the device of the run. Parameters and gradients of lse stay in the
// softmax's dtype.
AttentionCase converted(const AttentionCase& given, const CaseOptions& options) {
  AttentionCase c = given;
  const at::ScalarType dtype = options.dtype.value_or(given.q_bhtd.scalar_type());
  require<InputError>(at::isFloatingType(dtype), kCaseWhere, "q must be floating; got {}",
                      at::toString(dtype));
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const auto move = [&](at::Tensor& x, std::optional<at::ScalarType> to) {
    if (x.defined()) x = x.to(options.device, to.value_or(x.scalar_type()));
  };
  for (at::Tensor* x : {&c.q_bhtd, &c.k_bgsd, &c.v_bgse, &c.grad_out_bhte}) move(*x, dtype);
  for (const auto& [name, x] : c.tensors.named()) {
    const bool number = x->defined() && !x->is_floating_point();  // memberships
    move(*x, number ? std::nullopt : std::optional(wide));
  }
  move(c.grad_lse_bht, wide);
  for (at::Tensor* x : {&c.context.query_positions_bt, &c.context.key_positions_bs,
                        &c.context.query_documents_bt, &c.context.key_documents_bs}) {
    move(*x, std::nullopt);
  }
  if (!c.grad_out_bhte.defined() && options.gradient_seed) {
    const at::Generator generator = at::detail::createCPUGenerator(*options.gradient_seed);
    c.grad_out_bhte =
        at::randn({c.q_bhtd.size(0), c.spec.output_heads(), c.q_bhtd.size(2), c.spec.value_width()},
                  generator, at::TensorOptions().dtype(at::kDouble))
            .to(options.device, dtype);
  }
  return c;
}

CaseResult run_decode(const AttentionCase& c) {
  const AttentionContext& places = c.context;
  require<UnsupportedError>(
      !places.query_documents_bt.defined() && !places.key_documents_bs.defined() &&
          !places.query_positions_bt.defined() && !places.key_positions_bs.defined(),
      kCaseWhere,
      "path decode runs one document a row from position 0; this case places its tokens itself");
  const int64_t t = c.q_bhtd.size(2), s = c.k_bgsd.size(2);
  require<UnsupportedError>(t == s && t > 0, kCaseWhere,
                            "path decode needs a query for every key; got {} queries and {} keys",
                            t, s);
  require<UnsupportedError>(!places.training, kCaseWhere, "path decode has no dropout");
  AttentionSpec spec = c.spec;
  // tau comes from the file, so the cache needs no running sum for it.
  if (spec.temperature.kind == TemperatureSpec::Kind::learned)
    spec.temperature.form = TemperatureSpec::Form::token;
  spec.focus.potentials = FocusSpec::Potentials::ema;  // groups come from the file likewise
  AttentionCache cache(cache_streams(spec, c.k_bgsd.scalar_type()), c.k_bgsd.size(0), s,
                       c.k_bgsd.device());
  std::vector<at::Tensor> parts;
  CaseResult result;
  for (int64_t begin = 0; begin < t;) {
    const int64_t n =
        begin == 0 ? std::max<int64_t>(1, t / 2) : 1;  // half at once, the rest token by token
    AttentionTensors tensors = c.tensors;
    for (const Mechanism* mechanism : mechanisms()) {
      for (const TensorSlot& slot : mechanism->tensors) {
        at::Tensor& x = tensors.*slot.member;
        if (slot.token_axis > 0 && x.defined()) x = x.narrow(slot.token_axis, begin, n);
      }
    }
    const AttentionResult step =
        cached_attention(spec, cache, c.q_bhtd.narrow(2, begin, n), c.k_bgsd.narrow(2, begin, n),
                         c.v_bgse.narrow(2, begin, n), tensors);
    parts.push_back(step.out_bhte);
    result.path = step.path;
    begin += n;
  }
  result.tensors["out"] = at::cat(parts, 2);
  return result;
}

// Leaves that get gradients, by the name of their gradient.
std::vector<std::pair<std::string, at::Tensor*>> leaves(AttentionCase& c) {
  std::vector<std::pair<std::string, at::Tensor*>> all;
  for (const auto& [name, place] : slots(c)) {
    const std::string gradient = "grad_" + name;
    if (place->defined() && place->is_floating_point() &&
        std::ranges::find(result_names(), gradient) != result_names().end())
      all.emplace_back(gradient, place);
  }
  return all;
}

CaseResult run_whole(AttentionCase c, Path path) {
  const bool backward = c.grad_out_bhte.defined() || c.grad_lse_bht.defined();
  const auto wanted = leaves(c);
  if (backward) {
    for (const auto& [name, leaf] : wanted) *leaf = leaf->detach().clone().set_requires_grad(true);
  }
  // Without a gradient of lse the fast paths may run; lse then comes from them or from a second
  // pass.
  c.context.want_lse = !backward || c.grad_lse_bht.defined();
  AttentionResult result =
      attention(c.spec, c.q_bhtd, c.k_bgsd, c.v_bgse, c.tensors, c.context, path);
  CaseResult answer;
  answer.path = result.path;
  if (backward) {
    std::vector<at::Tensor> outputs, grads, inputs;
    const auto add = [&](const at::Tensor& output, const at::Tensor& grad) {
      if (grad.defined() && output.requires_grad())
        outputs.push_back(output), grads.push_back(grad.to(output.scalar_type()));
    };
    add(result.out_bhte, c.grad_out_bhte);
    if (c.grad_lse_bht.defined()) add(result.lse_bht, c.grad_lse_bht);
    for (const auto& [name, leaf] : wanted) inputs.push_back(*leaf);
    const auto computed = torch::autograd::grad(outputs, inputs, grads, std::nullopt, false, true);
    for (size_t n = 0; n < wanted.size(); ++n) {
      answer.tensors[wanted[n].first] =
          computed[n].defined() ? computed[n] : at::zeros_like(inputs[n]);
    }
  }
  if (!result.lse_bht.defined()) {
    const at::NoGradGuard no_gradient;
    c.context.want_lse = true;
    result.lse_bht =
        attention(c.spec, c.q_bhtd, c.k_bgsd, c.v_bgse, c.tensors, c.context, path).lse_bht;
  }
  answer.tensors["out"] = result.out_bhte.detach();
  answer.tensors["lse"] = result.lse_bht.detach();
  return answer;
}

}  // namespace

std::span<const std::string_view> enum_names(CasePath) {
  static constexpr std::string_view names[] = {"automatic", "reference", "decode", "fused"};
  return names;
}

AttentionCase load_attention_case(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  AttentionCase c;
  read_metadata(file, c);
  for (const SafetensorsEntry& entry : file.entries()) read_tensor(file, entry.name, c);
  for (const auto& [name, tensor] :
       {std::pair{"q", &c.q_bhtd}, {"k", &c.k_bgsd}, {"v", &c.v_bgse}}) {
    require<InputError>(
        tensor->defined() && tensor->dim() == 4 && tensor->is_floating_point(), kCaseWhere,
        "{}: '{}' must be a floating tensor with 4 dimensions [batch, heads, tokens, width]",
        path.string(), name);
  }
  const int64_t b = c.q_bhtd.size(0), t = c.q_bhtd.size(2);
  check_gradient(c.grad_out_bhte, {b, c.spec.output_heads(), t, c.spec.value_width()}, "grad_out");
  check_gradient(c.grad_lse_bht, {b, c.spec.heads, t}, "grad_lse");
  return c;
}

CaseResult run_attention_case(const AttentionCase& given, const CaseOptions& options) {
  AttentionCase c = converted(given, options);
  CaseResult result;
  switch (options.path) {
    case CasePath::decode:
      result = run_decode(c);
      break;
    case CasePath::automatic:
      result = run_whole(std::move(c), Path::automatic);
      break;
    case CasePath::reference:
      result = run_whole(std::move(c), Path::reference);
      break;
    case CasePath::fused:
      result = run_whole(std::move(c), Path::fused);
      break;
  }
  for (const auto& [name, expected] : given.expected) {
    if (result.tensors.contains(name))
      result.errors[name] = case_error(result.tensors.at(name), expected);
  }
  return result;
}

CaseResult run_attention_case(const std::filesystem::path& path, const CaseOptions& options) {
  const SafetensorsFile file(path);
  if (case_kind(file) != CaseKind::attention) return run_part_case(file, options);
  return run_attention_case(load_attention_case(path), options);
}

double case_error(const at::Tensor& got, const at::Tensor& expected) {
  if (got.sizes() != expected.sizes()) return std::numeric_limits<double>::infinity();
  if (got.numel() == 0) return 0.0;
  const at::Tensor g = got.detach().cpu().to(at::kDouble), e = expected.to(at::kDouble);
  // The same: -inf of empty rows, NaN where NaN is expected. Any other NaN is an error of NaN.
  const at::Tensor same = (g == e).logical_or(g.isnan().logical_and(e.isnan()));
  const double difference = (g - e).abs().masked_fill(same, 0.0).max().item<double>();
  const double size = e.masked_fill(e.isfinite().logical_not(), 0.0).abs().max().item<double>();
  return difference == 0.0 ? 0.0 : difference / std::max(size, std::numeric_limits<double>::min());
}

}  // namespace fovea
