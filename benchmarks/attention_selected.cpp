// Benchmark of selectors (SparQ, MagicPIG) against our own plain attention, in turn in one process:
// decoding from caches that together exceed those of the CPU, and texts as a whole
// (docs/mechanisms/sparq.md, magicpig.md).
//
//   attention_selected [--only decode|text] [--systems sparq,magic_pig] [--dtypes bfloat16]
//   [--lengths 4096,16384]
//                      [--heads 8] [--kv-heads 2] [--width 64] [--pairs 21] [--budget 5]
//                      [--threads 1] [--output FILE]
//
// Prints a line a case: milliseconds, the ratio plain / selector, keys that a query reads; of
// MagicPIG the time of its lookups, alone in turn with plain attention, over what reading fewer
// keys saves; of SparQ the bytes that its formula says as a share of those of plain attention.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "benchmarks/pairs.h"
#include "fovea/attention/backend.h"
#include "fovea/attention/cache/hash_tables.h"
#include "fovea/attention/cache/sorted_copy.h"
#include "fovea/attention/call.h"
#include "fovea/attention/decode/cached_attention.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::vector<std::string> dtypes{"bfloat16"}, systems{"sparq", "magic_pig"};
  std::vector<int64_t> lengths{4096, 16384};
  std::string only, output;
  int64_t heads = 8, kv_heads = 2, width = 64;
  int pairs = 21, threads = 1;
  double budget = 5.0;
};

struct Case {
  std::string name;
  AttentionSpec spec;
};

constexpr int64_t kTokens = 8;  // a measure

// A cache of random tokens on huge pages, as those of models lie, and its copy.
struct Text {
  std::unique_ptr<HugePages> memory;
  std::unique_ptr<AttentionCache> cache;
  SortedCopy copy;
  int64_t length = 0;

  Text(const AttentionSpec& spec, const at::Tensor& k, const at::Tensor& v) : length(k.size(2)) {
    const auto streams = cache_streams(spec, k.scalar_type());
    memory = std::make_unique<HugePages>(cache_bytes(streams, 1, length + 1));
    cache = std::make_unique<AttentionCache>(streams, 1, length + 1, at::kCPU, memory.get());
    append_rows(*cache, {.spec = spec, .k = k, .v = v});
  }
  AttentionResult token(const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& k,
                        const at::Tensor& v) {
    AttentionResult result = cached_attention(spec, *cache, q, k, v, {}, Path::fused, &copy);
    cache->truncate(length);
    return result;
  }
};

class Benchmark {
 public:
  explicit Benchmark(const Options& options) : options_(options) {}

  void run() {
    const at::NoGradGuard no_gradient;
    for (const std::string& dtype : options_.dtypes) {
      for (const int64_t length : options_.lengths) {
        for (const Case& one : cases()) {
          const auto begins = [&](const std::string& name) { return one.name.starts_with(name); };
          if (std::ranges::none_of(options_.systems, begins)) continue;
          if (options_.only != "text") decode(dtype, length, one);
          if (options_.only != "decode" && one.spec.sparq.active()) text(dtype, length, one);
        }
      }
    }
  }
  const std::vector<Json>& results() const { return results_; }

 private:
  AttentionSpec plain() const {
    return {.heads = options_.heads, .kv_heads = options_.kv_heads, .head_dim = options_.width};
  }

  std::vector<Case> cases() const {
    std::vector<Case> all(3, {"", plain()});
    all[0].name = "sparq r=16 k=128";
    all[0].spec.sparq = {.components = 16, .keys = 128};
    all[1].name = "sparq r=32 k=128";
    all[1].spec.sparq = {.components = 32, .keys = 128};
    all[2].name = "magic_pig K=10 L=150";
    all[2].spec.magic_pig = {.bits = 10, .tables = 150};
    return all;
  }

  at::Tensor random(int64_t heads, int64_t tokens, at::ScalarType type) const {
    return at::randn({1, heads, tokens, options_.width}).to(type);
  }

  // SparQ: bytes of the formula over those of plain attention: r components of all keys, then k + 1
  // keys and values and the mean.
  double formula(const AttentionSpec& spec, int64_t length) const {
    const auto d = double(options_.width), n = double(length);
    return (n * double(spec.sparq.components) + 2.0 * double(spec.sparq.keys + 1) * d + d) /
           (2.0 * n * d);
  }

  void decode(const std::string& dtype, int64_t length, const Case& one) {
    const at::ScalarType type = dtype == "float32" ? at::kFloat : at::kBFloat16;
    constexpr double kHeld = double(256 << 20);
    const double bytes =
        2.0 * double(length * options_.kv_heads * options_.width) * double(at::elementSize(type));
    std::vector<Text> with, without;
    for (double held = 0.0; held < kHeld; held += bytes) {
      const at::Tensor k = random(options_.kv_heads, length, type),
                       v = random(options_.kv_heads, length, type);
      with.emplace_back(one.spec, k, v);
      without.emplace_back(plain(), k, v);
      if (one.spec.magic_pig.active() && with.size() == 8) break;  // tables take longer to make
    }
    const at::Tensor q = random(options_.heads, 1, type), k = random(options_.kv_heads, 1, type),
                     v = random(options_.kv_heads, 1, type);
    size_t ours = 0, other = without.size() / 2;
    AttentionResult last;
    for (Text& each : with) last = each.token(one.spec, q, k, v);
    const auto turn = [&](const AttentionSpec& spec, std::vector<Text>& texts, size_t& at) {
      for (int64_t n = 0; n < kTokens; ++n, ++at) texts[at % texts.size()].token(spec, q, k, v);
    };
    Json json{
        {"name", fmt::format("decode {}, {} d={} keys={} H={}/{}, {} tokens", one.name, dtype,
                             options_.width, length, options_.heads, options_.kv_heads, kTokens)}};
    json.update(measure_pairs(
        options_.pairs, options_.budget, [&] { turn(one.spec, with, ours); },
        [&] { turn(plain(), without, other); }));
    json["read"] = last.path.reason.text();
    if (one.spec.magic_pig.active()) {
      const Json lookups = measure_pairs(
          options_.pairs, options_.budget,
          [&] {
            for (int64_t n = 0; n < kTokens; ++n, ++ours) look_up(with[ours % with.size()], one, q);
          },
          [&] { turn(plain(), without, other); });
      const double lookup = lookups["fovea_ms"]["median"],
                   saved = json["other_ms"]["median"].get<double>() -
                           json["fovea_ms"]["median"].get<double>() + lookup;
      json["lookup_ms"] = lookups["fovea_ms"];
      json["lookup_share_of_saved"] = lookup / saved;
    }
    if (one.spec.sparq.active()) json["formula_bytes_share"] = formula(one.spec, length);
    json["memory_bytes"] = with[0].cache->bytes() + with[0].copy.bytes();
    json["plain_memory_bytes"] = without[0].cache->bytes();
    add(std::move(json));
  }

  // The part of a token that finds its keys: hashes, and the buckets of all tables.
  void look_up(Text& text, const Case& one, const at::Tensor& q) const {
    SelectorInputs inputs;
    inputs.prompts_b = at::full({1}, text.length, at::kLong);
    text.copy.tables.complete(inputs, one.spec, *text.cache, 1);
    const HashTables& tables = *inputs.tables;
    const at::Tensor rows = q.to(at::kFloat).contiguous();
    std::vector<int32_t> hashes(static_cast<size_t>(options_.heads * one.spec.magic_pig.tables));
    const kernels::Backend& backend = backend_for(rows);
    backend.run(kernels::RowHashes{.rule = tables.rule(),
                                   .rows = rows.const_data_ptr<float>(),
                                   .count = options_.heads,
                                   .hashes = hashes.data()});
    static thread_local std::vector<uint8_t> counts;
    static thread_local std::vector<int32_t> found;
    counts.resize(static_cast<size_t>(tables.tables()[0].counted()));
    found.resize(static_cast<size_t>(text.length + kernels::kFoundRoom));
    int64_t count = 0;
    for (int64_t h = 0; h < options_.heads; ++h)
      backend.run(
          kernels::CollidingKeys{.rule = tables.rule(),
                                 .table = &tables.tables()[h * options_.kv_heads / options_.heads],
                                 .hashes = hashes.data() + h * one.spec.magic_pig.tables,
                                 .counts = counts.data(),
                                 .found = found.data(),
                                 .count = &count});
  }

  // A text of its own as a whole: every row chooses.
  void text(const std::string& dtype, int64_t length, const Case& one) {
    const at::ScalarType type = dtype == "float32" ? at::kFloat : at::kBFloat16;
    const at::Tensor q = random(options_.heads, length, type),
                     k = random(options_.kv_heads, length, type),
                     v = random(options_.kv_heads, length, type);
    const auto turn = [&](const AttentionSpec& spec) {
      return attention(spec, q, k, v, {}, {}, Path::fused).path;
    };
    Json json{{"name", fmt::format("text {}, {} d={} T={} H={}/{}", one.name, dtype, options_.width,
                                   length, options_.heads, options_.kv_heads)}};
    json.update(measure_pairs(
        options_.pairs, options_.budget, [&] { turn(one.spec); }, [&] { turn(plain()); }));
    json["read"] = turn(one.spec).reason.text();
    add(std::move(json));
  }

  void add(Json json) {
    std::cout << fmt::format(
        "{}: {:.3f} ms, plain {:.3f} ms, ratio {:.2f}; {}", json["name"].get<std::string>(),
        json["fovea_ms"]["median"].get<double>(), json["other_ms"]["median"].get<double>(),
        json["ratio"]["median"].get<double>(), json["read"].get<std::string>());
    if (json.contains("lookup_ms"))
      std::cout << fmt::format("; lookup {:.3f} ms, {:.0f} % of what it saves",
                               json["lookup_ms"]["median"].get<double>(),
                               100.0 * json["lookup_share_of_saved"].get<double>());
    if (json.contains("formula_bytes_share"))
      std::cout << fmt::format("; formula {:.3f}", json["formula_bytes_share"].get<double>());
    std::cout << std::endl;
    results_.push_back(std::move(json));
  }

  Options options_;
  std::vector<Json> results_;
};

}  // namespace
}  // namespace fovea

int main(int argc, char** argv) {
  fovea::Options options;
  CLI::App app("selectors against plain attention");
  app.add_option("--only", options.only)->check(CLI::IsMember({"decode", "text"}));
  app.add_option("--systems", options.systems)->delimiter(',');
  app.add_option("--dtypes", options.dtypes)->delimiter(',');
  app.add_option("--lengths", options.lengths)->delimiter(',');
  app.add_option("--heads", options.heads);
  app.add_option("--kv-heads", options.kv_heads);
  app.add_option("--width", options.width);
  app.add_option("--pairs", options.pairs);
  app.add_option("--budget", options.budget);
  app.add_option("--threads", options.threads);
  app.add_option("--output", options.output);
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(options.threads);
  try {
    fovea::Benchmark benchmark(options);
    benchmark.run();
    fovea::merge_results(options.output, "attention_selected", "plain / selector", argc, argv,
                         benchmark.results());
  } catch (const fovea::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
