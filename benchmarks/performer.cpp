// Benchmark of Performer (docs/mechanisms/performer.md).
//
//   performer [--only growth|published|decode|spread] [--lengths 1024,2048,4096,...]
//             [--published-lengths 512,1024] [--heads 8] [--width 64] [--features 256] [--pairs 5]
//
// growth: forward and backward of one length against half of it. published: against the form of the
// published PyTorch codes with the same features, a cumulative sum of k v^T a token in pieces of
// 128 tokens, written as tensor operations. decode: one token behind texts of these lengths.
// spread: standard deviation of the estimate of exp(q.k / sqrt d) over draws, by |q' + k'|^2. One
// thread; times are CPU time.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <ctime>
#include <functional>
#include <iostream>

#include "fovea/attention/decode/cached_attention.h"
#include "fovea/attention/mechanisms/performer_features.h"

namespace fovea {
namespace {

struct Options {
  std::vector<int64_t> lengths{1024, 2048, 4096, 8192, 16384, 32768, 65536},
      published_lengths{512, 1024};
  std::string only;
  int64_t heads = 8, width = 64, features = 256;
  int pairs = 5;
};

double cpu_milliseconds(const std::function<void()>& action) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
  };
  const double start = now();
  action();
  return now() - start;
}

double median(std::vector<double> x) {
  std::ranges::sort(x);
  return x[x.size() / 2];
}

class Benchmark {
 public:
  explicit Benchmark(const Options& options) : o_(options) {
    spec_.heads = spec_.kv_heads = o_.heads;
    spec_.head_dim = o_.width;
    spec_.performer.features = o_.features;
    tensors_.features_md = draw_features(spec_.performer, o_.width, 1);
  }

  void run() {
    std::cout << std::unitbuf;
    const std::pair<const char*, void (Benchmark::*)()> all[] = {
        {"growth", &Benchmark::growth},
        {"published", &Benchmark::published},
        {"decode", &Benchmark::decode},
        {"spread", &Benchmark::spread}};
    for (const auto& [name, part] : all)
      if (o_.only.empty() || o_.only == name) (this->*part)();
  }

 private:
  using Attention =
      std::function<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)>;

  std::vector<at::Tensor> inputs(int64_t tokens) const {
    std::vector<at::Tensor> all;
    all.reserve(3);
    for (int n = 0; n < 3; ++n)
      all.push_back(at::randn({1, o_.heads, tokens, o_.width}).set_requires_grad(true));
    return all;
  }

  static void step(const std::vector<at::Tensor>& x, const Attention& attention) {
    const at::Tensor out = attention(x[0], x[1], x[2]);
    torch::autograd::grad({out}, x, {at::ones_like(out)});
  }

  Attention ours() const {
    return [this](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
      return attention(spec_, q, k, v, tensors_, {}, Path::fused).out_bhte;
    };
  }

  at::Tensor features_of(const at::Tensor& x, bool keys) const {
    const at::Tensor scaled = x * std::pow(static_cast<double>(o_.width), -0.25);
    const at::Tensor products = at::matmul(scaled, tensors_.features_md.t());
    const at::Tensor largest =
        keys ? at::amax(products.detach(), {2, 3}, true) : at::amax(products.detach(), -1, true);
    return (products - 0.5 * scaled.square().sum(-1, true) - largest).exp() + 1e-4;
  }

  at::Tensor cumulative(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const {
    const at::Tensor f = features_of(q, false), g = features_of(k, true);
    at::Tensor sums = at::zeros({1, o_.heads, 1, o_.features, o_.width}),
               totals = at::zeros({1, o_.heads, 1, o_.features});
    std::vector<at::Tensor> parts;
    for (int64_t begin = 0; begin < q.size(2); begin += 128) {
      const int64_t n = std::min<int64_t>(128, q.size(2) - begin);
      const at::Tensor fq = f.narrow(2, begin, n), fk = g.narrow(2, begin, n);
      const at::Tensor all = sums +
                             at::einsum("bhnd,bhne->bhnde", {fk, v.narrow(2, begin, n)}).cumsum(2),
                       total = totals + fk.cumsum(2);
      const at::Tensor by = 1.0 / at::einsum("bhnd,bhnd->bhn", {fq, total + 1e-6});
      parts.push_back(at::einsum("bhnde,bhnd,bhn->bhne", {all, fq, by}));
      sums = all.narrow(2, n - 1, 1);
      totals = total.narrow(2, n - 1, 1);
    }
    return at::cat(parts, 2);
  }

  void growth() {
    for (size_t n = 0; n + 1 < o_.lengths.size(); ++n) {
      const auto half = inputs(o_.lengths[n]), whole = inputs(o_.lengths[n + 1]);
      std::vector<double> times, ratios;
      for (int pair = 0; pair < o_.pairs; ++pair) {
        const double first = cpu_milliseconds([&] { step(half, ours()); });
        times.push_back(cpu_milliseconds([&] { step(whole, ours()); }));
        ratios.push_back(times.back() / first);
      }
      std::cout << fmt::format("growth T {:6}: {:9.2f} ms, {:.3f} times that of T {}\n",
                               o_.lengths[n + 1], median(times), median(ratios), o_.lengths[n]);
    }
  }

  void published() {
    for (const int64_t tokens : o_.published_lengths) {
      const auto x = inputs(tokens);
      const Attention theirs = [this](const auto& q, const auto& k, const auto& v) {
        return cumulative(q, k, v);
      };
      std::vector<double> times, ratios;
      for (int pair = 0; pair < o_.pairs; ++pair) {
        times.push_back(cpu_milliseconds([&] { step(x, ours()); }));
        ratios.push_back(cpu_milliseconds([&] { step(x, theirs); }) / times.back());
      }
      std::cout << fmt::format("published T {}: {:.2f} ms, the published form {:.1f} times that\n",
                               tokens, median(times), median(ratios));
    }
  }

  void decode() {
    const at::NoGradGuard no_gradient;
    for (const int64_t tokens : o_.lengths) {
      AttentionCache cache(cache_streams(spec_, at::kFloat), 1, tokens + 64);
      const auto x = inputs(tokens), one = inputs(1);
      cached_attention(spec_, cache, x[0], x[1], x[2], tensors_);
      std::vector<double> times;
      times.reserve(50);
      for (int n = 0; n < 50; ++n)
        times.push_back(cpu_milliseconds(
            [&] { cached_attention(spec_, cache, one[0], one[1], one[2], tensors_); }));
      std::cout << fmt::format("decode behind {:6} tokens: {:.3f} ms, cache {} bytes\n", tokens,
                               median(times), cache.bytes());
    }
  }

  void spread() {
    const int64_t d = o_.width;
    for (const double square : {1.0, 2.0, 4.0, 8.0, 16.0, 32.0}) {
      at::Tensor x = at::ones({d}, at::kDouble) * std::sqrt(square / static_cast<double>(d)) / 2.0;
      const double truth = std::exp(square / 4.0);  // q' = k'
      std::vector<double> estimates;
      for (uint64_t seed = 0; seed < 400; ++seed) {
        const at::Tensor w = draw_features(spec_.performer, d, seed).to(at::kDouble);
        estimates.push_back((at::mv(w, 2.0 * x) - square / 4.0).exp().mean().item<double>() /
                            truth);
      }
      const double formula = std::sqrt((std::exp(square) - 1.0) / static_cast<double>(o_.features));
      std::cout << fmt::format(
          "spread |q' + k'|^2 {:4}: independent {:.3g}, measured {:.3g}, median {:.3g}\n", square,
          formula, at::tensor(estimates, at::kDouble).std().item<double>(), median(estimates));
    }
  }

  Options o_;
  AttentionSpec spec_;
  AttentionTensors tensors_;
};

}  // namespace
}  // namespace fovea

int main(int argc, char** argv) {
  fovea::Options options;
  CLI::App app("Performer: growth, the published form, decoding, spread of the estimate");
  app.add_option("--only", options.only)
      ->check(CLI::IsMember({"growth", "published", "decode", "spread"}));
  app.add_option("--lengths", options.lengths)->delimiter(',');
  app.add_option("--published-lengths", options.published_lengths)->delimiter(',');
  app.add_option("--heads", options.heads);
  app.add_option("--width", options.width);
  app.add_option("--features", options.features);
  app.add_option("--pairs", options.pairs);
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  fovea::Benchmark(options).run();
}
