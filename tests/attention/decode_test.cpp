// Decoding from the cache equals the full forward (13.4, F-12), and the cache forgets, forks and
// saves exactly (seam 3).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>

#include "fovea/attention/call.h"
#include "fovea/attention/decode/cached_attention.h"
#include "fovea/attention/mechanisms/focal.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"

namespace fovea::decode_test {
namespace {

using namespace fovea::testing;

at::Tensor tokens(const at::Tensor& x_bhtd, int64_t begin, int64_t n) {
  return x_bhtd.narrow(2, begin, n);
}

// Feeds tokens [begin, begin + n) and returns their outputs.
at::Tensor feed(const AttentionSpec& spec, AttentionCache& cache, const AttentionInputs& in,
                int64_t begin, int64_t n, Path path = Path::automatic) {
  const AttentionTensors tensors = in.tensors_of(begin, n);
  if (tensors.tau_bt.defined()) {
    // The stream of running sums must grow with the others; its values are tested below.
    if (cache.has("temperature"))
      cache.append("temperature", at::zeros({in.q.size(0), n, 1}, at::kDouble));
  }
  return cached_attention(spec, cache, tokens(in.q, begin, n), tokens(in.k, begin, n),
                          tokens(in.v, begin, n), tensors, path)
      .out_bhte;
}

AttentionCache cache_for(const AttentionSpec& spec, const AttentionInputs& in, int64_t capacity) {
  return {cache_streams(spec, in.k.scalar_type()), in.k.size(0), capacity};
}

// Whether a tensor of AttentionTensors has rows of tokens behind the batch.
bool is_of_tokens(std::string_view name) {
  static const std::set<std::string_view> all{
      "tau",          "groups",         "members",     "query_routes",  "key_routes",
      "key_nearness", "global_queries", "global_keys", "global_values", "start_queries"};
  return all.contains(name);
}

// 13.4: prefill(n) = prefill(m) + n - m single steps, for every m.
TEST(Decode, EqualsTheFullForwardForEverySplit) {
  const int64_t t = 17;
  for (const auto& [name, spec] : all_specs()) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      const AttentionInputs in = random_inputs(spec, 2, t).to(dtype);
      const at::Tensor full = reference_attention(spec, in.q, in.k, in.v, in.tensors).out_bhte;
      for (const Path path : {Path::automatic, Path::reference}) {
        if (reference_only(spec) && path == Path::automatic) continue;
        for (int64_t m = 0; m <= t; ++m) {
          AttentionCache cache = cache_for(spec, in, t);
          std::vector<at::Tensor> parts;
          if (m > 0) parts.push_back(feed(spec, cache, in, 0, m, path));
          for (int64_t i = m; i < t; ++i) parts.push_back(feed(spec, cache, in, i, 1, path));
          EXPECT_LT(relative_error(at::cat(parts, 2), full), dtype == at::kDouble ? 1e-12 : 1e-5)
              << name << " split at " << m;
        }
      }
    }
  }
}

TEST(Decode, ChunksOfAnySizeEqualTheFullForward) {
  for (const auto& [name, spec] : all_specs()) {
    const AttentionInputs in = random_inputs(spec, 1, 30);
    AttentionCache cache = cache_for(spec, in, 30);
    std::vector<at::Tensor> parts;
    int64_t begin = 0;
    for (const int64_t n : {2, 9, 1, 1, 7, 10}) {
      parts.push_back(feed(spec, cache, in, begin, n));
      begin += n;
    }
    EXPECT_LT(relative_error(at::cat(parts, 2),
                             reference_attention(spec, in.q, in.k, in.v, in.tensors).out_bhte),
              1e-12)
        << name;
  }
}

TEST(Decode, NamesItself) {
  const AttentionSpec spec = small_spec();
  const AttentionInputs in = random_inputs(spec, 1, 4);
  AttentionCache cache = cache_for(spec, in, 4);
  const AttentionResult result = cached_attention(spec, cache, in.q, in.k, in.v);
  EXPECT_EQ(result.path.name, PathName::decode);
  EXPECT_EQ(result.path.plan_text(), "torch_sdpa causal");
}

// F-12: the cache's running sum gives the taus of the whole text.
TEST(Decode, LearnedPrefixTemperatureContinuesFromTheCache) {
  AttentionSpec spec = small_spec();
  spec.temperature.kind = TemperatureSpec::Kind::learned;
  const TemperatureParameters parameters{random_normal({6}, 2, 0.1),
                                         at::full({}, 1.9, at::kDouble)};
  const at::Tensor x = random_normal({2, 12, 6}, 1);
  AttentionInputs in = random_inputs(spec, 2, 12);
  in.tensors.tau_bt = temperature_rows(spec.temperature, 8, parameters, x, {}).tau_bt;
  const at::Tensor full = reference_attention(spec, in.q, in.k, in.v, in.tensors).out_bhte;
  for (int64_t m = 1; m < 12; ++m) {
    AttentionCache cache = cache_for(spec, in, 12);
    std::vector<at::Tensor> parts;
    for (int64_t begin = 0; begin < 12;) {
      const int64_t n = begin == 0 ? m : 1;
      const at::Tensor tau =
          cached_temperature(spec.temperature, 8, parameters, x.narrow(1, begin, n), cache);
      parts.push_back(cached_attention(spec, cache, tokens(in.q, begin, n), tokens(in.k, begin, n),
                                       tokens(in.v, begin, n), {.tau_bt = tau})
                          .out_bhte);
      begin += n;
    }
    EXPECT_LT(relative_error(at::cat(parts, 2), full), 1e-12);
    cache.truncate(5);  // the sum of five tokens is still there
    const at::Tensor again =
        cached_temperature(spec.temperature, 8, parameters, x.narrow(1, 5, 1), cache);
    EXPECT_LT(relative_error(again, in.tensors.tau_bt.narrow(1, 5, 1)), 1e-14);
  }
}

TEST(Decode, RefusesTheSequenceTemperatureAndMasksThatAreNotCausal) {
  AttentionSpec spec = small_spec();
  spec.temperature.kind = TemperatureSpec::Kind::learned;
  spec.temperature.form = TemperatureSpec::Form::sequence;
  AttentionCache cache(cache_streams(spec, at::kDouble), 1, 4);
  EXPECT_ERROR(
      UnsupportedError,
      cached_temperature(spec.temperature, 8, {}, at::zeros({1, 1, 6}, at::kDouble), cache),
      "sequence", "prefix");
  spec = small_spec();
  spec.mask.causal = false;
  EXPECT_ERROR(UnsupportedError, cache_streams(spec, at::kFloat), "causal");
}

// Seam 3: with a window W the cache does not grow with the text.
TEST(Cache, AWindowKeepsAConstantNumberOfRows) {
  AttentionSpec spec = small_spec();
  spec.mask.window = 4, spec.mask.sinks = 2;
  const AttentionInputs in = random_inputs(spec, 1, 200);
  const at::Tensor full = reference_attention(spec, in.q, in.k, in.v).out_bhte;
  AttentionCache cache = cache_for(spec, in, 200);
  const int64_t bytes = cache.bytes();
  for (int64_t i = 0; i < 200; ++i) {
    EXPECT_LT(relative_error(feed(spec, cache, in, i, 1), tokens(full, i, 1)), 1e-12);
    EXPECT_LE(cache.rows("keys").size(1), 2 + 4);
    EXPECT_EQ(cache.positions("keys").size(0), cache.rows("keys").size(1));
  }
  EXPECT_EQ(cache.bytes(), bytes);
  EXPECT_EQ(cache.positions("keys")[2].item<int64_t>(), 196);
  EXPECT_TRUE(cache.rows("keys").narrow(1, 2, 4).equal(in.k.narrow(2, 196, 4).transpose(1, 2)));
}

TEST(Cache, TruncatingAndFeedingAgainEqualsNeverHavingFedMore) {
  for (const auto& [name, spec] : all_specs()) {
    if (spec.performer.active()) continue;  // a state has no way back (performer_test.cpp)
    const AttentionInputs in = random_inputs(spec, 1, 14),
                          other = random_inputs(spec, 1, 14, 14, 50);
    AttentionCache cache = cache_for(spec, in, 14);
    const at::Tensor full = reference_attention(spec, in.q, in.k, in.v, in.tensors).out_bhte;
    feed(spec, cache, in, 0, 10);
    feed(spec, cache, other, 10, 2);  // a wrong continuation ...
    cache.truncate(10);               // ... taken back
    EXPECT_EQ(cache.length(), 10);
    EXPECT_LT(relative_error(feed(spec, cache, in, 10, 4), tokens(full, 10, 4)), 1e-12) << name;
  }
}

TEST(Cache, RefusesToGoBackBehindWhatItEvicted) {
  AttentionSpec spec = small_spec();
  spec.mask.window = 3;
  const AttentionInputs in = random_inputs(spec, 1, 30);
  AttentionCache cache = cache_for(spec, in, 30);
  for (int64_t i = 0; i < 30; ++i) feed(spec, cache, in, i, 1);
  EXPECT_ERROR(UnsupportedError, cache.truncate(10), "evicted", "fork");
  EXPECT_EQ(cache.length(), 30);
  EXPECT_ERROR(UnsupportedError, cache.truncate(31), "31", "30");
}

TEST(Cache, AForkIsIndependent) {
  for (const auto& [name, spec] : all_specs()) {
    const AttentionInputs in = random_inputs(spec, 1, 9), other = random_inputs(spec, 1, 9, 9, 50);
    AttentionCache cache = cache_for(spec, in, 9);
    feed(spec, cache, in, 0, 5);
    AttentionCache fork = cache.fork();
    feed(spec, fork, other, 5, 4);
    EXPECT_LT(relative_error(
                  feed(spec, cache, in, 5, 4),
                  tokens(reference_attention(spec, in.q, in.k, in.v, in.tensors).out_bhte, 5, 4)),
              1e-12)
        << name;
    EXPECT_EQ(fork.length(), 9);
  }
}

TEST(Cache, CopiesShareFullPagesThatNobodyWritesAgain) {
  const AttentionSpec spec = small_spec(4, 2, 16);
  const AttentionInputs in = random_inputs(spec, 2, 800).to(at::kFloat);
  // A text is the tokens of its stretches, one after the other.
  using Stretches = std::vector<std::pair<int64_t, int64_t>>;
  const auto append = [&](AttentionCache& to, int64_t begin, int64_t n) {
    const AttentionInputs some = in.tokens(begin, n);
    append_rows(to, {.spec = spec, .q = some.q, .k = some.k, .v = some.v});
  };
  const auto expect = [&](const AttentionCache& cache, const Stretches& stretches) {
    std::vector<at::Tensor> keys;
    for (const auto& [begin, n] : stretches) keys.push_back(in.k.narrow(2, begin, n));
    EXPECT_TRUE(at::equal(cache.rows(stream::kKeys).transpose(1, 2), at::cat(keys, 2)));
  };
  AttentionCache cache(cache_streams(spec, at::kFloat), 2, 500);
  append(cache, 0, 300);
  AttentionCache fork = cache.fork();
  EXPECT_LT(fork.bytes(), cache.bytes() * 6 / 10);
  append(fork, 400, 90);
  append(cache, 300, 5);
  AttentionCache second = fork.fork();
  append(second, 600, 2);
  append(fork, 490, 1);  // one token alone makes it all its own
  expect(cache, {{0, 305}});
  expect(fork, {{0, 300}, {400, 91}});
  expect(second, {{0, 300}, {400, 90}, {600, 2}});
  const CachedRows mine = cache.extend_in_pages(stream::kKeys),
                   rows = second.extend_in_pages(stream::kKeys);
  ASSERT_EQ(rows.shared.size(), 2U);
  EXPECT_EQ(rows.shared[1].size(), 2U);
  EXPECT_EQ(rows.shared[1].back().end, 384);
  EXPECT_EQ(rows.shared[1].front().rows.data_ptr(), mine.data);
  EXPECT_EQ(rows.sequences[1].begin, -384);
  cache.truncate(100);
  second.truncate(391);
  append(cache, 700, 60);  // leaves the old pages to the others
  append(second, 500, 3);
  expect(cache, {{0, 100}, {700, 60}});
  expect(second, {{0, 300}, {400, 90}, {600, 1}, {500, 3}});
  AttentionCache loaded(cache_streams(spec, at::kFloat), 2, 500);
  loaded.load(second.save());
  expect(loaded, {{0, 300}, {400, 90}, {600, 1}, {500, 3}});
  second.truncate(200);
  append(second, 0, 1);
  expect(second, {{0, 200}, {0, 1}});
  const AttentionCache::Source sources[] = {{&loaded, 1}, {&cache, 0}};
  AttentionCache both = AttentionCache::gather(sources, 400);
  append(both, 10, 4);
  EXPECT_TRUE(at::equal(
      both.rows(stream::kKeys, 1).transpose(1, 2),
      at::cat({in.k.narrow(0, 0, 1).narrow(2, 0, 100), in.k.narrow(0, 0, 1).narrow(2, 700, 60),
               in.k.narrow(0, 1, 1).narrow(2, 10, 4)},
              2)));
}

// What decoding reads of a head is one stream, also after rows moved, in a fork and after loading;
// what hard Focus reads of a token, for all heads, is another.
TEST(Cache, RowsOfAHeadLieTogetherAndThoseOfATokenForHardFocus) {
  AttentionSpec spec = small_spec();
  spec.mask.window = 3;
  const AttentionInputs in = random_inputs(spec, 2, 16);
  AttentionCache cache = cache_for(spec, in, 16);
  const auto expect_runs = [](const AttentionCache& of) {
    for (const char* name : {"keys", "values"}) {
      const at::Tensor rows = of.rows(name);
      ASSERT_GT(rows.size(1), 1) << name;
      EXPECT_TRUE(rows.select(0, 1).select(1, 1).is_contiguous()) << name;
    }
  };
  for (const int64_t begin : {0, 1, 2, 12}) feed(spec, cache, in, begin, begin == 2 ? 10 : 1);
  expect_runs(cache);
  expect_runs(cache.fork());
  AttentionCache loaded = cache_for(spec, in, 16);
  loaded.load(cache.save());
  expect_runs(loaded);
  spec.focus.gate = FocusSpec::Gate::hard;
  for (const StreamSpec& stream : cache_streams(spec, at::kFloat))
    EXPECT_FALSE(stream.by_head) << stream.name;
}

TEST(Cache, SavedAndLoadedContinuesTheSame) {
  for (const auto& [name, spec] : all_specs()) {
    const AttentionInputs in = random_inputs(spec, 2, 16);
    AttentionCache cache = cache_for(spec, in, 16);
    for (int64_t i = 0; i < 11; ++i) feed(spec, cache, in, i, 1);
    AttentionCache loaded = cache_for(spec, in, 16);
    loaded.load(cache.save());
    EXPECT_EQ(loaded.length(), 11);
    EXPECT_TRUE(feed(spec, loaded, in, 11, 5).equal(feed(spec, cache, in, 11, 5))) << name;
  }
}

// Each sequence of a batch is cached as it would be alone, windows included.
TEST(Cache, SequencesOfUnequalLengthsEqualEachAlone) {
  for (const auto& [name, spec] : all_specs()) {
    const AttentionInputs in = random_inputs(spec, 2, 20);
    const auto alone = [&](int64_t b) {
      AttentionInputs one = in;
      one.q = in.q.narrow(0, b, 1), one.k = in.k.narrow(0, b, 1), one.v = in.v.narrow(0, b, 1);
      for (const auto& [key, x] : one.tensors.named())
        if (x->defined() && x->dim() > 1 && x->size(0) == 2 && is_of_tokens(key))
          *x = x->narrow(0, b, 1);
      return one;
    };
    const std::vector<AttentionInputs> each{alone(0), alone(1)};
    const std::vector<int64_t> lengths{12, 5};
    std::vector<AttentionCache> caches;
    for (size_t b = 0; b < 2; ++b) {
      caches.push_back(cache_for(spec, each[b], 20));
      feed(spec, caches[b], each[b], 0, lengths[b]);
    }
    AttentionCache both = AttentionCache::gather(
        std::vector<AttentionCache::Source>{{&caches[0], 0}, {&caches[1], 0}}, 20);
    EXPECT_EQ(both.lengths(), lengths) << name;
    EXPECT_FALSE(both.equal_lengths());
    EXPECT_EQ(both.length(), 12);
    const auto expect_step = [&](AttentionCache& cache, int64_t n) {
      // Tokens lengths[b] + n of both in one call.
      AttentionInputs step = each[0].tokens(lengths[0] + n, 1);
      const AttentionInputs other = each[1].tokens(lengths[1] + n, 1);
      step.q = at::cat({step.q, other.q}), step.k = at::cat({step.k, other.k});
      step.v = at::cat({step.v, other.v});
      auto ours = step.tensors.named();
      AttentionTensors theirs = other.tensors;
      const auto more = theirs.named();
      for (size_t i = 0; i < ours.size(); ++i)
        if (ours[i].second->defined() && is_of_tokens(ours[i].first))
          *ours[i].second = at::cat({*ours[i].second, *more[i].second});
      if (cache.has("temperature")) cache.append("temperature", at::zeros({2, 1, 1}, at::kDouble));
      const at::Tensor out =
          cached_attention(spec, cache, step.q, step.k, step.v, step.tensors).out_bhte;
      for (int64_t b = 0; b < 2; ++b) {
        const at::Tensor expected = feed(spec, caches[b], each[b], lengths[b] + n, 1);
        EXPECT_LT(relative_error(out.narrow(0, b, 1), expected), 1e-12) << name << " " << b;
      }
    };
    for (int64_t n = 0; n < 4; ++n) expect_step(both, n);
    AttentionCache loaded(cache_streams(spec, in.k.scalar_type()), 2, 20);
    loaded.load(both.save());
    EXPECT_EQ(loaded.lengths(), (std::vector<int64_t>{16, 9}));
    both = loaded.fork();
    for (int64_t n = 4; n < 7; ++n) expect_step(both, n);
    const char* const stream = both.has("keys") ? "keys" : "feature_sums";
    EXPECT_ERROR(ShapeError, both.rows(stream), "unequal");
    EXPECT_TRUE(both.rows(stream, 1).allclose(caches[1].rows(stream), 1e-12, 1e-12)) << name;
  }
}

TEST(Cache, RefusesWhatDoesNotFit) {
  const AttentionSpec spec = small_spec();
  AttentionCache cache(cache_streams(spec, at::kFloat), 1, 4);
  EXPECT_ERROR(UnsupportedError, cache.append("keys", at::zeros({1, 5, 2, 8})), "4 tokens",
               "capacity");
  EXPECT_ERROR(ShapeError, cache.append("keys", at::zeros({1, 1, 3, 8})), "keys", "[1, 1, 3, 8]");
  EXPECT_ERROR(ConfigError, cache.rows("queries"), "queries");
  EXPECT_ERROR(CheckpointError, cache.load({}), "stream.keys");
  auto saved = cache.save();
  saved["stream.keys.state"] = at::tensor(std::vector<int64_t>{3, 0, 1});
  EXPECT_ERROR(CheckpointError, cache.load(saved), "keys");
  EXPECT_EQ(cache.length(), 0);
}

TEST(Cache, StreamsAreThoseTheSpecNeeds) {
  AttentionSpec spec = small_spec();
  spec.value_dim = 5;
  std::vector<StreamSpec> streams = cache_streams(spec, at::kBFloat16);
  ASSERT_EQ(streams.size(), 2u);
  EXPECT_EQ(streams[1].row_shape, (std::vector<int64_t>{2, 5}));
  EXPECT_EQ(streams[0].keep_last, 0);
  spec.mask.window = 7, spec.mask.sinks = 3;
  spec.temperature.kind = TemperatureSpec::Kind::learned;
  streams = cache_streams(spec, at::kBFloat16);
  ASSERT_EQ(streams.size(), 3u);
  EXPECT_EQ(streams[0].keep_last, 7);
  EXPECT_EQ(streams[0].keep_first, 3);
  EXPECT_EQ(streams[2].name, "temperature");
  EXPECT_EQ(streams[2].dtype, at::kDouble);
}

}  // namespace
}  // namespace fovea::decode_test
