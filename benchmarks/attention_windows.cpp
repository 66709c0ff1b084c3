// Benchmark of Longformer and StreamingLLM by the fused kernels against our own plain attention, in
// turn in one process: is the time that of the pairs that they keep?
// (docs/mechanisms/longformer.md)
//
//   attention_windows [--lengths 4096,16384] [--window 512] [--heads 8] [--width 64]
//                     [--dtype float32|bfloat16] [--only NAME] [--pairs 11] [--budget 10]
//                     [--threads 1] [--output FILE]
//
// A line a case and direction: times, ratio, the bound 1 / share of pairs kept, and `excess`, the
// time over that share of plain attention's. --output merges the cases into FILE (JSON).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "benchmarks/pairs.h"
#include "fovea/attention/attention.h"
#include "fovea/attention/visible_keys.h"
#include "fovea/runtime/machine.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::vector<int64_t> lengths{4096, 16384};
  int64_t window = 512, heads = 8, width = 64;
  std::string dtype = "float32", only, output;
  int pairs = 11, threads = 1;
  double budget = 10.0;  // seconds a measure
};

struct Case {
  std::string name;
  AttentionSpec spec;
};

std::vector<Case> cases(const Options& o) {
  std::vector<Case> all;
  const auto add = [&](std::string name, const std::function<void(AttentionSpec&)>& change) {
    AttentionSpec spec;
    spec.heads = spec.kv_heads = o.heads;
    spec.head_dim = o.width;
    change(spec);
    if (name.find(o.only) != std::string::npos) all.push_back({std::move(name), spec});
  };
  const int64_t w = o.window - 1;
  add("mask window", [&](AttentionSpec& s) { s.mask.window = o.window; });
  add("longformer", [&](AttentionSpec& s) { s.longformer = {.window = w, .globals = 4}; });
  add("longformer dilated 4",
      [&](AttentionSpec& s) { s.longformer = {.window = w, .dilation = {4}, .globals = 4}; });
  add("longformer 2 heads dilated 4", [&](AttentionSpec& s) {
    std::vector<int64_t> dilation(static_cast<size_t>(o.heads), 1);
    std::fill(dilation.begin() + std::max<int64_t>(0, o.heads - 2), dilation.end(), 4);
    s.longformer = {.window = w, .dilation = dilation, .globals = 4};
  });
  add("longformer 8 later globals", [&](AttentionSpec& s) {
    s.longformer = {.window = w};
    for (int64_t n = 1; n <= 8; ++n) s.longformer.global_positions.push_back(400 * n);
  });
  add("streaming", [&](AttentionSpec& s) { s.streaming = {.recent = o.window, .start = 4}; });
  return all;
}

// Plain attention's pairs over those of the case.
double bound(const AttentionSpec& spec, int64_t length) {
  double kept = 0.0;
  for (int64_t i = 0; i < length; ++i) kept += visible_keys(spec, i, length);
  return double(length + 1) * double(length) / 2.0 / kept;
}

class Sides {
 public:
  Sides(const Case& c, const Options& o, int64_t length) : spec_(c.spec) {
    const auto draw = [&] {
      return at::randn({1, o.heads, length, o.width})
          .to(o.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat);
    };
    for (at::Tensor* x : {&q_, &k_, &v_}) *x = draw().set_requires_grad(true);
    dout_ = draw();
    if (spec_.streaming.active()) tensors_.start_q_bhtd = draw().set_requires_grad(true);
    plain_.heads = plain_.kv_heads = o.heads;
    plain_.head_dim = o.width;
  }
  AttentionResult ours() const { return attention(spec_, q_, k_, v_, tensors_, {}, Path::fused); }
  AttentionResult plain() const { return attention(plain_, q_, k_, v_, {}, {}, Path::fused); }
  void backward(const at::Tensor& out) const {
    torch::autograd::grad({out}, {q_, k_, v_}, {dout_}, /*retain_graph=*/true);
  }

 private:
  AttentionSpec spec_, plain_;
  at::Tensor q_, k_, v_, dout_;
  AttentionTensors tensors_;
};

void report(std::vector<Json>& results, const std::string& name, double limit, int threads,
            Json measured) {
  const double ratio = measured["ratio"]["median"].get<double>();
  Json json{{"name", name}};
  json.update(measured);
  json["bound"] = limit;
  json["excess"] = limit / ratio;
  json["threads"] = threads;
  results.push_back(json);
  std::cout << fmt::format("{:70} {:9.2f} ms, plain {:9.2f}: {:6.2f}x of {:6.2f}x, excess {:.2f}",
                           name, json["fovea_ms"]["median"].get<double>(),
                           json["other_ms"]["median"].get<double>(), ratio, limit, limit / ratio)
            << std::endl;
}

std::vector<Json> run(const Options& o) {
  at::set_num_threads(o.threads);
  std::vector<Json> results;
  for (const int64_t length : o.lengths) {
    for (const Case& c : cases(o)) {
      const Sides sides(c, o, length);
      const double limit = bound(c.spec, length);
      const std::string of = fmt::format("{}, {} T={} H={} d={} window {}", c.name, o.dtype, length,
                                         o.heads, o.width, o.window);
      {
        const at::NoGradGuard no_gradient;
        report(results, "forward " + of, limit, o.threads,
               measure_pairs(
                   o.pairs, o.budget, [&] { sides.ours(); }, [&] { sides.plain(); }));
      }
      const at::Tensor ours = sides.ours().out_bhte, plain = sides.plain().out_bhte;
      report(results, "backward " + of, limit, o.threads,
             measure_pairs(
                 o.pairs, o.budget, [&] { sides.backward(ours); }, [&] { sides.backward(plain); }));
    }
  }
  return results;
}

}  // namespace
}  // namespace fovea

int main(int argc, char** argv) {
  fovea::Options options;
  CLI::App app("longformer and streaming by the fused kernels against plain attention");
  app.add_option("--lengths", options.lengths)->delimiter(',');
  app.add_option("--window", options.window);
  app.add_option("--heads", options.heads);
  app.add_option("--width", options.width);
  app.add_option("--dtype", options.dtype)->check(CLI::IsMember({"float32", "bfloat16"}));
  app.add_option("--only", options.only, "cases whose name contains this");
  app.add_option("--pairs", options.pairs);
  app.add_option("--budget", options.budget);
  app.add_option("--threads", options.threads);
  app.add_option("--output", options.output);
  CLI11_PARSE(app, argc, argv);
  fovea::keep_freed_memory();  // as the program does
  fovea::merge_results(options.output, "attention_windows",
                       "plain / ours, above 1 ours is faster; medians of the pairs' ratios", argc,
                       argv, fovea::run(options));
}
