// Benchmark of pointwise attention: our kernels against torch's scaled_dot_product_attention, and
// our kernels' variants against plain ones, in turn in one process (docs/benchmarks.md).
//
//   attention_pointwise [--dtypes float32,bfloat16] [--widths 64,128] [--lengths 1024,4096,16384]
//                       [--only sdpa|variants|gate|decode|threads|long|memory]
//                       [--pairs 21] [--budget 10] [--threads 1] [--output FILE]
//
// Prints a line a case. --output merges the cases into FILE (JSON), replacing those of equal names.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "benchmarks/fma_peak.h"
#include "benchmarks/held_memory.h"
#include "benchmarks/pairs.h"
#include "fovea/attention/attention.h"
#include "fovea/attention/cache/huge_pages.h"
#include "fovea/attention/plan.h"
#include "fovea/runtime/machine.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::vector<std::string> dtypes{"float32", "bfloat16"};
  std::vector<int64_t> widths{64, 128}, lengths{1024, 4096, 16384};
  std::string only, output;
  int pairs = 21, threads = 1;
  double budget = 10.0;  // seconds a measure, five pairs at least
};

// Times of `ours` and `other` in turn; ratio = other / ours.
// The words of a tensor, added up by `threads` threads.
float sum_of(const at::Tensor& x, int threads) {
  const auto* words = static_cast<const float*>(x.const_data_ptr());
  const size_t share = x.nbytes() / sizeof(float) / static_cast<size_t>(threads);
  float total = 0.0f;
#pragma omp parallel for num_threads(threads) reduction(+ : total)
  for (int n = 0; n < threads; ++n)
    total += fovea::sum_of(words + static_cast<size_t>(n) * share, share);
  return total;
}

Json measure_pairs(const Options& options, const Action& ours, const Action& other) {
  return fovea::measure_pairs(options.pairs, options.budget, ours, other);
}

struct Tensors {
  at::Tensor q, k, v, dout, tau;
};

Tensors random_tensors(int64_t heads, int64_t length, int64_t width, at::ScalarType dtype) {
  const auto draw = [&] { return at::randn({1, heads, length, width}).to(dtype); };
  Tensors x{draw(), draw(), draw(), draw(), at::rand({1, length}) * 4.0 + 6.0};
  for (at::Tensor* t : {&x.q, &x.k, &x.v}) t->set_requires_grad(true);
  return x;
}

// Calls of attention() with a plan that is derived once, as for the layers of a model.
class Ours {
 public:
  Ours(AttentionSpec spec, Tensors x) : spec_(std::move(spec)), x_(std::move(x)) {
    context_.plans = std::make_shared<PlanCache>();
    if (spec_.temperature.kind == TemperatureSpec::Kind::learned)
      tensors_.tau_bt = x_.tau.requires_grad_();
    if (spec_.focus.active()) {
      const at::Tensor scores = at::randn({1, x_.k.size(2), spec_.focus.groups}) * 3.0;
      tensors_.groups_bsk = at::softmax(scores, -1).requires_grad_();
    }
  }
  AttentionResult call() const {
    return attention(spec_, x_.q, x_.k, x_.v, tensors_, context_, Path::fused);
  }
  Ours& with_stats() {
    context_.want_stats = true;
    return *this;
  }
  Action forward() const {
    return [this] {
      const at::NoGradGuard no_gradient;
      call();
    };
  }
  Action backward() {
    out_ = call().out_bhte;
    return [this] {
      std::vector<at::Tensor> inputs{x_.q, x_.k, x_.v};
      for (const at::Tensor& x : {tensors_.tau_bt, tensors_.groups_bsk})
        if (x.defined()) inputs.push_back(x);
      torch::autograd::grad({out_}, inputs, {x_.dout}, /*retain_graph=*/true);
    };
  }

 private:
  AttentionSpec spec_;
  Tensors x_;
  AttentionTensors tensors_;
  AttentionContext context_;
  at::Tensor out_;
};

class Torch {
 public:
  explicit Torch(Tensors x) : x_(std::move(x)) {}
  Action forward() const {
    return [this] {
      const at::NoGradGuard no_gradient;
      at::scaled_dot_product_attention(x_.q, x_.k, x_.v, {}, 0.0, true);
    };
  }
  Action backward() {
    out_ = at::scaled_dot_product_attention(x_.q, x_.k, x_.v, {}, 0.0, true);
    return [this] {
      torch::autograd::grad({out_}, {x_.q, x_.k, x_.v}, {x_.dout}, /*retain_graph=*/true);
    };
  }

 private:
  Tensors x_;
  at::Tensor out_;
};

AttentionSpec plain_spec(int64_t heads, int64_t width) {
  AttentionSpec spec;
  spec.heads = spec.kv_heads = heads;
  spec.head_dim = width;
  return spec;
}

// Enough heads for some milliseconds, few enough for minutes.
int64_t heads_for(int64_t length) { return std::clamp<int64_t>(8192 / length, 1, 8); }

class Benchmark {
 public:
  explicit Benchmark(Options options) : options_(std::move(options)) {
    at::set_num_threads(options_.threads);
  }

  void run() {
    for (const std::string& dtype : options_.dtypes) {
      for (const int64_t width : options_.widths) {
        for (const int64_t length : options_.lengths) {
          if (options_.only.empty() || options_.only == "sdpa") against_torch(dtype, width, length);
        }
      }
      if (options_.only.empty() || options_.only == "variants") variants(dtype);
      if (options_.only.empty() || options_.only == "gate") gates(dtype);
      if (options_.only.empty() || options_.only == "decode") decode(dtype);
      if (options_.only == "threads") threads(dtype);
      if (options_.only == "long") long_sequence(dtype);
      if (options_.only == "memory") memory(dtype);
    }
  }

  void write(int argc, char** argv) const {
    if (options_.output.empty()) return;
    Json file;
    if (std::ifstream in(options_.output); in) file = Json::parse(in);
    file["benchmark"] = "attention_pointwise";
    file["ratio"] = "other / Fovea, above 1 Fovea is faster; medians of the pairs' ratios";
    file["commands"][fmt::format("{}", fmt::join(argv + 1, argv + argc, " "))] = code_version();
    file["machine"] = machine_summary(at::kCPU);
    for (const Json& result : results_) {
      Json kept = Json::array({result});
      for (const Json& old : file.value("results", Json::array())) {
        if (old["name"] != result["name"]) kept.insert(kept.end() - 1, old);
      }
      file["results"] = kept;
    }
    std::ofstream(options_.output) << file.dump(2) << "\n";
  }

 private:
  static at::ScalarType scalar_type(const std::string& dtype) {
    return dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  }

  // Times of both sides, with the share of the peak at that moment.
  void add(const std::string& name, const Action& ours, const Action& other, double flops,
           const std::string& dtype) {
    const bool pairs = dtype == "bfloat16";
    const PeakMeter peak{flops, [this, pairs] {
                           return options_.threads *
                                  (pairs ? fma_peak_bfloat16(1) : fma_peak_float32(1));
                         }};
    Json result = fovea::measure_pairs(options_.pairs, options_.budget, ours, other, peak);
    const double time = result["fovea_ms"]["median"];
    const double rate = flops / time * 1e-6;
    result["fovea_gflops"] = rate;
    result["threads"] = options_.threads;
    Json named{{"name", name}};
    named.update(result);
    results_.push_back(named);
    std::cout << fmt::format(
                     "{:46} {:9.3f} ms {:7.1f} GFLOP/s ({:3.0f} %)  ratio {:.2f} ({:.2f} to "
                     "{:.2f})",
                     name, time, rate, 100.0 * named["share_of_peak"]["median"].get<double>(),
                     named["ratio"]["median"].get<double>(), named["ratio"]["q1"].get<double>(),
                     named["ratio"]["q3"].get<double>())
              << std::endl;
  }

  void against_torch(const std::string& dtype, int64_t width, int64_t length) {
    const int64_t heads = heads_for(length);
    const double pairs = double(heads) * double(length) * double(length + 1) / 2.0;
    const Tensors x = random_tensors(heads, length, width, scalar_type(dtype));
    Ours ours(plain_spec(heads, width), x);
    Torch torch(x);
    const std::string what = fmt::format("{} d={} T={} H={}", dtype, width, length, heads);
    add("forward vs SDPA, " + what, ours.forward(), torch.forward(), 4.0 * double(width) * pairs,
        dtype);
    add("backward vs SDPA, " + what, ours.backward(), torch.backward(),
        10.0 * double(width) * pairs, dtype);
  }

  // One query against caches of keys and values that together exceed every cache of the CPU, taken
  // in turn; the other side reads the same memory with as many threads. Keys lie as DecodeState
  // holds them.
  void decode(const std::string& dtype) {
    constexpr int64_t heads = 8, kv_heads = 2, width = 64, total = 512 << 20;
    const at::NoGradGuard no_gradient;
    for (const int64_t length : {4096, 16384}) {
      const at::Tensor q = at::randn({1, heads, 1, width}).to(scalar_type(dtype));
      HugePages block(total + (total >> 2));
      const auto draw = [&] {
        const std::vector<int64_t> shape{1, kv_heads, length, width};
        return block.allocate(shape, scalar_type(dtype)).copy_(at::randn(shape));
      };
      std::vector<at::Tensor> keys, values;
      const double bytes = double(2 * length * kv_heads * width) * double(q.element_size());
      for (double held = 0.0; held < total; held += bytes) {
        keys.push_back(draw());
        values.push_back(draw());
      }
      AttentionSpec spec = plain_spec(heads, width);
      spec.kv_heads = kv_heads;
      size_t ours_at = 0, other_at = 0;
      const Action ours = [&] {
        for (int n = 0; n < 8; ++n, ++ours_at) {
          const size_t at = ours_at % keys.size();
          attention(spec, q, keys[at], values[at], {}, {}, Path::fused);
        }
      };
      const Action reading = [&] {
        for (int n = 0; n < 8; ++n, ++other_at) {
          const size_t at = (other_at + keys.size() / 2) % keys.size();
          for (const at::Tensor& x : {keys[at], values[at]}) read_ += sum_of(x, options_.threads);
        }
      };
      Json result = measure_pairs(options_, ours, reading);
      const double gigabytes = 8.0 * bytes * 1e-6;
      result["fovea_gb_per_s"] = gigabytes / result["fovea_ms"]["median"].get<double>();
      result["read_gb_per_s"] = gigabytes / result["other_ms"]["median"].get<double>();
      result["share_of_read_bandwidth"] = result["ratio"]["median"];
      add_plain(fmt::format("decode vs reading, {} d={} keys={} H={}/{}{}", dtype, width, length,
                            heads, kv_heads, options_.threads > 1 ? ", all threads" : ""),
                result);
    }
  }

  // Two threads against one: ratio = the gain.
  void threads(const std::string& dtype) {
    for (const int64_t length : options_.lengths) {
      const int64_t heads = heads_for(length), width = 64;
      const Tensors x = random_tensors(heads, length, width, scalar_type(dtype));
      Ours ours(plain_spec(heads, width), x);
      const auto with = [](int count, Action action) -> Action {
        return [count, action] {
          at::set_num_threads(count);
          action();
        };
      };
      const std::string what = fmt::format("{} d={} T={} H={}", dtype, width, length, heads);
      for (const auto& [name, action] :
           {std::pair{"forward", ours.forward()}, {"backward", ours.backward()}}) {
        add_plain(fmt::format("{} with 2 threads vs 1, {}", name, what),
                  measure_pairs(options_, with(2, action), with(1, action)));
      }
      at::set_num_threads(options_.threads);
    }
  }

  // One sequence of 64K tokens against as many products at 16K: what leaving the caches costs.
  void long_sequence(const std::string& dtype) {
    constexpr int64_t length = 65536, width = 64;
    Ours whole(plain_spec(1, width), random_tensors(1, length, width, scalar_type(dtype)));
    Ours part(plain_spec(1, width), random_tensors(1, length / 4, width, scalar_type(dtype)));
    const Action parts = [one = part.forward()] {
      for (int n = 0; n < 16; ++n) one();
    };
    add(fmt::format("forward vs 16 of T=16384, {} d={} T={} H=1", dtype, width, length),
        whole.forward(), parts, 2.0 * double(length) * double(length + 1) * width, dtype);
  }

  // Memory that the kernels hold during a call. They take it by operator new, which this program
  // counts; torch's tensors, the inputs and outputs, come from elsewhere.
  void memory(const std::string& dtype) {
    for (const int64_t length : {4096, 16384, 65536}) {
      constexpr int64_t width = 64;
      const Tensors x = random_tensors(1, length, width, scalar_type(dtype));
      Ours ours(plain_spec(1, width), x);
      const Action forward = ours.forward(), backward = ours.backward();
      const int64_t forward_bytes = bytes_held_during(forward),
                    backward_bytes = bytes_held_during(backward);
      add_plain(
          fmt::format("memory beyond inputs and outputs, {} d={} T={} H=1", dtype, width, length),
          {{"forward_bytes", forward_bytes},
           {"backward_bytes", backward_bytes},
           {"forward_bytes_per_token", double(forward_bytes) / double(length)},
           {"backward_bytes_per_token", double(backward_bytes) / double(length)},
           {"bytes_of_q_k_v_and_out_per_token", 4 * width * x.q.element_size()}});
    }
  }

  // A result without a share of the peak.
  void add_plain(const std::string& name, const Json& result) {
    Json named{{"name", name}};
    named.update(result);
    results_.push_back(named);
    std::cout << named.dump() << std::endl;
  }

  // Our kernels with a setting against our plain kernels: ratio = plain / variant.
  void against_plain(const std::string& name, const std::string& dtype, int64_t width,
                     int64_t length, const std::function<void(AttentionSpec&)>& change) {
    const int64_t heads = heads_for(length);
    const Tensors x = random_tensors(heads, length, width, scalar_type(dtype));
    AttentionSpec spec = plain_spec(heads, width);
    Ours plain(spec, x);
    change(spec);
    Ours variant(spec, x);
    const std::string what = fmt::format("{} d={} T={} H={}", dtype, width, length, heads);
    const double flops = double(heads) * double(length) * double(length + 1) / 2.0 * double(width);
    add("forward " + name + " vs plain, " + what, variant.forward(), plain.forward(), 4.0 * flops,
        dtype);
    add("backward " + name + " vs plain, " + what, variant.backward(), plain.backward(),
        10.0 * flops, dtype);
  }

  // The soft gate of Focus, with the gradient of the groups.
  void gates(const std::string& dtype) {
    for (const int64_t width : options_.widths) {
      for (const int64_t length : options_.lengths) {
        for (const int64_t groups : {4, 8}) {
          against_plain(fmt::format("log gate of {} groups", groups), dtype, width, length,
                        [groups](AttentionSpec& s) {
                          s.focus = {.gate = FocusSpec::Gate::log, .groups = groups};
                        });
        }
      }
    }
    against_plain("mul gate of 8 groups", dtype, 64, 4096,
                  [](AttentionSpec& s) { s.focus = {.gate = FocusSpec::Gate::mul}; });
  }

  void variants(const std::string& dtype) {
    constexpr int64_t width = 64;
    const auto compare = [&](const std::string& name, int64_t length,
                             const std::function<void(AttentionSpec&)>& change) {
      against_plain(name, dtype, width, length, change);
    };
    {
      const Tensors x = random_tensors(2, 4096, width, scalar_type(dtype));
      Ours plain(plain_spec(2, width), x), counting(plain_spec(2, width), x);
      add(fmt::format("forward telemetry vs plain, {} d={} T=4096 H=2", dtype, width),
          counting.with_stats().forward(), plain.forward(), 4.0 * 4096.0 * 4097.0 * width, dtype);
    }
    compare("t 0.4", 4096, [](AttentionSpec& s) { s.temperature.value = 0.4; });
    compare("learned tau", 4096,
            [](AttentionSpec& s) { s.temperature.kind = TemperatureSpec::Kind::learned; });
    compare("soft-cap", 4096, [](AttentionSpec& s) { s.soft_cap = 30.0; });
    compare("alibi", 4096, [](AttentionSpec& s) { s.bias.kind = BiasSpec::Kind::alibi; });
    compare("window 256", 16384, [](AttentionSpec& s) { s.mask.window = 256; });
  }

  Options options_;
  float read_ = 0.0f;  // keeps what is read alive
  std::vector<Json> results_;
};

}  // namespace
}  // namespace fovea

int main(int argc, char** argv) {
  fovea::Options options;
  CLI::App app("pointwise attention against torch");
  app.add_option("--dtypes", options.dtypes)->delimiter(',');
  app.add_option("--widths", options.widths)->delimiter(',');
  app.add_option("--lengths", options.lengths)->delimiter(',');
  app.add_option("--only", options.only)
      ->check(CLI::IsMember({"sdpa", "variants", "gate", "decode", "threads", "long", "memory"}));
  app.add_option("--pairs", options.pairs);
  app.add_option("--budget", options.budget);
  app.add_option("--threads", options.threads);
  app.add_option("--output", options.output);
  CLI11_PARSE(app, argc, argv);
  fovea::Benchmark benchmark(options);
  benchmark.run();
  benchmark.write(argc, argv);
}
