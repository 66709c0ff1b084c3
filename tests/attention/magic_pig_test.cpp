// MagicPIG against scalar loops: sampling, its two readings of the prompt, hash tables (spec 4.5,
// 13.12).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "fovea/attention/cache/hash_tables.h"
#include "fovea/attention/cache/sorted_copy.h"
#include "fovea/attention/call.h"
#include "fovea/attention/decode/cached_attention.h"
#include "fovea/attention/mechanisms/magic_pig_choice.h"
#include "fovea/attention/paths/path.h"
#include "fovea/kernels/backend.h"
#include "fovea/kernels/cpu/decode/sampling.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"
#include "tests/support/scalar_attention.h"
#include "tests/support/scalar_selectors.h"

namespace fovea::magic_pig_test {
namespace {

using namespace fovea::testing;

AttentionSpec pig(int64_t bits, int64_t tables, int64_t start = 2, int64_t recent = 5) {
  AttentionSpec spec = small_spec(4, 2, 16);
  spec.value_dim = 8;
  spec.magic_pig = {.bits = bits, .tables = tables, .start = start, .recent = recent, .seed = 3};
  return spec;
}

std::vector<NamedSpec> pig_specs() {
  std::vector<NamedSpec> all{{"default", pig(3, 8)},
                             {"many bits", pig(13, 20)},
                             {"nothing static", pig(4, 12, 0, 0)},
                             {"one bit, two tables", pig(1, 2)}};
  all.push_back({"one key head", pig(3, 8)});
  all.back().spec.kv_heads = 1;
  all.push_back({"learned temperature", pig(3, 8)});
  all.back().spec.temperature.kind = TemperatureSpec::Kind::learned;
  all.back().spec.temperature.form = TemperatureSpec::Form::token;
  return all;
}

// Keys with a common part, as those of models have: centring matters.
AttentionInputs shifted_inputs(const AttentionSpec& spec, int64_t b, int64_t t, int64_t s = -1,
                               uint64_t seed = 1) {
  AttentionInputs in = random_inputs(spec, b, t, s, seed);
  in.k = in.k + 1.5 * random_normal({1, spec.kv_heads, 1, spec.head_dim}, seed + 99);
  return in;
}

AttentionResult run(const AttentionSpec& spec, const AttentionInputs& in, Path path,
                    AttentionContext context = {}) {
  context.want_lse = true;
  return attention(spec, in.q, in.k, in.v, in.tensors, context, path);
}

at::Tensor directions(const AttentionSpec& spec) {
  return hash_directions(spec.magic_pig, spec.head_dim);
}

TEST(MagicPig, RowsOfATextEqualScalarLoops) {
  for (const auto& [name, spec] : pig_specs()) {
    for (const int64_t t : {1, 7, 8, 45}) {
      const AttentionInputs in = shifted_inputs(spec, 2, t);
      const SelectedTruth truth = ScalarSelector(spec, in).magic_pig(directions(spec));
      const AttentionResult got = run(spec, in, Path::automatic);
      EXPECT_LT(relative_error(got.out_bhte, truth.out), 1e-10) << name << " " << t;
      EXPECT_LT(relative_error(got.lse_bht, truth.lse), 1e-10) << name << " " << t;
    }
    const AttentionInputs later = shifted_inputs(spec, 1, 6, 40);
    EXPECT_LT(relative_error(run(spec, later, Path::automatic).out_bhte,
                             ScalarSelector(spec, later).magic_pig(directions(spec)).out),
              1e-10);
    const AttentionInputs in = shifted_inputs(spec, 2, 50);
    EXPECT_LT(relative_error(run(spec, in, Path::automatic, packed_context({17, 1, 32})).out_bhte,
                             ScalarSelector(spec, in, {17, 1, 32}).magic_pig(directions(spec)).out),
              1e-10);
  }
}

// Through a cache the prompt is the first call; what comes after it is always read.
TEST(MagicPig, DecodingKeepsThePromptOfTheFirstCall) {
  for (const auto& [name, spec] : pig_specs()) {
    const int64_t prompt = 40, t = 70;
    const AttentionInputs in = shifted_inputs(spec, 2, t);
    const at::Tensor truth = ScalarSelector(spec, in).magic_pig(directions(spec), prompt).out;
    AttentionCache cache(cache_streams(spec, at::kDouble), 2, 100);
    const auto step = [&](AttentionCache& at, int64_t begin, int64_t n) {
      const AttentionInputs some = in.tokens(begin, n);
      const AttentionResult r = cached_attention(spec, at, some.q, some.k, some.v, some.tensors);
      EXPECT_LT(relative_error(r.out_bhte, truth.narrow(2, begin, n)), 1e-10)
          << name << " at " << begin;
    };
    step(cache, 0, prompt);
    for (int64_t i = prompt; i < 46; ++i) step(cache, i, 1);
    AttentionCache fork = cache.fork();
    step(fork, 46, 24);
    cache.truncate(43);
    step(cache, 43, 1);
  }
}

// A prompt of which the end was forgotten is the shorter prompt.
TEST(MagicPig, AShortenedPromptIsTheShorterPrompt) {
  const AttentionSpec spec = pig(3, 8);
  const AttentionInputs in = shifted_inputs(spec, 1, 40);
  const auto decoded = [&](int64_t first) {
    AttentionCache cache(cache_streams(spec, at::kDouble), 1, 64);
    const auto step = [&](int64_t begin, int64_t n) {
      const AttentionInputs some = in.tokens(begin, n);
      return cached_attention(spec, cache, some.q, some.k, some.v).out_bhte;
    };
    (void)step(0, first);
    cache.truncate(25);
    (void)step(25, 1);
    return step(26, 1);
  };
  EXPECT_TRUE(decoded(25).equal(decoded(38)));
}

// One query that asks hash tables reads what the reference reads.
TEST(MagicPig, HashTablesGiveTheFloat64ReferenceOfEveryDtype) {
  for (const auto& [name, spec] : pig_specs()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const AttentionInputs in = shifted_inputs(spec, 2, 1, 90).to(dtype);
      const at::Tensor truth =
          ScalarSelector(spec, in.to(at::kDouble)).magic_pig(directions(spec), 60).out;
      AttentionCall call = checked_call(spec, in.q, in.k, in.v, in.tensors, {});
      call.selector.prompts_b = at::full({2}, 60, at::kLong);
      EXPECT_NE(selected_path().reason_against(call).value_or("").find("tables"),
                std::string::npos);
      const int64_t prompts[] = {60, 60};
      call.selector.tables = std::make_shared<HashTables>(spec.magic_pig, in.k, prompts);
      const AttentionResult r = run_call(call, Path::fused);
      EXPECT_EQ(r.path.text(), "grouped scan");
      EXPECT_LT(relative_error(r.out_bhte, truth), dtype == at::kFloat ? 2e-5 : 2e-2) << name;
    }
  }
}

// Rows of a text, by kernels, also where earlier rows are in a cache.
TEST(MagicPig, KernelsGiveRowsOfATextTheFloat64ReferenceOfEveryDtype) {
  for (const auto& [name, spec] : pig_specs()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const auto& [t, s] : {std::pair{1, 1}, {8, 8}, {75, 75}, {6, 90}, {1, 40}}) {
        const AttentionInputs in = shifted_inputs(spec, 2, t, s).to(dtype);
        const SelectedTruth truth =
            ScalarSelector(spec, in.to(at::kDouble)).magic_pig(directions(spec));
        const AttentionResult r = run(spec, in, Path::fused);
        EXPECT_EQ(r.path.text(), "grouped lists");
        const double error = dtype == at::kFloat ? 2e-5 : 2e-2;
        EXPECT_LT(relative_error(r.out_bhte, truth.out), error) << name << " " << t << " " << s;
        EXPECT_LT(relative_error(r.lse_bht, truth.lse), error) << name << " " << t << " " << s;
        const at::Tensor read = truth.weights.gt(0.0).to(at::kDouble).sum(-1);
        EXPECT_DOUBLE_EQ(r.path.keys_read.row, read.mean().item<double>()) << name;
        EXPECT_DOUBLE_EQ(r.path.keys_read.last_row, read.select(2, t - 1).mean().item<double>())
            << name;
      }
    }
  }
}

// The prompt of a first call samples as a text does; behind it only hash tables know its end.
TEST(MagicPig, KernelsTakeThePromptOfAFirstCall) {
  const AttentionSpec spec = pig(3, 8);
  const AttentionInputs in = shifted_inputs(spec, 2, 50).to(at::kFloat);
  AttentionCall call = checked_call(spec, in.q, in.k, in.v, in.tensors, {});
  call.selector.prompts_b = at::full({2}, 50, at::kLong);
  EXPECT_TRUE(run_call(call, Path::fused).out_bhte.equal(run(spec, in, Path::fused).out_bhte));
  call.selector.prompts_b = at::full({2}, 49, at::kLong);
  EXPECT_NE(selected_path().reason_against(call).value_or("").find("tables"), std::string::npos);
}

// The two readings agree up to the first token after the prompt, and differ afterwards.
TEST(MagicPig, ReadingsOfThePromptAgreeUpToTheFirstGeneratedToken) {
  const AttentionSpec spec = pig(3, 8);
  const AttentionInputs in = shifted_inputs(spec, 1, 60);
  const at::Tensor rows = ScalarSelector(spec, in).magic_pig(directions(spec)).out,
                   decoding = ScalarSelector(spec, in).magic_pig(directions(spec), 40).out;
  EXPECT_TRUE(rows.narrow(2, 0, 41).equal(decoding.narrow(2, 0, 41)));
  EXPECT_FALSE(rows.select(2, 45).equal(decoding.select(2, 45)));
}

// 13.12: how often a key is read over many draws of the directions.
TEST(MagicPig, AKeyIsReadAsOftenAsItsChanceSays) {
  AttentionSpec spec = pig(4, 12, 0, 0);
  spec.heads = spec.kv_heads = 1;
  const AttentionInputs in = shifted_inputs(spec, 1, 1, 13);
  const int64_t draws = 3000, keys = 12;
  const int64_t prompts[] = {keys};
  at::Tensor read = at::zeros({keys}, at::kDouble);
  std::vector<uint8_t> counts;
  std::vector<int32_t> hashes(static_cast<size_t>(spec.magic_pig.tables)),
      found(keys + kernels::kFoundRoom);
  const at::Tensor row = in.q[0][0].to(at::kFloat).contiguous();
  for (int64_t seed = 0; seed < draws; ++seed) {
    spec.magic_pig.seed = seed;
    const HashTables tables(spec.magic_pig, in.k, prompts);
    kernels::cpu().run(kernels::RowHashes{.rule = tables.rule(),
                                          .rows = row.const_data_ptr<float>(),
                                          .count = 1,
                                          .hashes = hashes.data()});
    counts.resize(static_cast<size_t>(tables.tables()[0].counted()));
    int64_t met = 0;
    kernels::cpu().run(kernels::CollidingKeys{.rule = tables.rule(),
                                              .table = &tables.tables()[0],
                                              .hashes = hashes.data(),
                                              .counts = counts.data(),
                                              .found = found.data(),
                                              .count = &met});
    for (int64_t n = 0; n < met; ++n) read[found[static_cast<size_t>(n)]] += 1.0;
  }
  const at::Tensor centred = in.k[0][0].narrow(0, 0, keys) - in.k[0][0].narrow(0, 0, keys).mean(0);
  const at::Tensor query = in.q[0][0][0];
  for (int64_t j = 0; j < keys; ++j) {
    const double cosine = (query.dot(centred[j]) / query.norm() / centred[j].norm()).item<double>();
    const double c = std::pow(1.0 - std::acos(cosine) / M_PI, 4);
    const double u = 1.0 - std::pow(1.0 - c, 12) - 12.0 * c * std::pow(1.0 - c, 11);
    const double spread = std::sqrt(u * (1.0 - u) / static_cast<double>(draws));
    EXPECT_NEAR(read[j].item<double>() / static_cast<double>(draws), u, 4.0 * spread + 1e-3) << j;
  }
}

// 13.12: with more tables every key is read, with its own weight.
TEST(MagicPig, ComesCloserToExactAttentionWithMoreTables) {
  AttentionSpec plain = pig(2, 2);
  plain.magic_pig = {};
  const AttentionInputs in = shifted_inputs(plain, 1, 1, 60);
  const at::Tensor truth = scalar_attention(plain, in).out;
  const auto error = [&](int64_t tables) {
    double sum = 0.0;
    for (int64_t seed = 0; seed < 8; ++seed) {
      AttentionSpec spec = pig(4, tables);
      spec.magic_pig.seed = seed;
      sum += relative_error(run(spec, in, Path::reference).out_bhte, truth) / 8.0;
    }
    return sum;
  };
  const double few = error(4), some = error(60), many = error(2000);
  EXPECT_LT(some, few);
  EXPECT_LT(many, 0.2 * some);
  EXPECT_LT(many, 1e-2);
}

// 13.1: no key is left to be sampled.
TEST(MagicPig, WithoutASampledRegionIsPlainAttention) {
  for (const auto& [start, recent] : {std::pair{2, 40}, {40, 0}, {20, 17}}) {
    AttentionSpec spec = pig(3, 8, start, recent), plain = spec;
    plain.magic_pig = {};
    const AttentionInputs in = shifted_inputs(spec, 2, 37);
    EXPECT_LT(
        relative_error(run(spec, in, Path::automatic).out_bhte, scalar_attention(plain, in).out),
        1e-12);
  }
}

TEST(MagicPig, GradientsEqualCentralDifferencesWithTheSampleHeldFixed) {
  AttentionSpec spec = small_spec(2, 1, 8);
  spec.value_dim = 2;
  spec.magic_pig = {.bits = 2, .tables = 4, .start = 1, .recent = 1};
  const AttentionInputs leaves = shifted_inputs(spec, 1, 7).with_gradient();
  expect_gradients(
      [&](const std::vector<at::Tensor>& x) {
        const AttentionResult r =
            attention(spec, x[0], x[1], x[2], {}, {.want_lse = true}, Path::reference);
        return (r.out_bhte * random_normal(r.out_bhte.sizes(), 5)).sum() + r.lse_bht.sum();
      },
      leaves.leaves(), "magic_pig", 1e-6, 2e-6);
}

TEST(MagicPig, LaterTokensAndOtherDocumentsChangeNoBit) {
  const AttentionSpec spec = pig(3, 8);
  const int64_t t = 60;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const AttentionInputs in = shifted_inputs(spec, 1, t).to(dtype);
    for (const int64_t i : {0, 20, 44}) {
      AttentionInputs changed = in.to(dtype);
      for (const at::Tensor& x : {changed.q, changed.k, changed.v})
        x.narrow(2, i + 1, t - i - 1).mul_(-3.0).add_(0.7);
      const at::Tensor before = run(spec, in, Path::automatic).out_bhte,
                       after = run(spec, changed, Path::automatic).out_bhte;
      EXPECT_TRUE(before.narrow(2, 0, i + 1).equal(after.narrow(2, 0, i + 1))) << i;
      EXPECT_FALSE(before.equal(after));
    }
    AttentionInputs changed = in.to(dtype);
    for (const at::Tensor& x : {changed.q, changed.k, changed.v}) x.narrow(2, 0, 25).mul_(-5.3);
    const auto second = [&](const AttentionInputs& x) {
      return run(spec, x, Path::automatic, packed_context({25, 35})).out_bhte.narrow(2, 25, 35);
    };
    EXPECT_TRUE(second(in).equal(second(changed)));
  }
}

// The curve that kernels read: what a key of cosine x weighs, from angles of 0 to pi.
TEST(MagicPig, TheCurveOfLogWeightsIsTheFormula) {
  const at::Tensor k = random_normal({1, 1, 4, 8}, 1).to(at::kFloat);
  const int64_t prompts[] = {4};
  const struct {
    int64_t bits, tables;
    double within;
  } cases[] = {{1, 2, 5e-6},  {3, 8, 5e-6},    {10, 150, 5e-6},  {13, 20, 5e-6},
               {30, 2, 5e-6}, {4, 1000, 5e-6}, {30, 4096, 5e-6}, {1, 4096, 1e-2}};
  for (const auto& [bits, tables, within] : cases) {
    const MagicPigSpec spec{.bits = bits, .tables = tables, .start = 0, .recent = 0};
    const HashTables made(spec, k, prompts);
    const at::Tensor angles = at::linspace(1e-3, M_PI - 1e-3, 4001, at::kDouble);
    // In float32, which has few digits of an angle near an end.
    const at::Tensor cosines = angles.cos().to(at::kFloat);
    const at::Tensor truth = sampling_log_weights(spec, cosines.to(at::kDouble));
    double worst = 0.0;
    for (int64_t n = 0; n < angles.numel(); ++n) {
      auto product = cosines[n].item<float>();
      const int32_t list[] = {0};
      const float lengths[] = {1.0f};
      const float top = kernels::sampling_table()
                            .weights({.products = &product,
                                      .list = list,
                                      .count = 1,
                                      .sampled = 1,
                                      .scale = 0.0f,
                                      .query_length = 1.0f,
                                      .lengths = lengths,
                                      .log_weights = made.rule().log_weights})
                            .top;
      worst = std::max(worst, std::abs(top - truth[n].item<double>()));
    }
    EXPECT_LT(worst, within) << bits << " " << tables;
  }
}

TEST(MagicPig, DirectionsAreGaussianAndOfTheSeed) {
  const MagicPigSpec spec{.bits = 10, .tables = 150};
  const at::Tensor x = hash_directions(spec, 64);
  EXPECT_EQ(x.sizes(), at::IntArrayRef({1500, 64}));
  EXPECT_NEAR(x.mean().item<double>(), 0.0, 0.02);
  EXPECT_NEAR(x.var().item<double>(), 1.0, 0.02);
  EXPECT_TRUE(x.equal(hash_directions(spec, 64)));
  EXPECT_FALSE(x.equal(hash_directions({.bits = 10, .tables = 150, .seed = 1}, 64)));
}

TEST(MagicPig, ImpossibleValuesAreRefusedByName) {
  EXPECT_ERROR(ConfigError, pig(31, 8).check(), "magic_pig.bits", "30", "31");
  EXPECT_ERROR(ConfigError, pig(-1, 8).check(), "magic_pig.bits");
  EXPECT_ERROR(ConfigError, pig(3, 1).check(), "magic_pig.tables", "2", "1");
  EXPECT_ERROR(ConfigError, pig(3, 5000).check(), "magic_pig.tables");
  EXPECT_ERROR(ConfigError, pig(3, 8, -1).check(), "magic_pig.start");
  EXPECT_ERROR(ConfigError, pig(3, 8, 0, -2).check(), "magic_pig.recent");
}

// The copy of a cache makes the tables once, and again where the prompt was shortened.
TEST(MagicPig, DecodingWithACopyOfTheCacheAsksTables) {
  const AttentionSpec spec = pig(3, 8);
  const AttentionInputs in = shifted_inputs(spec, 2, 70).to(at::kFloat);
  AttentionCache cache(cache_streams(spec, at::kFloat), 2, 100);
  SortedCopy copy;
  const auto step = [&](AttentionCache& at, SortedCopy& sorted, int64_t begin, int64_t n,
                        int64_t prompt) {
    const AttentionInputs some = in.tokens(begin, n);
    const AttentionResult r =
        cached_attention(spec, at, some.q, some.k, some.v, {}, Path::automatic, &sorted);
    const at::Tensor truth =
        ScalarSelector(spec, in.to(at::kDouble)).magic_pig(directions(spec), prompt).out;
    EXPECT_LT(relative_error(r.out_bhte, truth.narrow(2, begin, n)), 2e-5) << begin;
    return r.path.plan_text();
  };
  step(cache, copy, 0, 40, 40);
  EXPECT_EQ(step(cache, copy, 40, 1, 40), "grouped scan");
  EXPECT_GT(copy.bytes(), 0);
  AttentionCache fork = cache.fork();
  SortedCopy fork_copy = copy.fork();
  EXPECT_EQ(step(fork, fork_copy, 41, 1, 40), "grouped scan");
  const int64_t lengths[] = {25, 25};
  cache.truncate(lengths);
  copy.truncate(lengths);
  EXPECT_EQ(copy.bytes(), 0);
  EXPECT_EQ(step(cache, copy, 25, 1, 25), "grouped scan");
  EXPECT_EQ(step(cache, copy, 26, 1, 25), "grouped scan");
}

}  // namespace
}  // namespace fovea::magic_pig_test
