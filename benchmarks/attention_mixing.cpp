// Benchmark of the mixing kernels (Multi-Token Attention, talking heads): against plain attention
// by our kernels, against the composition of tensor operations that they replaced, and against the
// same operations as torch users write them down. In turn in one process, in CPU time of the
// process, so that other work on the machine counts little (docs/benchmarks.md).
//
//   attention_mixing [--dtypes float32,bfloat16] [--widths 96,64] [--lengths 1024,2048,4096]
//                    [--heads 16] [--only plain|composed|eager|ungated]
//                    [--layer convolution|mix] [--gate log|hard|...] [--pairs 21] [--budget 10]
//                    [--output FILE]
//
// --gate: with Focus (8 groups, hard: 2 of them, a window of 128, 4 sinks), and also against the
// same layer without; not against eager torch. One thread. Prints a line a case. --output merges
// the cases into FILE (JSON), replacing those of equal names.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>

#include "benchmarks/pairs.h"
#include "fovea/attention/attention.h"
#include "fovea/attention/mechanisms/focus.h"
#include "fovea/attention/mechanisms/multi_token.h"
#include "fovea/attention/mechanisms/talking_heads.h"
#include "fovea/attention/plan.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;
using Mix = HeadMixSpec::Kind;

struct Options {
  std::vector<std::string> dtypes{"float32", "bfloat16"};
  std::vector<int64_t> widths{96, 64}, lengths{1024, 2048, 4096};
  int64_t heads = 16;
  std::string only, layer, gate, output;
  int pairs = 21;
  double budget = 10.0;  // seconds a measure, five pairs at least
};

double cpu_milliseconds(const Action& action) {
  const auto now = [] {
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return 1e3 * double(t.tv_sec) + 1e-6 * double(t.tv_nsec);
  };
  const double start = now();
  action();
  return now() - start;
}

/// The paper's layers (spec 3.1): every 4th one convolves, all mix.
AttentionSpec layer(int64_t heads, int64_t width, bool convolves, bool mixes) {
  AttentionSpec spec;
  spec.heads = spec.kv_heads = heads;
  spec.head_dim = width;
  if (convolves) spec.multi_token = {.before = {6, 11}, .after = {6, 11}};
  if (mixes) spec.head_mix = {Mix::full, Mix::full, 0};
  return spec;
}

struct Inputs {
  at::Tensor q, k, v, dout;
  AttentionTensors tensors;

  Inputs(const AttentionSpec& spec, int64_t length, at::ScalarType dtype) {
    const int64_t h = spec.heads;
    const auto leaf = [](const at::Tensor& x) { return x.detach().requires_grad_(); };
    const auto rows = [&] {
      return leaf(at::randn({1, length, h, spec.head_dim}).to(dtype).transpose(1, 2));
    };
    q = rows(), k = rows(), v = rows();
    dout = rows().detach();
    const auto near_identity = [&](const at::Tensor& identity) {
      return leaf((identity + 0.1 * at::randn_like(identity)).to(dtype));
    };
    const KernelExtent extent{6, 11};
    if (spec.multi_token.before.active()) {
      const at::Tensor identity = start_kernel(KernelStart::identity, 0.0, h, extent);
      tensors.kernel_before_hqk = near_identity(identity);
      tensors.kernel_after_hqk = near_identity(identity);
    }
    if (spec.head_mix.before == Mix::none) return;
    tensors.mix_before_noi = near_identity(at::eye(h).unsqueeze(0));
    tensors.mix_after_nio = near_identity(at::eye(h).unsqueeze(0));
    if (spec.focus.active()) add_groups(spec.focus, length);
  }

  void add_groups(const FocusSpec& focus, int64_t length) {
    const at::Tensor scores = 2.0 * at::randn({1, length, focus.groups});
    if (focus.reads_groups())
      tensors.groups_bsk = at::softmax(scores, -1).detach().requires_grad_();
    if (focus.reads_members()) tensors.members_bs = top_members(scores, focus.top_k);
    if (focus.reads_strength()) tensors.focus_strength = at::full({}, 10.0).requires_grad_();
  }

  std::vector<at::Tensor> leaves() const {
    std::vector<at::Tensor> all{q, k, v};
    AttentionTensors copy = tensors;
    for (const auto& [name, x] : copy.named())
      if (x->defined() && x->is_floating_point()) all.push_back(*x);
    return all;
  }
};

/// The operations of the official code (spec 3.2), in the dtype of q.
at::Tensor eager(const AttentionSpec& spec, const Inputs& in) {
  const int64_t t = in.q.size(2);
  const at::Tensor hidden = at::ones({t, t}, at::kBool).triu(1);
  const auto convolved = [&](const at::Tensor& x, const at::Tensor& kernel_hqk) {
    if (!kernel_hqk.defined()) return x;
    const at::Tensor padded = at::constant_pad_nd(x.masked_fill(hidden, 0.0), {5, 5, 5, 0});
    return at::conv2d(padded, kernel_hqk.unsqueeze(1), {}, at::IntArrayRef{1, 1},
                      at::IntArrayRef{0, 0}, at::IntArrayRef{1, 1}, spec.heads);
  };
  at::Tensor x = at::matmul(in.q, in.k.transpose(2, 3)) * spec.logit_scale();
  x = convolved(x, in.tensors.kernel_before_hqk);
  if (in.tensors.mix_before_noi.defined()) x = mix_logits(x, in.tensors.mix_before_noi);
  x = at::softmax(x.masked_fill(hidden, -1e30), -1, at::kFloat).to(in.q.scalar_type());
  x = convolved(x, in.tensors.kernel_after_hqk).masked_fill(hidden, 0.0);
  if (in.tensors.mix_after_nio.defined()) x = mix_weights(x, in.tensors.mix_after_nio);
  return at::matmul(x, in.v);
}

// One side of a comparison: a function from the inputs to the output.
class Side {
 public:
  using Function = std::function<at::Tensor(const Inputs&)>;

  Side(Inputs inputs, Function function) : in_(std::move(inputs)), function_(std::move(function)) {}

  Action forward() const {
    return [this] {
      const at::NoGradGuard no_gradient;
      function_(in_);
    };
  }
  Action backward() {
    out_ = function_(in_);
    return [this] { gradient(out_, /*keep=*/true); };
  }
  Action both() const {
    return [this] { gradient(function_(in_), false); };
  }

 private:
  void gradient(const at::Tensor& out, bool keep) const {
    torch::autograd::grad({out}, in_.leaves(), {in_.dout}, keep);
  }

  Inputs in_;
  Function function_;
  at::Tensor out_;
};

class Benchmark {
 public:
  explicit Benchmark(Options options) : options_(std::move(options)) { at::set_num_threads(1); }

  void run() {
    for (const std::string& dtype : options_.dtypes) {
      for (const int64_t width : options_.widths) {
        for (const int64_t length : options_.lengths) {
          for (const bool convolves : {true, false}) {
            if (options_.layer.empty() || options_.layer == (convolves ? "convolution" : "mix"))
              run_case({dtype, width, length, convolves});
          }
        }
      }
    }
  }

  const std::vector<Json>& results() const { return results_; }

 private:
  struct Case {
    std::string dtype;
    int64_t width, length;
    bool convolves;

    at::ScalarType type() const { return dtype == "bfloat16" ? at::kBFloat16 : at::kFloat; }
  };

  bool wants(const std::string& part) const {
    return options_.only.empty() || options_.only == part;
  }

  // `gated`: with Focus, where it is asked for.
  Side side(const Case& c, bool convolves, bool mixes, Path path, bool gated = true) const {
    AttentionSpec spec = layer(options_.heads, c.width, convolves, mixes);
    if (gated && mixes && !options_.gate.empty()) {
      const auto names = enum_names(FocusSpec::Gate{});
      spec.focus.gate = FocusSpec::Gate(std::ranges::find(names, options_.gate) - names.begin());
    }
    AttentionContext context;
    context.plans = std::make_shared<PlanCache>();
    return Side(Inputs(spec, c.length, c.type()), [spec, context, path](const Inputs& in) {
      return attention(spec, in.q, in.k, in.v, in.tensors, context, path).out_bhte;
    });
  }

  void run_case(const Case& c) {
    Side mixing = side(c, c.convolves, true, Path::fused);
    if (wants("plain")) {
      Side plain = side(c, false, false, Path::fused);
      add("forward vs plain", c, mixing.forward(), plain.forward());
      add("backward vs plain", c, mixing.backward(), plain.backward());
    }
    if (wants("composed")) {
      const Side composed = side(c, c.convolves, true, Path::reference);
      add("forward and backward vs composed", c, mixing.both(), composed.both());
    }
    if (wants("ungated") && !options_.gate.empty()) {
      Side ungated = side(c, c.convolves, true, Path::fused, false);
      add("forward vs without gate", c, mixing.forward(), ungated.forward());
      add("backward vs without gate", c, mixing.backward(), ungated.backward());
    }
    if (wants("eager") && options_.gate.empty()) {
      const AttentionSpec spec = layer(options_.heads, c.width, c.convolves, true);
      const Side torch(Inputs(spec, c.length, c.type()),
                       [spec](const Inputs& in) { return eager(spec, in); });
      add("forward and backward vs eager torch", c, mixing.both(), torch.both());
    }
  }

  std::string name_of(const std::string& what, const Case& c) const {
    return fmt::format("{}, {}{} {} d={} T={} H={}", what,
                       c.convolves ? "convolution and mix" : "mix",
                       options_.gate.empty() ? "" : " with focus " + options_.gate, c.dtype,
                       c.width, c.length, options_.heads);
  }

  void add(const std::string& what, const Case& c, const Action& ours, const Action& other) {
    PairedTimes times;
    ours();
    other();
    double spent = 0.0;
    for (int n = 0; n < options_.pairs && (n < 5 || spent < options_.budget * 1e3); ++n) {
      const double our_time = cpu_milliseconds(ours);
      times.add(our_time, cpu_milliseconds(other));
      spent += times.ours.back() + times.other.back();
    }
    Json result{{"name", name_of(what, c)}, {"pairs", times.ours.size()}};
    result.update(times.quartiles_as("fovea_ms", "other_ms"));
    const double ratio = result["ratio"]["median"];
    result["times_of_other"] = 1.0 / ratio;
    const double pairs = double(options_.heads) * double(c.length) * double(c.length + 1) / 2.0;
    result["fovea_ns_per_pair"] = result["fovea_ms"]["median"].get<double>() * 1e6 / pairs;
    results_.push_back(result);
    std::cout << fmt::format("{:84} {:9.2f} ms  ratio {:6.2f}, {:5.2f} of the other's time",
                             name_of(what, c), result["fovea_ms"]["median"].get<double>(), ratio,
                             1.0 / ratio)
              << std::endl;
  }

  Options options_;
  std::vector<Json> results_;
};

}  // namespace
}  // namespace fovea

int main(int argc, char** argv) {
  fovea::Options options;
  CLI::App app("Multi-Token and talking-heads attention against plain, composed and eager");
  app.add_option("--dtypes", options.dtypes)->delimiter(',');
  app.add_option("--widths", options.widths)->delimiter(',');
  app.add_option("--lengths", options.lengths)->delimiter(',');
  app.add_option("--heads", options.heads);
  app.add_option("--only", options.only)
      ->check(CLI::IsMember({"plain", "composed", "eager", "ungated"}));
  app.add_option("--layer", options.layer)->check(CLI::IsMember({"convolution", "mix"}));
  app.add_option("--gate", options.gate)
      ->check(CLI::IsMember({"mul", "log", "logsig", "identity", "hard", "straight_through"}));
  app.add_option("--pairs", options.pairs);
  app.add_option("--budget", options.budget);
  app.add_option("--output", options.output);
  CLI11_PARSE(app, argc, argv);
  fovea::Benchmark benchmark(options);
  benchmark.run();
  fovea::merge_results(options.output, "attention_mixing",
                       "other / Fovea, above 1 Fovea is faster; CPU time of the process, medians "
                       "of the pairs' ratios",
                       argc, argv, benchmark.results());
}
