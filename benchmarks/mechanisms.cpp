// Benchmark of the mechanisms' reference forms: attention() against the same operations as a torch
// user writes them down, dense and with autograd, forward and backward, in turn in one process.
//
//   mechanisms [--length 2048] [--heads 8] [--width 64] [--threads 2] [--pairs 21] [--budget 20]
//              [--only NAME] [--output FILE]
//
// Prints a line a case: times, ratio, and how much the process grows on either side. --output
// writes the cases to FILE (JSON).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <fstream>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>

#include "benchmarks/pairs.h"
#include "fovea/attention/attention.h"
#include "fovea/attention/mechanisms/focus.h"
#include "fovea/base/error.h"
#include "fovea/runtime/machine.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  int64_t length = 2048, heads = 8, width = 64;
  int pairs = 21, threads = 2;
  double budget = 20.0;  // seconds a case
  std::string only, output;
};

struct Inputs {
  at::Tensor q, k, v, dout;
  AttentionTensors tensors;

  std::vector<at::Tensor> leaves() const {
    std::vector<at::Tensor> all{q, k, v};
    AttentionTensors copy = tensors;
    for (const auto& [name, x] : copy.named())
      if (x->defined() && x->requires_grad()) all.push_back(*x);
    return all;
  }
};

// What both sides compute, once by attention() and once by `dense`.
struct Case {
  std::string name;
  AttentionSpec spec;
  std::function<void(AttentionTensors&)> fill;
  std::function<at::Tensor(const Inputs&, const at::Tensor& hidden_ts)> dense;
};

at::Tensor scores(const Inputs& x) {
  return at::matmul(x.q, x.k.transpose(-1, -2)) / std::sqrt(static_cast<double>(x.q.size(3)));
}

at::Tensor softmax(const at::Tensor& s, const at::Tensor& hidden) {
  return at::softmax(s.masked_fill(hidden, -std::numeric_limits<double>::infinity()), -1);
}

// A depthwise convolution over queries and keys of the whole map.
at::Tensor convolve(const at::Tensor& s, const at::Tensor& kernel_hqk) {
  const int64_t cq = kernel_hqk.size(1), ck = kernel_hqk.size(2);
  const at::Tensor padded = at::constant_pad_nd(s, {(ck - 1) / 2, ck / 2, cq - 1, 0});
  return at::conv2d(padded, kernel_hqk.unsqueeze(1), {}, at::IntArrayRef{1, 1},
                    at::IntArrayRef{0, 0}, at::IntArrayRef{1, 1}, s.size(1));
}

// One matrix (out, in) over all heads.
at::Tensor mix(const at::Tensor& s, const at::Tensor& out_in) {
  return at::matmul(out_in, s.flatten(2)).view(s.sizes());
}

at::Tensor normed_and_gated(const at::Tensor& o, const AttentionTensors& x) {
  const at::Tensor n = o * at::rsqrt(o.square().mean(-1, true) + 1e-5) * x.head_gain_e;
  return n * at::sigmoid(at::matmul(n, x.gate_weight) + x.gate_bias).unsqueeze(-1);
}

at::Tensor leaf(const at::Tensor& x) { return x.detach().clone().set_requires_grad(true); }

Case multi_token(const AttentionSpec& base) {
  Case c{.name = "multi-token", .spec = base};
  c.spec.multi_token = {.before = {6, 11}, .after = {6, 11}};
  c.spec.head_mix = {HeadMixSpec::Kind::full, HeadMixSpec::Kind::full};
  c.spec.head_output = {.norm = HeadOutputSpec::Norm::rms, .gate = HeadOutputSpec::Gate::scalar};
  c.fill = [h = base.heads, d = base.head_dim](AttentionTensors& x) {
    x.kernel_before_hqk = leaf(at::randn({h, 6, 11}) * 0.1);
    x.kernel_after_hqk = leaf(at::randn({h, 6, 11}) * 0.1);
    x.mix_before_noi = leaf(at::eye(h).unsqueeze(0));
    x.mix_after_nio = leaf(at::eye(h).unsqueeze(0));
    x.head_gain_e = leaf(at::ones({d}));
    x.gate_weight = leaf(at::randn({d}) * 0.1);
    x.gate_bias = leaf(at::zeros({}));
  };
  c.dense = [](const Inputs& x, const at::Tensor& hidden) {
    const AttentionTensors& t = x.tensors;
    at::Tensor s = convolve(scores(x).masked_fill(hidden, 0.0), t.kernel_before_hqk);
    at::Tensor p = softmax(mix(s, t.mix_before_noi[0]), hidden);
    p = convolve(p, t.kernel_after_hqk).masked_fill(hidden, 0.0);
    return normed_and_gated(at::matmul(mix(p, t.mix_after_nio[0].t()), x.v), t);
  };
  return c;
}

Case talking_heads(const AttentionSpec& base) {
  Case c{.name = "talking-heads", .spec = base};
  c.spec.head_mix = {HeadMixSpec::Kind::full, HeadMixSpec::Kind::full};
  c.fill = [h = base.heads](AttentionTensors& x) {
    x.mix_before_noi = leaf(at::eye(h).unsqueeze(0));
    x.mix_after_nio = leaf(at::eye(h).unsqueeze(0));
  };
  c.dense = [](const Inputs& x, const at::Tensor& hidden) {
    const at::Tensor p = softmax(mix(scores(x), x.tensors.mix_before_noi[0]), hidden);
    return at::matmul(mix(p, x.tensors.mix_after_nio[0].t()), x.v);
  };
  return c;
}

Case focus(const AttentionSpec& base, int64_t length) {
  Case c{.name = "focus, soft", .spec = base};
  c.spec.focus = {.gate = FocusSpec::Gate::log};
  c.fill = [length](AttentionTensors& x) {
    x.groups_bsk = leaf(at::softmax(at::randn({1, length, 8}) * 3.0, -1));
  };
  c.dense = [](const Inputs& x, const at::Tensor& hidden) {
    const at::Tensor g = x.tensors.groups_bsk, i = at::arange(g.size(1));
    const at::Tensor local =
        (i.unsqueeze(1) - i).lt(128).logical_or(i.lt(4).unsqueeze(0));  // window 128, 4 sinks
    const at::Tensor factor =
        (at::matmul(g, g.transpose(-1, -2)) + 1e-6).masked_fill(local, 1.0).log();
    return at::matmul(softmax(scores(x) + factor.unsqueeze(1), hidden), x.v);
  };
  return c;
}

// The hard rule with the gradient of the soft groups: distillation, and the end of a training.
Case straight_through(const AttentionSpec& base, int64_t length) {
  Case c{.name = "focus, straight-through", .spec = base};
  c.spec.focus = {.gate = FocusSpec::Gate::straight_through};
  c.fill = [length](AttentionTensors& x) {
    x.groups_bsk = leaf(at::softmax(at::randn({1, length, 8}) * 3.0, -1));
    x.members_bs = top_members(x.groups_bsk, 2);
  };
  c.dense = [](const Inputs& x, const at::Tensor& hidden) {
    const at::Tensor g = x.tensors.groups_bsk, i = at::arange(g.size(1));
    const at::Tensor local = (i.unsqueeze(1) - i).lt(128).logical_or(i.lt(4).unsqueeze(0));
    const at::Tensor shared = have_common_group(x.tensors.members_bs, x.tensors.members_bs)[0];
    const at::Tensor agreement = at::matmul(g, g.transpose(-1, -2));
    const at::Tensor factor = (shared.to(at::kFloat) + agreement - agreement.detach() + 1e-6)
                                  .masked_fill(local, 1.0)
                                  .log();
    return at::matmul(softmax(scores(x) + factor.unsqueeze(1), hidden), x.v);
  };
  return c;
}

Inputs make_inputs(const Case& c, int64_t length) {
  const auto draw = [&] { return at::randn({1, c.spec.heads, length, c.spec.head_dim}); };
  Inputs x{leaf(draw()), leaf(draw()), leaf(draw()), draw(), {}};
  c.fill(x.tensors);
  return x;
}

Json run_case(const Case& c, const Options& options) {
  const Inputs x = make_inputs(c, options.length);
  const at::Tensor hidden = at::ones({options.length, options.length}, at::kBool).triu(1);
  const auto finish = [&](const at::Tensor& out) {
    torch::autograd::grad({out}, x.leaves(), {x.dout}, std::nullopt, false, true);
  };
  const auto call = [&] { return attention(c.spec, x.q, x.k, x.v, x.tensors, {}); };
  const Action ours = [&] { finish(call().out_bhte); };
  const Action dense = [&] { finish(c.dense(x, hidden)); };
  const AttentionResult result = call();
  const double apart = (result.out_bhte - c.dense(x, hidden)).abs().max().item<double>() /
                       result.out_bhte.abs().max().item<double>();
  require<NumericalError>(apart < 1e-4, "benchmark", "{}: the two sides differ by {}", c.name,
                          apart);
  const int64_t ours_bytes = peak_bytes(ours), dense_bytes = peak_bytes(dense);
  Json json{{"name", fmt::format("forward and backward, {}, float32 T={} H={} d={}", c.name,
                                 options.length, options.heads, options.width)},
            {"path", enum_name(result.path.name)},
            {"plan", result.path.plan_text()},
            {"threads", options.threads}};
  json.update(measure_pairs(options.pairs, options.budget, ours, dense));
  json["fovea_peak_bytes"] = ours_bytes;
  json["other_peak_bytes"] = dense_bytes;
  std::cout << fmt::format(
                   "{:14} {} {:8.0f} ms, dense {:8.0f} ms  ratio {:.2f} ({:.2f} to {:.2f})  "
                   "memory {:.0f} MB, dense {:.0f} MB",
                   c.name, enum_name(result.path.name), json["fovea_ms"]["median"].get<double>(),
                   json["other_ms"]["median"].get<double>(), json["ratio"]["median"].get<double>(),
                   json["ratio"]["q1"].get<double>(), json["ratio"]["q3"].get<double>(),
                   double(ours_bytes) / 1e6, double(dense_bytes) / 1e6)
            << std::endl;
  return json;
}

void run(const Options& options) {
  at::set_num_threads(options.threads);
  AttentionSpec base;
  base.heads = base.kv_heads = options.heads;
  base.head_dim = options.width;
  Json results = Json::array();
  for (const Case& c : {multi_token(base), talking_heads(base), focus(base, options.length),
                        straight_through(base, options.length)}) {
    if (options.only.empty() || options.only == c.name) results.push_back(run_case(c, options));
  }
  if (options.output.empty()) return;
  const Json file{{"benchmark", "mechanisms"},
                  {"ratio", "other / Fovea, above 1 Fovea is faster; medians of the pairs' ratios"},
                  {"code", code_version()},
                  {"machine", machine_summary(at::kCPU)},
                  {"results", results}};
  std::ofstream(options.output) << file.dump(2) << "\n";
}

}  // namespace
}  // namespace fovea

int main(int argc, char** argv) {
  fovea::Options options;
  CLI::App app("reference forms of the mechanisms against dense tensor operations");
  app.add_option("--length", options.length);
  app.add_option("--heads", options.heads);
  app.add_option("--width", options.width);
  app.add_option("--threads", options.threads);
  app.add_option("--pairs", options.pairs);
  app.add_option("--budget", options.budget);
  app.add_option("--only", options.only);
  app.add_option("--output", options.output);
  CLI11_PARSE(app, argc, argv);
  fovea::run(options);
}
