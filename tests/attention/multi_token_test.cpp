// Multi-Token and talking-heads attention: impulses, neutral kernels, how many queries decoding
// needs, the identities of the papers (spec 2, 3, 13.7, 13.8). Scalar loops, gradients, packing and
// causality of these stages are in the tests of every stage.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/multi_token.h"

#include <gtest/gtest.h>

#include "fovea/attention/decode/cached_attention.h"
#include "fovea/attention/pipeline.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"
#include "tests/support/scalar_attention.h"

namespace fovea::multi_token_test {
namespace {

using namespace fovea::testing;
using Equation = MultiTokenSpec::Equation;
using Mix = HeadMixSpec::Kind;

at::Tensor identity_kernel(int64_t heads, const KernelExtent& extent) {
  return start_kernel(KernelStart::identity, 0.0, heads, extent).to(at::kDouble);
}

// 13.7: a single 1 at (a, b) takes the value of the pair (cq-1-a) queries and floor((ck-1)/2)-b
// keys earlier.
TEST(MultiToken, AnImpulseShiftsQueriesAndKeys) {
  const int64_t t = 9;
  const at::Tensor x = random_normal({1, 1, t, t}, 1).tril();
  for (const KernelExtent extent : {KernelExtent{3, 5}, {2, 4}, {1, 1}, {4, 2}}) {
    for (int64_t a = 0; a < extent.queries; ++a) {
      for (int64_t b = 0; b < extent.keys; ++b) {
        at::Tensor kernel = at::zeros({1, extent.queries, extent.keys}, at::kDouble);
        kernel[0][a][b] = 1.0;
        const at::Tensor y = key_query_convolution(Equation::eq5, x, kernel, t, {}, {});
        const int64_t up = extent.queries - 1 - a, back = (extent.keys - 1) / 2 - b;
        for (int64_t i = 0; i < t; ++i)
          for (int64_t j = 0; j < t; ++j) {
            const int64_t r = i - up, c = j - back;
            const bool inside = r >= 0 && c >= 0 && c < t;
            EXPECT_EQ(y[0][0][i][j].item<double>(), inside ? x[0][0][r][c].item<double>() : 0.0);
          }
      }
    }
  }
}

// 13.1, 3.5: identity kernels and mixes, odd or even, are plain attention.
TEST(MultiToken, IdentityKernelsAndMixesArePlainAttention) {
  const AttentionSpec plain = small_spec();
  AttentionInputs in = random_inputs(plain, 2, 23);
  const AttentionContext context = packed_context({12, 11});
  const at::Tensor truth = scalar_attention(plain, in, context).out;
  for (const KernelExtent extent : {KernelExtent{6, 11}, {2, 4}, {1, 1}}) {
    for (const Equation equation : {Equation::eq5, Equation::eq4}) {
      AttentionSpec spec = plain;
      spec.multi_token = {extent, extent, equation, false};
      spec.head_mix = {Mix::groups, Mix::full, 2};
      in.tensors.kernel_before_hqk = in.tensors.kernel_after_hqk = identity_kernel(4, extent);
      in.tensors.mix_before_noi = at::eye(2, at::kDouble).expand({2, 2, 2});
      in.tensors.mix_after_nio = at::eye(4, at::kDouble).unsqueeze(0);
      EXPECT_LT(
          relative_error(attention(spec, in.q, in.k, in.v, in.tensors, context).out_bhte, truth),
          1e-13);
    }
  }
}

// 3.3: a kernel of cq rows makes logits of rank cq d, those of the concatenated queries i, i-1, ...
// with the convolved keys.
TEST(MultiToken, LogitsOfTwoQueryRowsAreThoseOfOneHeadOfTwiceTheWidth) {
  const int64_t t = 20, d = 4;
  AttentionSpec spec = small_spec(1, 1, d);
  spec.multi_token.before = {2, 5};
  spec.multi_token.equation = Equation::eq4;
  AttentionInputs in = random_inputs(spec, 1, t);
  in.tensors.kernel_before_hqk.narrow(2, 3, 2).zero_();  // older keys only: nothing is cut off
  const at::Tensor kernel = in.tensors.kernel_before_hqk[0];
  AttentionInputs wide;
  wide.v = in.v;
  std::vector<at::Tensor> queries, keys;
  for (int64_t a = 0; a < 2; ++a) {
    const int64_t up = 1 - a;
    queries.push_back(at::constant_pad_nd(in.q, {0, 0, up, 0}).narrow(2, 0, t));
    at::Tensor key = at::zeros_like(in.k);
    for (int64_t b = 0; b < 3; ++b)
      key += kernel[a][b] * at::constant_pad_nd(in.k, {0, 0, 2 - b, 0}).narrow(2, 0, t);
    keys.push_back(key);
  }
  wide.q = at::cat(queries, 3);
  wide.k = at::cat(keys, 3);
  AttentionSpec twice = small_spec(1, 1, 2 * d);
  twice.value_dim = d;
  twice.scale = 1.0 / std::sqrt(static_cast<double>(d));
  EXPECT_LT(relative_error(attention(spec, in.q, in.k, in.v, in.tensors).out_bhte,
                           attention(twice, wide.q, wide.k, wide.v).out_bhte),
            1e-12);
}

// Appendix B of the paper: two heads that are mixed, before or after the softmax, are two plain
// heads of twice the width. Before it a head has the logits of both queries, each times its weight,
// with both keys; after it a head's values are those of both heads, projected by both output
// matrices.
TEST(MultiToken, TwoMixedHeadsArePlainHeadsOfTwiceTheWidth) {
  const int64_t t = 13, d = 4;
  for (const auto& [before, after] : {std::pair{true, false}, {false, true}, {true, true}}) {
    AttentionSpec spec = small_spec(2, 2, d);
    spec.head_mix = {before ? Mix::full : Mix::none, after ? Mix::full : Mix::none, 0};
    const AttentionInputs in = random_inputs(spec, 1, t);
    const at::Tensor none = at::eye(2, at::kDouble);
    const at::Tensor before_oi = before ? in.tensors.mix_before_noi[0] : none;
    const at::Tensor after_io = after ? in.tensors.mix_after_nio[0] : none;
    // Head n of the result: the two heads of x side by side, each times its weight in row n.
    const auto both = [](const at::Tensor& x_bhtd, const at::Tensor& weights_nh) {
      const at::Tensor x_bnhtd = x_bhtd.unsqueeze(1) * weights_nh.view({1, 2, 2, 1, 1});
      return at::cat({x_bnhtd.select(2, 0), x_bnhtd.select(2, 1)}, -1);
    };
    AttentionSpec wide = small_spec(2, 2, 2 * d);
    wide.scale = 1.0 / std::sqrt(static_cast<double>(d));
    const at::Tensor wide_out = attention(wide, both(in.q, before_oi),
                                          both(in.k, at::ones_like(none)), both(in.v, after_io))
                                    .out_bhte;
    const at::Tensor mixed_out = attention(spec, in.q, in.k, in.v, in.tensors).out_bhte;
    const at::Tensor projection_hdc = random_normal({2, d, 3}, 99);
    const at::Tensor mixed_btc = at::matmul(mixed_out, projection_hdc).sum(1);
    const at::Tensor wide_btc = at::matmul(wide_out, projection_hdc.reshape({2 * d, 3})).sum(1);
    EXPECT_LT(relative_error(mixed_btc, wide_btc), 1e-12) << before << ", " << after;
  }
}

// M-1: the two equations differ where an older query meets a key after itself, and only there.
TEST(MultiToken, EquationsFourAndFiveDifferNearTheDiagonalOnly) {
  const int64_t t = 12;
  const at::Tensor x = random_normal({1, 1, t, t}, 1);
  const at::Tensor kernel = random_normal({1, 3, 3}, 2);
  const at::Tensor allowed = at::ones({t, t}, at::kBool).tril().view({1, 1, t, t});
  const at::Tensor five = key_query_convolution(Equation::eq5, x.masked_fill(~allowed, 0.0), kernel,
                                                t, {}, {}),
                   four = key_query_convolution(Equation::eq4, x, kernel, t, {}, allowed);
  const at::Tensor difference = (five - four).abs()[0][0];
  // The oldest row of the kernel is two queries back, its newest key one ahead.
  EXPECT_LT(difference.tril(-4).max().item<double>(), 1e-14);
  EXPECT_GT(difference.diagonal(-1).min().item<double>(), 1e-6);
}

// 3.6, M-10: exactly (cq-1) + (cq'-1) earlier queries are needed, ten for kernels of six rows.
TEST(MultiToken, DecodingNeedsExactlyTheStatedNumberOfEarlierQueries) {
  const int64_t t = 24;
  for (const auto& [before, after] :
       {std::pair<int64_t, int64_t>{6, 6}, {6, 0}, {0, 6}, {1, 1}, {4, 2}}) {
    AttentionSpec spec = small_spec(2, 1, 4);
    if (before > 0) spec.multi_token.before = {before, 5};
    if (after > 0) spec.multi_token.after = {after, 3};
    const int64_t needed = std::max<int64_t>(before - 1, 0) + std::max<int64_t>(after - 1, 0);
    EXPECT_EQ(spec.multi_token.earlier_queries(), needed);
    const AttentionInputs in = random_inputs(spec, 1, t);
    const at::Tensor full =
        attention(spec, in.q, in.k, in.v, in.tensors).out_bhte.narrow(2, t - 1, 1);
    for (int64_t kept = 0; kept <= needed + 1; ++kept) {
      const at::Tensor out =
          attention(spec, in.q.narrow(2, t - 1 - kept, kept + 1), in.k, in.v, in.tensors).out_bhte;
      const double error = relative_error(out.narrow(2, kept, 1), full);
      EXPECT_EQ(error < 1e-12, kept >= needed) << before << ", " << after << ": " << kept;
    }
    AttentionCache cache(cache_streams(spec, at::kDouble), 1, t);
    EXPECT_EQ(cache.has("queries"), needed > 0);
    for (int64_t i = 0; i < t; ++i) {
      cached_attention(spec, cache, in.q.narrow(2, i, 1), in.k.narrow(2, i, 1),
                       in.v.narrow(2, i, 1), in.tensors);
      const int64_t rows = needed > 0 ? cache.rows("queries").size(1) : 1;
      EXPECT_EQ(rows, std::min(i, needed) + 1);
    }
  }
}

// 3.6: with a window W the cache keeps W + R keys, whatever the length of the text.
TEST(MultiToken, AWindowKeepsAsManyKeysAsTheOldestQueryNeeds) {
  AttentionSpec spec = small_spec();
  spec.multi_token = {{3, 5}, {2, 3}};
  spec.mask.window = 4, spec.mask.sinks = 3;
  const AttentionInputs in = random_inputs(spec, 1, 60);
  const at::Tensor full = attention(spec, in.q, in.k, in.v, in.tensors).out_bhte;
  AttentionCache cache(cache_streams(spec, at::kDouble), 1, 60);
  const int64_t bytes = cache.bytes();
  for (int64_t i = 0; i < 60; ++i) {
    const at::Tensor out = cached_attention(spec, cache, in.q.narrow(2, i, 1), in.k.narrow(2, i, 1),
                                            in.v.narrow(2, i, 1), in.tensors)
                               .out_bhte;
    EXPECT_LT(relative_error(out, full.narrow(2, i, 1)), 1e-12) << i;
    EXPECT_LE(cache.rows("keys").size(1), 3 + 4 + 3);
  }
  EXPECT_EQ(cache.bytes(), bytes);
}

// M-9.
TEST(MultiToken, RenormalisedWeightsSumToOneAndOthersDoNot) {
  AttentionSpec spec = small_spec();
  spec.multi_token.after = {2, 3};
  const AttentionInputs in = random_inputs(spec, 1, 11);
  const std::vector<int64_t> heads{0, 1, 2, 3}, rows{0, 4, 5, 10};
  const auto sums = [&] {
    return attention_rows(spec, in.q, in.k, in.tensors, {}, heads, rows).sum(-1);
  };
  EXPECT_GT((sums() - 1.0).abs().max().item<double>(), 0.1);
  spec.multi_token.renormalise = true;
  EXPECT_LT((sums() - 1.0).abs().max().item<double>(), 1e-5);
}

// 13.22.
TEST(MultiToken, TextsShorterThanTheKernelEqualScalarLoops) {
  AttentionSpec spec = small_spec();
  spec.multi_token = {{6, 11}, {4, 8}};
  for (const int64_t t : {1, 2, 3, 5}) {
    const AttentionInputs in = random_inputs(spec, 1, t);
    EXPECT_LT(relative_error(attention(spec, in.q, in.k, in.v, in.tensors).out_bhte,
                             scalar_attention(spec, in).out),
              1e-13);
  }
}

// Maps of chosen rows are those of the whole call, rows before them included.
TEST(MultiToken, MapsOfChosenRowsEqualScalarWeights) {
  AttentionSpec spec = small_spec();
  spec.multi_token = {{3, 5}, {2, 4}};
  spec.head_mix = {Mix::full, Mix::full, 0};
  const AttentionInputs in = random_inputs(spec, 1, 15);
  const std::vector<int64_t> heads{3, 0}, rows{14, 2, 3, 4};
  const at::Tensor truth = scalar_attention(spec, in, packed_context({7, 8})).weights;
  const at::Tensor map =
      attention_rows(spec, in.q, in.k, in.tensors, packed_context({7, 8}), heads, rows);
  for (int64_t h = 0; h < 2; ++h)
    for (int64_t r = 0; r < 4; ++r)
      EXPECT_LT((map[0][h][r] - truth[0][heads[h]][rows[r]]).abs().max().item<double>(), 1e-6);
}

// 13.8: a permutation matrix permutes the heads' logits.
TEST(TalkingHeads, APermutationMatrixPermutesHeads) {
  AttentionSpec spec = small_spec(4, 4, 8);
  spec.head_mix = {Mix::full, Mix::full, 0};
  AttentionInputs in = random_inputs(spec, 1, 10);
  const std::vector<int64_t> order{2, 0, 3, 1};
  at::Tensor permutation = at::zeros({1, 4, 4}, at::kDouble);
  for (int64_t o = 0; o < 4; ++o) permutation[0][o][order[o]] = 1.0;
  in.tensors.mix_before_noi = permutation;
  in.tensors.mix_after_nio = at::eye(4, at::kDouble).unsqueeze(0);
  const at::Tensor index = at::tensor(order, at::kLong);
  const at::Tensor expected =
      attention(small_spec(4, 4, 8), in.q.index_select(1, index), in.k.index_select(1, index), in.v)
          .out_bhte;
  EXPECT_LT(relative_error(attention(spec, in.q, in.k, in.v, in.tensors).out_bhte, expected),
            1e-13);
  // Stored (in, out), the same matrix sends head order[o] ... back: the two undo each other.
  in.tensors.mix_after_nio = permutation;
  const at::Tensor back =
      attention(small_spec(4, 4, 8), in.q, in.k, in.v.index_select(1, index)).out_bhte;
  EXPECT_LT(
      relative_error(attention(spec, in.q, in.k, in.v.index_select(1, index), in.tensors).out_bhte,
                     back),
      1e-13);
}

TEST(ReferenceInBlocks, EqualsAllRowsAtOnceWithItsGradientsForEveryStage) {
  for (const auto& [name, spec] : all_specs()) {
    AttentionContext context = packed_context({9, 20});
    context.want_lse = true;
    const AttentionInputs in = random_inputs(spec, 2, 29).with_gradient();
    const auto run = [&](int64_t block) {
      const AttentionResult r =
          reference_in_blocks(checked_call(spec, in.q, in.k, in.v, in.tensors, context), block);
      std::vector<at::Tensor> all{r.out_bhte, r.lse_bht.masked_fill(r.lse_bht.isneginf(), 7.0)};
      const at::Tensor sum = (r.out_bhte * random_normal(r.out_bhte.sizes(), 3)).sum() +
                             (r.lse_bht * random_normal(r.lse_bht.sizes(), 4)).sum();
      for (const at::Tensor& grad : gradients(sum, in.leaves())) all.push_back(grad);
      return all;
    };
    const auto whole = run(0);
    for (const int64_t block : {1, 7}) {
      const auto parts = run(block);
      for (size_t n = 0; n < whole.size(); ++n) {
        const double size = std::max(1e-9, whole[n].abs().max().item<double>());
        EXPECT_LT((parts[n] - whole[n]).abs().max().item<double>(), 1e-12 * std::max(1.0, size))
            << name << ", part " << n;
      }
    }
  }
}

TEST(ReferenceInBlocks, BlocksBoundTheMemoryOfTheWeights) {
  EXPECT_EQ(reference_block_rows(16, 256, 256, 4), 0);
  EXPECT_EQ(reference_block_rows(16, 2048, 2048, 4), 256);
  EXPECT_EQ(reference_block_rows(1024, 8192, 8192, 8), 64);
}

TEST(MultiToken, ImpossibleSettingsAreRefusedByName) {
  const auto refused = [](auto change, const std::vector<std::string>& parts) {
    AttentionSpec spec = small_spec();
    change(spec);
    EXPECT_TRUE(throws_naming<ConfigError>([&] { spec.check(); }, parts));
  };
  refused([](AttentionSpec& s) { s.multi_token.before = {0, 11}; }, {"before.queries", "0 and 11"});
  refused([](AttentionSpec& s) { s.multi_token.after = {3, -1}; }, {"after.queries", "-1"});
  refused([](AttentionSpec& s) { s.multi_token.renormalise = true; }, {"renormalise", "after"});
  refused([](AttentionSpec& s) { s.head_mix = {Mix::groups, Mix::none, 3}; }, {"group", "3", "4"});
  refused([](AttentionSpec& s) { s.head_mix = {Mix::full, Mix::none, 2}; }, {"group", "2"});
  refused([](AttentionSpec& s) { s.head_output.norm_eps = 0; }, {"norm_eps"});
  refused([](AttentionSpec& s) { s.depth = -1; }, {"depth"});
  AttentionSpec spec = small_spec();
  spec.multi_token.before = {3, 5};
  AttentionInputs in = random_inputs(spec, 1, 6);
  in.tensors.kernel_before_hqk = random_normal({4, 5, 3}, 1);
  EXPECT_ERROR(ShapeError, attention(spec, in.q, in.k, in.v, in.tensors), "kernel_before",
               "[4, 3, 5]", "[4, 5, 3]");
  EXPECT_ERROR(ShapeError, attention(small_spec(), in.q, in.k, in.v, in.tensors), "kernel_before",
               "absent");
}

// 3.5.
TEST(MultiToken, KernelsStartAsTheirNamesSay) {
  const KernelExtent extent{3, 5};
  const auto start = [&](KernelStart kind, double value = 0.3) {
    return start_kernel(kind, value, 2, extent);
  };
  EXPECT_EQ(start(KernelStart::identity).sum().item<double>(), 2.0);
  EXPECT_EQ(start(KernelStart::identity)[1][2][2].item<double>(), 1.0);
  EXPECT_EQ(start(KernelStart::zeros).abs().sum().item<double>(), 0.0);
  EXPECT_NEAR(start(KernelStart::constant).sum().item<double>(), 0.3 * 30, 1e-5);
  const at::Tensor diagonal = start(KernelStart::diagonal);
  for (int64_t back = 0; back < 3; ++back)
    EXPECT_EQ(diagonal[0][2 - back][2 - back].item<double>(), 1.0);
  EXPECT_EQ(diagonal.sum().item<double>(), 6.0);
}

}  // namespace
}  // namespace fovea::multi_token_test
