// Benchmark of hard Focus by the grouped kernels against our own plain attention, in turn in one
// process (docs/kernels/grouped.md). Making the plan is part of every time.
//
//   attention_grouped [--only forward|backward|plans|sinks|decode|memory|routing|chooser]
//                     [--dtypes bfloat16] [--widths 64] [--lengths 512,1024,2048,4096,16384,65536]
//                     [--pairs 21]
//                     [--patterns NAME] [--budget 3] [--threads 1] [--plain-up-to 262144]
//                     [--output FILE]
//
// Beyond --plain-up-to, forward lines take the time of plain attention from a quarter of the length
// (or a sixteenth, ...) as growing with its square, and say so.
// Prints a line a case with the bound that the pairs kept allow (spec 11.4) and the paper's Table 6
// beside it. --output merges the cases into FILE (JSON), replacing those of equal names.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "benchmarks/held_memory.h"
#include "benchmarks/pairs.h"
#include "fovea/attention/attention.h"
#include "fovea/attention/cache/huge_pages.h"
#include "fovea/attention/cache/sorted_keys.h"
#include "fovea/attention/decode/cached_attention.h"
#include "fovea/attention/paths/grouped.h"
#include "fovea/attention/plan.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::vector<std::string> dtypes{"bfloat16"};
  std::vector<int64_t> widths{64}, lengths{512, 1024, 2048, 4096, 16384, 65536};
  std::string only, output, patterns;
  int pairs = 21, threads = 1;
  int64_t plain_up_to = 1 << 18;
  double budget = 3.0;  // seconds a measure, five pairs at least (three where one takes a second)
};

constexpr int64_t kLongestBackward = 1 << 18;

// ratio = plain / grouped, whose time counts `factor` times.
Json measure_pairs(const Options& options, const Action& grouped, const Action& plain,
                   double factor = 1.0) {
  PairedTimes times;
  constexpr double kLong = 2e4;  // not measured a second time
  const double first = milliseconds(grouped), once = milliseconds(plain);
  const int least = once > 1e3 ? 3 : 5;
  const bool only_once = std::max(first, once) > kLong;
  if (only_once) times.add(first > kLong ? first : milliseconds(grouped), once * factor);
  double spent = 0.0;
  for (int n = only_once ? options.pairs : 0;
       n < options.pairs && (n < least || spent < options.budget * 1e3); ++n) {
    const double ours = milliseconds(grouped), other = milliseconds(plain);
    times.add(ours, other * factor);
    spent += ours + other;
  }
  Json json{{"pairs", times.ours.size()}};
  json.update(times.quartiles_as("grouped_ms", "plain_ms"));
  return json;
}

// Memberships of one kind.
struct Pattern {
  std::string name;
  int64_t groups = 8, top_k = 1;
  int64_t run = 1;  // tokens that keep a choice, on average; 0: all tokens in group 0
};

// [texts, tokens], every text drawn for itself.
at::Tensor members_of(const Pattern& pattern, int64_t tokens, uint64_t seed, int64_t texts = 1) {
  std::mt19937_64 random(seed);
  at::Tensor bits = at::zeros({texts, tokens}, at::kLong);
  auto* at = bits.mutable_data_ptr<int64_t>();
  int64_t set = 1;
  for (int64_t n = 0; n < texts * tokens && pattern.run > 0; ++n) {
    if (n % tokens == 0 || random() % static_cast<uint64_t>(pattern.run) == 0) {
      set = 0;
      while (std::popcount(static_cast<uint64_t>(set)) < pattern.top_k)
        set |= int64_t{1} << random() % static_cast<uint64_t>(pattern.groups);
    }
    at[n] = set;
  }
  if (pattern.run == 0) bits.fill_(1);
  return bits;
}

// Share of causal pairs that are kept, from 2^18 samples.
double kept_share(const at::Tensor& members, const FocusSpec& focus) {
  std::mt19937_64 random(5);
  const int64_t texts = members.size(0), tokens = members.size(1);
  const int64_t* sets = members.const_data_ptr<int64_t>();
  int64_t kept = 0;
  constexpr int64_t kSamples = 1 << 18;
  for (int64_t n = 0; n < kSamples; ++n) {
    int64_t i = static_cast<int64_t>(random() % static_cast<uint64_t>(tokens));
    int64_t j = static_cast<int64_t>(random() % static_cast<uint64_t>(tokens));
    if (j > i) std::swap(i, j);
    const int64_t* own = sets + n % texts * tokens;
    kept += i - j < focus.window || j < focus.sinks || (own[i] & own[j]) != 0 ? 1 : 0;
  }
  return double(kept) / double(kSamples);
}

AttentionSpec spec_of(int64_t heads, int64_t width, const Pattern& pattern, int64_t sinks) {
  AttentionSpec spec;
  spec.heads = spec.kv_heads = heads;
  spec.head_dim = width;
  spec.focus = {.gate = FocusSpec::Gate::hard,
                .groups = pattern.groups,
                .top_k = pattern.top_k,
                .window = 128,
                .sinks = sinks};
  return spec;
}

// What the paper's Tables 6 and 7 report on an H100 (flash attention = 1).
std::string paper_row(const Pattern& pattern, int64_t tokens) {
  static const std::map<std::pair<int64_t, int64_t>, std::string> table6{
      {{8, 1 << 10}, "0.2"}, {{8, 1 << 12}, "0.6"}, {{8, 1 << 14}, "1.8"}, {{8, 1 << 16}, "4.7"},
      {{8, 1 << 18}, "7.6"}, {{8, 1 << 20}, "8.6"}, {{4, 1 << 10}, "0.2"}, {{4, 1 << 12}, "0.5"},
      {{4, 1 << 14}, "1.5"}, {{4, 1 << 16}, "3.0"}, {{4, 1 << 18}, "4.0"}, {{4, 1 << 20}, "4.1"}};
  if (pattern.groups == 4 && pattern.top_k == 2) return "2.0";
  const auto found = table6.find({pattern.groups, tokens});
  return pattern.top_k == 1 && pattern.run > 0 && found != table6.end() ? found->second : "-";
}

class Grouped {
 public:
  Grouped(AttentionSpec spec, at::Tensor q, at::Tensor k, at::Tensor v, at::Tensor members,
          std::optional<GroupedKind> kind = std::nullopt)
      : spec_(std::move(spec)),
        q_(std::move(q)),
        k_(std::move(k)),
        v_(std::move(v)),
        members_(std::move(members)),
        kind_(kind) {}

  AttentionResult call() const {
    AttentionResult result;
    if (kind_) {
      const AttentionCall given = checked_call(spec_, q_, k_, v_, {.members_bs = members_}, {});
      result = grouped_attention(given, make_grouped_plans(given, kind_));
    } else {
      result = attention(spec_, q_, k_, v_, {.members_bs = members_}, {}, Path::fused);
    }
    path_ = result.path;
    return result;
  }
  /// Of the last call.
  const PathTaken& path() const { return path_; }
  Action forward() const {
    return [this] {
      const at::NoGradGuard no_gradient;
      call();
    };
  }
  Action backward(const at::Tensor& dout) {
    out_ = call().out_bhte;
    return [this, dout] {
      torch::autograd::grad({out_}, {q_, k_, v_}, {dout}, /*retain_graph=*/true);
    };
  }

 private:
  AttentionSpec spec_;
  at::Tensor q_, k_, v_, members_, out_;
  std::optional<GroupedKind> kind_;
  mutable PathTaken path_;
};

// Enough heads for some milliseconds.
int64_t heads_for(int64_t length) { return std::clamp<int64_t>(8192 / length, 1, 8); }

// A short text has a few runs of tokens alone, and a bound of its own: 1.4 to 2.2 at 512 tokens and
// K = 8. Several together have that of the kind.
int64_t texts_for(int64_t length) { return std::clamp<int64_t>(16384 / length, 1, 16); }

class Benchmark {
 public:
  explicit Benchmark(Options options) : options_(std::move(options)) {
    at::set_num_threads(options_.threads);
  }

  void run() {
    if (options_.only == "chooser") {
      for (const int64_t top_k : {1, 2}) {
        for (const int64_t run : {1, 64}) chooser(top_k, run);
      }
      return;
    }
    for (const std::string& dtype : options_.dtypes) {
      for (const int64_t width : options_.widths) {
        for (const int64_t length : options_.lengths) {
          if (wants("forward")) forward(dtype, width, length);
          if (options_.only == "plans") plans(dtype, width, length);
          if (wants("backward") && length >= 1024) backward(dtype, width, length);
          if (wants("sinks")) sinks(dtype, width, length);
          if (wants("decode") && length >= 1024) decode(dtype, width, length);
          if (options_.only == "memory") memory(dtype, width, length);
          if (options_.only == "routing") routing(dtype, width, length);
        }
      }
    }
  }

  void write(int argc, char** argv) const {
    merge_results(options_.output, "attention_grouped",
                  "plain / grouped, above 1 grouped is faster; medians of the pairs' ratios", argc,
                  argv, results_);
  }

 private:
  bool wants(const std::string& what) const {
    return options_.only.empty() || options_.only == what;
  }
  static at::ScalarType scalar_type(const std::string& dtype) {
    return dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  }

  struct Tensors {
    at::Tensor q, k, v, dout;
  };
  static Tensors random_tensors(int64_t heads, int64_t length, int64_t width,
                                const std::string& dtype, int64_t texts = 1) {
    const auto draw = [&] {
      return at::randn({texts, heads, length, width}).to(scalar_type(dtype));
    };
    Tensors x{draw(), draw(), draw(), draw()};
    for (at::Tensor* t : {&x.q, &x.k, &x.v}) t->set_requires_grad(true);
    return x;
  }
  static Action plain_forward(const Tensors& x, const std::shared_ptr<PlanCache>& plans) {
    AttentionSpec spec;
    spec.heads = spec.kv_heads = x.q.size(1);
    spec.head_dim = x.q.size(3);
    AttentionContext context;
    context.plans = plans;
    return [=] {
      const at::NoGradGuard no_gradient;
      attention(spec, x.q, x.k, x.v, {}, context, Path::fused);
    };
  }

  std::vector<Pattern> patterns() const {
    std::vector<Pattern> all{{"K=8 k=1 random", 8, 1, 1},   {"K=8 k=1 sticky", 8, 1, 64},
                             {"K=8 k=2 random", 8, 2, 1},   {"K=8 k=2 sticky", 8, 2, 64},
                             {"K=4 k=2 random", 4, 2, 1},   {"K=4 k=1 random", 4, 1, 1},
                             {"K=64 k=4 random", 64, 4, 1}, {"K=8 k=1 one group", 8, 1, 0}};
    std::erase_if(all, [this](const Pattern& pattern) {
      return pattern.name.find(options_.patterns) == std::string::npos;
    });
    return all;
  }

  void forward(const std::string& dtype, int64_t width, int64_t length) {
    const int64_t heads = heads_for(length), texts = texts_for(length);
    const Tensors x = random_tensors(heads, length, width, dtype, texts);
    int64_t measured = length;  // of plain attention
    while (measured > options_.plain_up_to) measured /= 4;
    const Tensors y = measured < length ? random_tensors(heads, measured, width, dtype) : x;
    const double times = double(length) / double(measured);
    const auto plans = std::make_shared<PlanCache>();
    for (const Pattern& pattern : patterns()) {
      const AttentionSpec spec = spec_of(heads, width, pattern, 0);
      const at::Tensor members = members_of(pattern, length, 11, texts);
      const Grouped grouped(spec, x.q, x.k, x.v, members);
      Json result =
          measure_pairs(options_, grouped.forward(), plain_forward(y, plans), times * times);
      if (measured < length) result["plain_extrapolated_from"] = measured;
      add(fmt::format("forward {}, {} d={} T={} B={} H={}", pattern.name, dtype, width, length,
                      texts, heads),
          result, spec, members, pattern, grouped.path());
    }
  }

  // Every plan that is possible, for the chooser's map.
  void plans(const std::string& dtype, int64_t width, int64_t length) {
    const int64_t heads = heads_for(length), texts = texts_for(length);
    const Tensors x = random_tensors(heads, length, width, dtype, texts);
    const auto cache = std::make_shared<PlanCache>();
    for (const Pattern& pattern : patterns()) {
      for (const GroupedKind kind :
           {GroupedKind::block_sparse, GroupedKind::classes, GroupedKind::groups}) {
        const AttentionSpec spec = spec_of(heads, width, pattern, 0);
        const at::Tensor members = members_of(pattern, length, 11, texts);
        const Grouped grouped(spec, x.q, x.k, x.v, members, kind);
        PathTaken path;
        try {
          path = grouped.call().path;
        } catch (const std::exception&) {
          continue;
        }
        path.reason = attention(spec, x.q, x.k, x.v, {.members_bs = members}).path.reason;
        add(fmt::format("plan {} {}, {} d={} T={} B={} H={}", path.plan.text(), pattern.name, dtype,
                        width, length, texts, heads),
            measure_pairs(options_, grouped.forward(), plain_forward(x, cache)), spec, members,
            pattern, path);
      }
    }
  }

  void backward(const std::string& dtype, int64_t width, int64_t length) {
    const int64_t heads = heads_for(length), texts = texts_for(length);
    const Tensors x = random_tensors(heads, length, width, dtype, texts);
    AttentionSpec plain;
    plain.heads = plain.kv_heads = heads;
    plain.head_dim = width;
    const at::Tensor out = attention(plain, x.q, x.k, x.v, {}, {}, Path::fused).out_bhte;
    const Action of_plain = [&] {
      torch::autograd::grad({out}, {x.q, x.k, x.v}, {x.dout}, /*retain_graph=*/true);
    };
    for (const Pattern& pattern : patterns()) {
      const AttentionSpec spec = spec_of(heads, width, pattern, 0);
      const at::Tensor members = members_of(pattern, length, 11, texts);
      Grouped grouped(spec, x.q, x.k, x.v, members);
      const PathTaken path = grouped.call().path;
      add(fmt::format("backward {}, {} d={} T={} B={} H={}", pattern.name, dtype, width, length,
                      texts, heads),
          measure_pairs(options_, grouped.backward(x.dout), of_plain), spec, members, pattern,
          path);
    }
  }

  // Which plan is taken by length and number of groups, and the tiles that it visits; nothing is
  // timed. scripts/draw-grouped.py draws it.
  void chooser(int64_t top_k, int64_t run) {
    constexpr int64_t lengths[] = {256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536};
    constexpr int64_t groups[] = {2, 4, 8, 16, 32, 64};
    Json plans = Json::array(), shares = Json::array();
    for (const int64_t number : groups) {
      Json plan_row = Json::array(), share_row = Json::array();
      for (const int64_t length : lengths) {
        const Pattern pattern{"", number, top_k, run};
        const at::Tensor members = members_of(pattern, length, 11);
        const at::Tensor none = at::empty({1, 1, length, 64});  // plans read sizes alone
        const GroupedPlans made = make_grouped_plans({.spec = spec_of(1, 64, pattern, 0),
                                                      .q = none,
                                                      .k = none,
                                                      .v = none,
                                                      .tensors = {.members_bs = members}});
        PathTaken path;
        count_tiles(*made.plans, path);
        plan_row.push_back(made.name().text());
        share_row.push_back(path.tiles / path.causal_tiles);
      }
      std::cout << fmt::format("k={} run={} K={}: {}", top_k, run, number, plan_row.dump())
                << std::endl;
      plans.push_back(plan_row);
      shares.push_back(share_row);
    }
    results_.push_back({{"name", fmt::format("chooser, k={}, runs of {}", top_k, run)},
                        {"lengths", lengths},
                        {"groups", groups},
                        {"plans", plans},
                        {"tiles_visited", shares}});
  }

  // With 4 sinks against none: ratio = none / 4.
  void sinks(const std::string& dtype, int64_t width, int64_t length) {
    const int64_t heads = heads_for(length);
    const Tensors x = random_tensors(heads, length, width, dtype);
    const Pattern pattern = patterns().front();
    const at::Tensor members = members_of(pattern, length, 11);
    const AttentionSpec spec = spec_of(heads, width, pattern, 4);
    const Grouped with(spec, x.q, x.k, x.v, members),
        without(spec_of(heads, width, pattern, 0), x.q, x.k, x.v, members);
    add(fmt::format("forward 4 sinks vs none, {}, {} d={} T={} H={}", pattern.name, dtype, width,
                    length, heads),
        measure_pairs(options_, with.forward(), without.forward()), spec, members, pattern,
        with.call().path);
  }

  // One query against caches that together exceed those of the CPU, taken in turn.
  void decode(const std::string& dtype, int64_t width, int64_t length) {
    constexpr int64_t heads = 8, kv_heads = 2, total = 256 << 20;
    const at::NoGradGuard no_gradient;
    const at::Tensor q = at::randn({1, heads, 1, width}).to(scalar_type(dtype));
    std::vector<at::Tensor> keys, values, listed_keys, listed_values;
    const double bytes = double(2 * length * kv_heads * width) * double(q.element_size());
    for (double held = 0.0; held < total; held += bytes) {  // as the caches of models lie
      for (std::vector<at::Tensor>* to : {&keys, &values}) {
        at::Tensor rows = HugePages(HugePages::padded(static_cast<int64_t>(bytes) / 2))
                              .allocate({1, kv_heads, length, width}, scalar_type(dtype));
        to->push_back(rows.copy_(at::randn(rows.sizes())));
      }
      for (auto [to, from] : {std::pair{&listed_keys, &keys}, {&listed_values, &values}}) {
        at::Tensor rows = HugePages(HugePages::padded(static_cast<int64_t>(bytes) / 2))
                              .allocate({1, length, kv_heads, width}, scalar_type(dtype));
        to->push_back(rows.copy_(from->back().transpose(1, 2)).transpose(1, 2));
      }
    }
    for (const Pattern& pattern : patterns()) {
      AttentionSpec spec = spec_of(heads, width, pattern, 4), plain;
      spec.kv_heads = kv_heads;
      plain = spec;
      plain.focus = {};
      const at::Tensor members = members_of(pattern, length, 11);
      const auto turn = [&](const AttentionSpec& of, const AttentionTensors& tensors, size_t& at) {
        const bool listed = tensors.members_bs.defined();
        const std::vector<at::Tensor>&k = listed ? listed_keys : keys,
              &v = listed ? listed_values : values;
        for (int n = 0; n < 8; ++n, ++at)
          attention(of, q, k[at % k.size()], v[at % v.size()], tensors, {}, Path::fused);
      };
      size_t ours = 0, other = keys.size() / 2;
      const Json result = measure_pairs(
          options_, [&] { turn(spec, {.members_bs = members}, ours); },
          [&] { turn(plain, {}, other); });
      add(fmt::format("decode {}, {} d={} keys={} H={}/{}, 8 tokens", pattern.name, dtype, width,
                      length, heads, kv_heads),
          result, spec, members, pattern,
          attention(spec, q, keys[0], values[0], {.members_bs = members}).path);
      if (!SortedKeys::pays(members)) continue;  // a cache would not sort these
      std::vector<SortedKeys> sorted(keys.size());
      for (size_t n = 0; n < keys.size(); ++n) sorted[n].append(0, keys[n], values[n], members);
      const auto sorted_turn = [&](size_t& at) {
        for (int n = 0; n < 8; ++n, ++at) attend_sorted(sorted[at % keys.size()], spec, q, {}, {});
      };
      const Json by_runs = measure_pairs(
          options_, [&] { sorted_turn(ours); }, [&] { turn(plain, {}, other); });
      add(fmt::format("decode sorted {}, {} d={} keys={} H={}/{}, 8 tokens", pattern.name, dtype,
                      width, length, heads, kv_heads),
          by_runs, spec, members, pattern, attend_sorted(sorted[0], spec, q, {}, {})->path);
    }
  }

  // Random clusters; a head has its own, and so its own plan. Finding the clusters is not counted.
  void routing(const std::string& dtype, int64_t width, int64_t length) {
    constexpr int64_t kClusters = 16, kKeep = 256;
    const int64_t heads = heads_for(length);
    const Tensors x = random_tensors(heads, length, width, dtype);
    AttentionSpec spec;
    spec.heads = spec.kv_heads = heads;
    spec.head_dim = width;
    spec.routing = {.clusters = kClusters, .keep = kKeep};
    const auto clusters = [&] { return at::randint(kClusters, {1, heads, length}, at::kLong); };
    const AttentionTensors routes{.query_routes_bht = clusters(), .key_routes_bhs = clusters()};
    const auto call = [&] {
      const at::NoGradGuard no_gradient;
      return attention(spec, x.q, x.k, x.v, routes, {});
    };
    Json named{{"name", fmt::format("routing {} clusters keep {}, {} d={} T={} H={}", kClusters,
                                    kKeep, dtype, width, length, heads)}};
    named.update(measure_pairs(options_, call, plain_forward(x, std::make_shared<PlanCache>())));
    named["plan"] = call().path.plan_text();
    double kept = 0.0;  // expected pairs
    for (int64_t i = 0; i < length; ++i)
      kept += std::min(double(i + 1) / double(kClusters), double(kKeep));
    named["bound"] = double(length + 1) * double(length) / 2.0 / kept;
    named["threads"] = options_.threads;
    std::cout << named.dump() << std::endl;
    results_.push_back(named);
  }

  // Memory that plan and kernels hold during a call.
  void memory(const std::string& dtype, int64_t width, int64_t length) {
    const Tensors x = random_tensors(1, length, width, dtype);
    for (const Pattern& pattern : patterns()) {
      const at::Tensor members = members_of(pattern, length, 11);
      Grouped grouped(spec_of(1, width, pattern, 0), x.q, x.k, x.v, members);
      const int64_t forward = bytes_held_during(grouped.forward());
      Json named{{"name", fmt::format("memory beyond inputs and outputs, {}, {} d={} T={} H=1",
                                      pattern.name, dtype, width, length)},
                 {"plan", grouped.path().plan_text()},
                 {"forward_bytes_per_token", double(forward) / double(length)}};
      if (length <= kLongestBackward) {
        const int64_t back = bytes_held_during(grouped.backward(x.dout));
        named["backward_bytes_per_token"] = double(back) / double(length);
      }
      std::cout << named.dump() << std::endl;
      results_.push_back(named);
    }
  }

  void add(const std::string& name, const Json& result, const AttentionSpec& spec,
           const at::Tensor& members, const Pattern& pattern, const PathTaken& path) {
    const double kept = kept_share(members, spec.focus);
    Json named{{"name", name}};
    named.update(result);
    named["plan"] = path.plan_text();
    named["reason"] = path.reason.text();
    named["pairs_kept"] = kept;
    named["bound"] = 1.0 / kept;
    named["paper"] = paper_row(pattern, members.size(1));
    named["threads"] = options_.threads;
    results_.push_back(named);
    const auto median = [&](const char* key) { return named[key]["median"].get<double>(); };
    std::cout << fmt::format(
                     "{:66} {:9.3f} ms, plain {:9.3f}: {:5.2f}x ({:.2f} to {:.2f}), bound {:.2f}x, "
                     "paper {}; {} [{}]",
                     name, median("grouped_ms"), median("plain_ms"), median("ratio"),
                     named["ratio"]["q1"].get<double>(), named["ratio"]["q3"].get<double>(),
                     1.0 / kept, paper_row(pattern, members.size(1)), path.plan_text(),
                     path.reason.text())
              << (named.contains("plain_extrapolated_from") ? " (plain extrapolated)" : "")
              << std::endl;
  }

  Options options_;
  std::vector<Json> results_;
};

}  // namespace
}  // namespace fovea

int main(int argc, char** argv) {
  fovea::Options options;
  CLI::App app("hard focus by the grouped kernels against plain attention");
  app.add_option("--dtypes", options.dtypes)->delimiter(',');
  app.add_option("--widths", options.widths)->delimiter(',');
  app.add_option("--lengths", options.lengths)->delimiter(',');
  app.add_option("--only", options.only)
      ->check(CLI::IsMember(
          {"forward", "backward", "plans", "sinks", "decode", "memory", "routing", "chooser"}));
  app.add_option("--patterns", options.patterns, "only those whose name contains this");
  app.add_option("--pairs", options.pairs);
  app.add_option("--budget", options.budget);
  app.add_option("--threads", options.threads);
  app.add_option("--plain-up-to", options.plain_up_to, "longest sequence for plain attention");
  app.add_option("--output", options.output);
  CLI11_PARSE(app, argc, argv);
  fovea::Benchmark benchmark(options);
  benchmark.run();
  benchmark.write(argc, argv);
}
