// Decoding by the kernels that read keys where they lie, behind attention() and the cache.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "fovea/attention/decode/cached_attention.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"

namespace fovea::fused_decode_test {
namespace {

using namespace fovea::testing;

bool read_in_place(const AttentionResult& result) {
  return result.path.reason.kind == PathReason::Kind::few_queries;
}

TEST(FusedDecode, IsTakenForFewQueriesWithoutGradient) {
  const AttentionSpec spec = small_spec(4, 2, 16);
  const auto taken = [&](int64_t queries, bool gradient) {
    AttentionInputs in = random_inputs(spec, 1, queries, 90).to(at::kFloat);
    if (gradient) in = in.with_gradient();
    return read_in_place(attention(spec, in.q, in.k, in.v, in.tensors, {}, Path::fused));
  };
  EXPECT_TRUE(taken(1, false));
  EXPECT_TRUE(taken(8, false));
  EXPECT_FALSE(taken(9, false));  // 18 rows a key head
  EXPECT_FALSE(taken(1, true));
}

TEST(FusedDecode, EqualsTheReferenceForEveryPointwiseSpec) {
  for (const auto& [name, given] : all_specs()) {
    if (reference_only(given)) continue;
    AttentionSpec spec = given;
    if (spec.value_dim > 0) spec.value_dim = 24;
    for (const int64_t queries : {1, 4}) {
      const AttentionInputs in = random_inputs(spec, 2, queries, 1100);
      const AttentionResult truth =
          reference_attention(spec, in.q, in.k, in.v, in.tensors, {.want_lse = true});
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        if (dtype != at::kFloat && (spec.differential || spec.head_output.active()))
          continue;  // after the kernels
        const double bound = dtype == at::kFloat ? 1e-5 : 2e-2;
        const AttentionInputs coarse = in.to(dtype);
        const AttentionResult got =
            attention(spec, coarse.q, coarse.k, coarse.v, coarse.tensors, {}, Path::fused);
        EXPECT_LT(relative_error(got.out_bhte, truth.out_bhte), bound) << name;
        EXPECT_LT(relative_error(got.lse_bht, truth.lse_bht), bound) << name;
      }
    }
  }
}

TEST(FusedDecode, RequestsOfUnequalLengthsEqualEachAlone) {
  AttentionSpec spec = small_spec(4, 2, 16);
  spec.mask.window = 700, spec.mask.sinks = 2;
  const std::vector<int64_t> lengths{1000, 5, 1, 640};
  for (const int64_t queries : {1, 3, 60}) {  // 60: by tile ranges
    AttentionInputs in = random_inputs(spec, 4, queries, 1000).to(at::kFloat);
    AttentionContext context;
    context.key_lengths_b = at::tensor(lengths);
    const at::Tensor got = attention(spec, in.q, in.k, in.v, {}, context, Path::fused).out_bhte,
                     truth = reference_attention(spec, in.q, in.k, in.v, {}, context).out_bhte;
    EXPECT_LT(relative_error(got, truth), 1e-5);
    for (int64_t b = 0; b < 4; ++b) {
      const int64_t n = lengths[b], t = std::min(n, queries);  // earlier queries see nothing
      const auto one = [b](const at::Tensor& x) { return x.narrow(0, b, 1); };
      const at::Tensor alone =
          attention(spec, one(in.q).narrow(2, queries - t, t), one(in.k).narrow(2, 0, n),
                    one(in.v).narrow(2, 0, n), {}, {}, Path::fused)
              .out_bhte;
      EXPECT_LT(relative_error(one(got).narrow(2, queries - t, t), alone), 1e-6) << b;
      EXPECT_TRUE(one(got).narrow(2, 0, queries - t).eq(0.0).all().item<bool>());
    }
  }
}

TEST(FusedDecode, RefusesLengthsThatDoNotFit) {
  const AttentionSpec spec = small_spec();
  const AttentionInputs in = random_inputs(spec, 2, 1, 8).to(at::kFloat);
  const auto call = [&](AttentionContext context) {
    return attention(spec, in.q, in.k, in.v, {}, context);
  };
  AttentionContext context;
  context.key_lengths_b = at::tensor({8, 9});
  EXPECT_ERROR(ShapeError, call(context), "key_lengths", "0 and 8", "9", "row 1");
  context.key_lengths_b = at::tensor({-1, 9});
  EXPECT_ERROR(ShapeError, call(context), "-1");
  context.key_lengths_b = at::tensor({8});
  EXPECT_ERROR(ShapeError, call(context), "2 integers", "1");
  context.key_lengths_b = at::tensor({8, 8});
  context.key_positions_bs = at::arange(8);
  EXPECT_ERROR(ShapeError, call(context), "absent");
}

TEST(FusedDecode, RowsDoNotNoticeThreadsOrBatch) {
  const AttentionSpec spec = small_spec(4, 2, 32);
  const AttentionInputs in = random_inputs(spec, 3, 2, 3000).to(at::kFloat);
  const auto out = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return attention(spec, q, k, v, {}, {}, Path::fused).out_bhte;
  };
  const at::Tensor whole = out(in.q, in.k, in.v);
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  EXPECT_TRUE(out(in.q, in.k, in.v).equal(whole));
  at::set_num_threads(before);
  const auto row = [](const at::Tensor& x) { return x.narrow(0, 1, 1); };
  EXPECT_TRUE(out(row(in.q), row(in.k), row(in.v)).equal(row(whole)));
}

// Prefill in chunks: whole blocks of 64 queries meet the same tiles of keys in the same order.
TEST(FusedDecode, ChunkedPrefillEqualsTheWholeToTheBit) {
  for (const int64_t window : {0, 100}) {
    AttentionSpec spec = small_spec(4, 2, 16);
    spec.mask.window = window;
    const AttentionInputs in = random_inputs(spec, 2, 330).to(at::kFloat);
    const at::Tensor whole = attention(spec, in.q, in.k, in.v, {}, {}, Path::fused).out_bhte;
    for (const int64_t chunk : {64, 128}) {
      for (int64_t begin = 0; begin < 330; begin += chunk) {
        const int64_t n = std::min<int64_t>(chunk, 330 - begin);
        const at::Tensor part =
            attention(spec, in.q.narrow(2, begin, n), in.k.narrow(2, 0, begin + n),
                      in.v.narrow(2, 0, begin + n), {}, {}, Path::fused)
                .out_bhte;
        EXPECT_EQ(relative_error(part, whole.narrow(2, begin, n)) < 1e-6, true) << begin;
        if (n == chunk) {
          EXPECT_TRUE(part.equal(whole.narrow(2, begin, n))) << begin;
        }
      }
    }
  }
}

// The cache evicts what a window hides; the kernels then read sinks and window at their positions.
TEST(FusedDecode, ReadsTheCacheOfAWindowWithSinksInPlace) {
  AttentionSpec spec = small_spec(4, 2, 16);
  spec.mask.window = 20, spec.mask.sinks = 3;
  spec.bias.kind = BiasSpec::Kind::alibi;
  const AttentionInputs in = random_inputs(spec, 1, 120).to(at::kFloat);
  const at::Tensor full = reference_attention(spec, in.q, in.k, in.v).out_bhte;
  AttentionCache cache(cache_streams(spec, at::kFloat), 1, 120);
  for (int64_t i = 0; i < 120; ++i) {
    const AttentionResult step = cached_attention(spec, cache, in.q.narrow(2, i, 1),
                                                  in.k.narrow(2, i, 1), in.v.narrow(2, i, 1));
    EXPECT_TRUE(read_in_place(step));
    EXPECT_EQ(step.path.plan_text(), "fused window+alibi");
    EXPECT_LT(relative_error(step.out_bhte, full.narrow(2, i, 1)), 1e-5);
  }
}

}  // namespace
}  // namespace fovea::fused_decode_test
