// Performer: features, the kernels against the float64 reference, leaks, the state, refusals (spec
// 4.2). The reference's numbers, gradients, causality, packing and caches run with those of every
// spec (all_specs()).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <tuple>

#include "fovea/attention/decode/cached_attention.h"
#include "fovea/attention/mechanisms/performer_features.h"
#include "fovea/attention/stages.h"
#include "fovea/kernels/backend.h"
#include "fovea/kernels/common/isa.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/every_isa.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"

namespace fovea::performer_test {
namespace {

using namespace fovea::testing;

AttentionSpec performer(int64_t heads = 4, int64_t kv_heads = 2, int64_t d = 8, int64_t e = 0,
                        int64_t features = 24) {
  AttentionSpec spec = small_spec(heads, kv_heads, d);
  spec.value_dim = e;
  spec.performer.features = features;
  return spec;
}

struct Estimate {
  double mean = 0.0, error = 0.0;
};

// Of exp(q.k / sqrt d) over many draws of d features each.
template <class Draw>
Estimate estimate_kernel(const at::Tensor& q, const at::Tensor& k, int64_t draws,
                         const Draw& draw) {
  const double root = std::pow(static_cast<double>(q.size(0)), 0.25);
  const at::Tensor x = q / root, y = k / root;
  const double norms = 0.5 * (x.dot(x) + y.dot(y)).item<double>();
  std::vector<double> each;
  for (int64_t n = 0; n < draws; ++n) {
    const at::Tensor w = draw(static_cast<uint64_t>(n)).to(at::kDouble);
    each.push_back((at::mv(w, x + y) - norms).exp().mean().template item<double>());
  }
  const at::Tensor all = at::tensor(each, at::kDouble);
  return {all.mean().item<double>(),
          all.std().item<double>() / std::sqrt(static_cast<double>(draws))};
}

// Gaussian lengths, directions of LAPACK's QR as it is: not isotropic.
at::Tensor plain_qr(int64_t d, uint64_t seed) {
  const at::Tensor q = std::get<0>(at::linalg_qr(random_normal({d, d}, seed)));
  return q.t() * random_normal({d, d}, seed + 500000).norm(2, {1}, true);
}

// 13.9.
TEST(PerformerFeatures, EstimateTheKernelWithoutBiasAndPlainQrDoesNot) {
  const int64_t d = 8, draws = 6000;
  const at::Tensor q = at::full({d}, 0.4, at::kDouble);
  at::Tensor k = q.clone();
  k.slice(0, 0, 3).neg_();
  const double truth = std::exp(q.dot(k).item<double>() / std::sqrt(static_cast<double>(d)));
  const PerformerSpec gaussian{.features = d};
  const Estimate ours =
      estimate_kernel(q, k, draws, [&](uint64_t seed) { return draw_features(gaussian, d, seed); });
  EXPECT_LT(std::abs(ours.mean - truth), 4.0 * ours.error);
  const Estimate plain =
      estimate_kernel(q, k, draws, [&](uint64_t seed) { return plain_qr(d, seed); });
  EXPECT_GT(std::abs(plain.mean - truth), 10.0 * plain.error);
}

// The spread of one feature is what limits a retrofit: e^{2q'.k'} (e^{|q'+k'|^2} - 1) for
// independent directions.
TEST(PerformerFeatures, OneFeatureSpreadsAsTheFormulaSays) {
  const int64_t d = 8;
  const at::Tensor q = random_normal({d}, 1, 0.5), k = random_normal({d}, 2, 0.5);
  const double root = std::pow(static_cast<double>(d), 0.25);
  const at::Tensor x = q / root, y = k / root;
  const double product = x.dot(y).item<double>(), sum = (x + y).dot(x + y).item<double>();
  const at::Tensor w = random_normal({400000, d}, 3);
  const at::Tensor one = (at::mv(w, x + y) - 0.5 * (x.dot(x) + y.dot(y))).exp();
  EXPECT_NEAR(one.var().item<double>() / (std::exp(2.0 * product) * (std::exp(sum) - 1.0)), 1.0,
              0.05);
}

TEST(PerformerFeatures, BlocksAreOrthogonalAndLengthsAreThoseOfTheScaling) {
  const int64_t d = 16;
  PerformerSpec spec{.features = 40, .scaling = PerformerSpec::Scaling::root};
  const at::Tensor root = draw_features(spec, d, 5).to(at::kDouble);
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 16}, {16, 16}, {32, 8}}) {
    const at::Tensor block = root.narrow(0, first, count);
    const at::Tensor truth = 16.0 * at::eye(count, block.options());
    EXPECT_LT((at::mm(block, block.t()) - truth).abs().max().item<double>(), 1e-5);
  }
  spec = {.features = 4096};
  const at::Tensor squares = draw_features(spec, d, 5).to(at::kDouble).square().sum(1);
  EXPECT_NEAR(squares.mean().item<double>(), 16.0, 0.4);  // chi squared with d degrees
  EXPECT_NEAR(squares.var().item<double>(), 32.0, 4.0);
  EXPECT_TRUE(draw_features(spec, d, 5).equal(draw_features(spec, d, 5)));
  EXPECT_FALSE(draw_features(spec, d, 5).equal(draw_features(spec, d, 6)));
}

struct Numbers {
  at::Tensor out, lse;
  std::vector<at::Tensor> grads;
};

Numbers run(const AttentionSpec& spec, const AttentionInputs& leaves, AttentionContext context,
            Path path, PlanWord plan = PlanWord::dense) {
  context.want_lse = true;
  const AttentionInputs in = leaves.with_gradient();
  const AttentionResult r = attention(spec, in.q, in.k, in.v, in.tensors, context, path);
  if (path != Path::reference) {
    EXPECT_EQ(r.path.name, PathName::fused);
    EXPECT_EQ(r.path.plan, plan);
  }
  const auto weights = [](const at::Tensor& x, uint64_t seed) {
    return random_normal(x.sizes(), seed).to(x.scalar_type());
  };
  const at::Tensor sum =
      (r.out_bhte * weights(r.out_bhte, 77)).sum() + (r.lse_bht * weights(r.lse_bht, 78)).sum();
  return {r.out_bhte.detach(), r.lse_bht.detach(), gradients(sum, in.leaves())};
}

void expect_kernels_equal_the_reference(const AttentionSpec& spec, int64_t t,
                                        const AttentionContext& context, PlanWord plan,
                                        double size = 1.0) {
  AttentionInputs in = random_inputs(spec, 2, t);
  in.q = in.q * size, in.k = in.k * size;
  const std::string what = fmt::format("t {} d {} e {} m {} of {}", t, spec.head_dim,
                                       spec.value_width(), spec.performer.features, spec.heads);
  const Numbers truth = run(spec, in, context, Path::reference),
                got = run(spec, in.to(at::kFloat), context, Path::fused, plan);
  EXPECT_LT(relative_error(got.out, truth.out), 1e-5) << what;
  EXPECT_LT(relative_error(got.lse, truth.lse), 1e-5) << what;
  for (size_t n = 0; n < truth.grads.size(); ++n)
    EXPECT_LT(relative_error(got.grads[n], truth.grads[n]), 1e-4) << what << " gradient " << n;
}

TEST(PerformerKernels, EqualTheFloat64ReferenceWithItsGradientsAtOddSizes) {
  for (const int64_t t : {1, 3, 19, 63, 64, 65, 97, 257})
    expect_kernels_equal_the_reference(performer(), t, {}, PlanWord::causal);
  for (const auto& [heads, kv_heads] : {std::pair<int64_t, int64_t>{6, 1}, {6, 2}, {3, 3}, {1, 1}})
    expect_kernels_equal_the_reference(performer(heads, kv_heads), 150, {}, PlanWord::causal);
  for (const auto& [d, e, m] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {20, 5, 7}, {16, 33, 16}, {64, 64, 128}})
    expect_kernels_equal_the_reference(performer(2, 1, d, e, m), 150, {}, PlanWord::causal, 0.5);
}

TEST(PerformerKernels, EqualTheReferenceInDocumentsAndWithTemperatures) {
  AttentionSpec constant = performer(), learned = performer();
  constant.temperature.value = 0.7, constant.scale = 0.5;
  learned.temperature.kind = TemperatureSpec::Kind::learned;
  for (const AttentionSpec& spec : {performer(), constant, learned}) {
    for (const std::vector<int64_t>& lengths :
         {std::vector<int64_t>{1, 70, 129, 64}, {64, 64, 10}, {200}, {3, 1, 1, 5, 90}}) {
      expect_kernels_equal_the_reference(
          spec, std::accumulate(lengths.begin(), lengths.end(), int64_t{0}),
          packed_context(lengths), lengths.size() > 1 ? PlanWord::documents : PlanWord::causal);
    }
  }
}

TEST(PerformerKernels, HalfPrecisionRoundsInputsAndOutputsAlone) {
  const AttentionSpec spec = performer();
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const AttentionInputs in = random_inputs(spec, 1, 130).to(dtype);
    const AttentionResult got = attention(spec, in.q, in.k, in.v, in.tensors, {}, Path::fused);
    const AttentionInputs wide = in.to(at::kFloat);
    const at::Tensor rounded =
        attention(spec, wide.q, wide.k, wide.v, wide.tensors).out_bhte.to(dtype);
    EXPECT_EQ(got.out_bhte.scalar_type(), dtype);
    EXPECT_TRUE(got.out_bhte.equal(rounded));
  }
}

// 13.3: later tokens, whatever the size of their exponents, change no bit; nor do other documents.
TEST(PerformerKernels, LaterTokensChangeNoBitOfEarlierOutputs) {
  const AttentionSpec spec = performer();
  const AttentionInputs in = random_inputs(spec, 1, 200).to(at::kFloat);
  for (const AttentionContext& context : {AttentionContext{}, packed_context({90, 110})}) {
    const at::Tensor before =
        attention(spec, in.q, in.k, in.v, in.tensors, context, Path::fused).out_bhte;
    for (const int64_t i : {0, 31, 63, 64, 100, 198}) {
      for (const double factor : {-3.0, 0.01, 9.0}) {
        AttentionInputs changed = in.to(at::kFloat);
        for (at::Tensor* x : {&changed.q, &changed.k, &changed.v}) {
          *x = x->clone();
          x->narrow(2, i + 1, 199 - i).mul_(factor);
        }
        const at::Tensor after =
            attention(spec, changed.q, changed.k, changed.v, in.tensors, context, Path::fused)
                .out_bhte;
        EXPECT_TRUE(before.narrow(2, 0, i + 1).equal(after.narrow(2, 0, i + 1))) << i;
        EXPECT_FALSE(before.equal(after));
      }
    }
  }
}

TEST(PerformerKernels, GiveTheSameBitsForAnyBatchAndNumberOfThreads) {
  const AttentionSpec spec = performer();
  const AttentionInputs in = random_inputs(spec, 3, 150).to(at::kFloat);
  const int threads = at::get_num_threads();
  const auto grads_of = [&](const AttentionInputs& x) {
    Numbers n = run(spec, x, {}, Path::fused, PlanWord::causal);
    n.grads.insert(n.grads.begin(), n.out);
    return n.grads;
  };
  at::set_num_threads(1);
  const auto one = grads_of(in);
  at::set_num_threads(2);
  const auto two = grads_of(in);
  at::set_num_threads(threads);
  for (size_t n = 0; n < one.size(); ++n) EXPECT_TRUE(one[n].equal(two[n])) << n;
  AttentionInputs last = in;
  for (at::Tensor* x : {&last.q, &last.k, &last.v}) *x = x->narrow(0, 2, 1);
  EXPECT_TRUE(attention(spec, last.q, last.k, last.v, in.tensors, {}, Path::fused)
                  .out_bhte.equal(one[0].narrow(0, 2, 1)));
}

TEST(PerformerForcedIsa, EveryInstructionSetPassesTheKernelTests) {
  EXPECT_EQ(kernels::cpu().isa<kernels::PerformerForward>(),
            enum_name(std::min(chosen_isa(), Isa::avx512)));
  testing::expect_tests_pass_on_every_isa("PerformerKernels.*");
}

// Features of query and key that do not meet in float32: the sum of the row is 0.
TEST(PerformerKernels, ARowWhoseSumIsZeroHasOutputAndGradientZero) {
  AttentionSpec spec = performer(1, 1, 2, 2, 2);
  AttentionInputs in = random_inputs(spec, 1, 3).to(at::kFloat);
  in.tensors.features_md = at::eye(2) * 40.0;
  in.q = at::tensor({4.0f, 0.0f}).expand({1, 1, 3, 2}).clone();
  in.k = at::tensor({0.0f, 4.0f}).expand({1, 1, 3, 2}).clone();
  in = in.with_gradient();
  AttentionContext context;
  context.want_lse = true;
  const AttentionResult r = attention(spec, in.q, in.k, in.v, in.tensors, context, Path::fused);
  EXPECT_TRUE(r.out_bhte.eq(0.0).all().item<bool>());
  EXPECT_TRUE(r.lse_bht.isneginf().all().item<bool>());
  for (const at::Tensor& grad : gradients(r.out_bhte.sum(), {in.q, in.k, in.v}))
    EXPECT_TRUE(grad.eq(0.0).all().item<bool>());
}

// Spec 4.2: the published form, whose stabiliser of keys is the maximum over the whole text.
at::Tensor published(const AttentionSpec& spec, const AttentionInputs& in) {
  const int64_t heads = spec.heads, t = in.q.size(2), d = spec.head_dim, e = spec.value_width(),
                m = spec.performer.features;
  const double root = std::pow(static_cast<double>(d), 0.25);
  const auto q = in.q.accessor<double, 4>(), k = in.k.accessor<double, 4>(),
             v = in.v.accessor<double, 4>();
  const auto w = in.tensors.features_md.accessor<double, 2>();
  at::Tensor out = at::zeros({1, heads, t, e}, at::kDouble);
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t g = h / (heads / spec.kv_heads);
    const auto project = [&](const auto& row, int64_t r) {
      double sum = 0.0;
      for (int64_t c = 0; c < d; ++c) sum += w[r][c] * row[c] / root;
      return sum;
    };
    const auto half_square = [&](const auto& row) {
      double sum = 0.0;
      for (int64_t c = 0; c < d; ++c) sum += row[c] * row[c] / (2.0 * root * root);
      return sum;
    };
    double of_keys = -HUGE_VAL;
    for (int64_t j = 0; j < t; ++j)
      for (int64_t r = 0; r < m; ++r) of_keys = std::max(of_keys, project(k[0][g][j], r));
    for (int64_t i = 0; i < t; ++i) {
      double of_query = -HUGE_VAL, total = 0.0;
      for (int64_t r = 0; r < m; ++r) of_query = std::max(of_query, project(q[0][h][i], r));
      std::vector<double> sums(static_cast<size_t>(e), 0.0);
      for (int64_t j = 0; j <= i; ++j) {
        double weight = 0.0;
        for (int64_t r = 0; r < m; ++r)
          weight += (std::exp(project(q[0][h][i], r) - half_square(q[0][h][i]) - of_query) +
                     spec.performer.epsilon) *
                    (std::exp(project(k[0][g][j], r) - half_square(k[0][g][j]) - of_keys) +
                     spec.performer.epsilon);
        total += weight;
        for (int64_t c = 0; c < e; ++c) sums[c] += weight * v[0][g][j][c];
      }
      for (int64_t c = 0; c < e; ++c) out[0][h][i][c] = sums[c] / total;
    }
  }
  return out;
}

AttentionSpec published_spec(double epsilon) {
  AttentionSpec spec = performer();
  spec.performer.epsilon = epsilon;
  spec.performer.stabiliser = PerformerSpec::Stabiliser::global;
  return spec;
}

TEST(PerformerEpsilon, ReproducesThePublishedFormInTheReference) {
  for (const double epsilon : {1e-4, 1e-2}) {
    const AttentionSpec spec = published_spec(epsilon);
    const AttentionInputs in = random_inputs(spec, 1, 21);
    const AttentionResult r = attention(spec, in.q, in.k, in.v, in.tensors);
    EXPECT_EQ(r.path.name, PathName::reference);
    EXPECT_LT(relative_error(r.out_bhte, published(spec, in)), 1e-12);
  }
  // Without epsilon any stabiliser cancels.
  const AttentionSpec global = published_spec(0.0);
  const AttentionInputs in = random_inputs(global, 1, 21);
  EXPECT_LT(relative_error(attention(global, in.q, in.k, in.v, in.tensors).out_bhte,
                           published(global, in)),
            1e-12);
}

// 13.3, an expected failure: with epsilon and the global maximum a later key moves earlier rows.
TEST(PerformerEpsilon, LeaksTheFutureWithTheGlobalMaximumAlone) {
  for (const auto& [spec, leaks] :
       {std::pair{published_spec(1e-2), true}, {published_spec(0.0), false}}) {
    const AttentionInputs in = random_inputs(spec, 1, 20);
    AttentionInputs changed = in;
    changed.k = in.k.clone();
    changed.k.narrow(2, 15, 5).mul_(-3.0);
    const at::Tensor before = attention(spec, in.q, in.k, in.v, in.tensors).out_bhte,
                     after = attention(spec, in.q, changed.k, in.v, in.tensors).out_bhte;
    EXPECT_NE(before.narrow(2, 0, 15).equal(after.narrow(2, 0, 15)), leaks);
  }
}

// 13.4: prefill in chunks and single tokens, by kernels and by operations, from one state.
TEST(PerformerState, ContinuesATextOfAnyLengthInConstantMemory) {
  const AttentionSpec spec = performer(4, 2, 16, 24, 40);
  const int64_t text = 210;
  const AttentionInputs wide = random_inputs(spec, 2, text);
  const at::Tensor full = reference_attention(spec, wide.q, wide.k, wide.v, wide.tensors).out_bhte;
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const AttentionInputs in = wide.to(dtype);
    AttentionCache cache(cache_streams(spec, dtype), 2, text);
    const int64_t bytes = cache.bytes();
    std::vector<at::Tensor> parts;
    int64_t begin = 0;
    for (const int64_t n : {1, 70, 64, 1, 1, 60, 1, 12}) {
      const AttentionInputs some = in.tokens(begin, n);
      const AttentionResult r =
          cached_attention(spec, cache, some.q, some.k, some.v, in.tensors, Path::automatic);
      EXPECT_EQ(r.path.text(),
                dtype == at::kFloat ? "decode fused causal" : "decode reference dense");
      parts.push_back(r.out_bhte);
      begin += n;
      EXPECT_EQ(cache.bytes(), bytes);
      EXPECT_EQ(cache.length(), begin);
    }
    EXPECT_LT(relative_error(at::cat(parts, 2), full), dtype == at::kFloat ? 1e-5 : 1e-12);
  }
  const int64_t width = kernels::performer_state_width(24);
  AttentionCache small(cache_streams(spec, at::kFloat), 1, 10);
  EXPECT_EQ(small.bytes(), 2 * 40 * width * 4);
}

TEST(PerformerState, HasNoWayBackButAFork) {
  const AttentionSpec spec = performer();
  const AttentionInputs in = random_inputs(spec, 1, 12).to(at::kFloat);
  AttentionCache cache(cache_streams(spec, at::kFloat), 1, 12);
  const auto feed = [&](AttentionCache& to, int64_t begin, int64_t n) {
    const AttentionInputs some = in.tokens(begin, n);
    return cached_attention(spec, to, some.q, some.k, some.v, in.tensors).out_bhte;
  };
  feed(cache, 0, 8);
  AttentionCache fork = cache.fork();
  const at::Tensor next = feed(cache, 8, 2);
  EXPECT_ERROR(UnsupportedError, cache.truncate(8), "feature_sums", "fork");
  EXPECT_NO_THROW(cache.truncate(10));
  EXPECT_TRUE(feed(fork, 8, 2).equal(next));
  EXPECT_ERROR(UnsupportedError, feed(cache, 9, 3), "capacity");
}

TEST(PerformerState, AnEarlyTextOfTinyExponentsIsNotLost) {
  AttentionSpec spec = performer(1, 1, 4, 4, 8);
  AttentionInputs in = random_inputs(spec, 1, 6);
  in.k = in.k * 30.0;  // |k'|^2 / 2 in the hundreds: e^-that is 0 in float32
  const at::Tensor full = reference_attention(spec, in.q, in.k, in.v, in.tensors).out_bhte;
  const AttentionInputs f = in.to(at::kFloat);
  AttentionCache cache(cache_streams(spec, at::kFloat), 1, 6);
  std::vector<at::Tensor> parts;
  for (int64_t i = 0; i < 6; ++i)
    parts.push_back(cached_attention(spec, cache, f.q.narrow(2, i, 1), f.k.narrow(2, i, 1),
                                     f.v.narrow(2, i, 1), f.tensors)
                        .out_bhte);
  EXPECT_LT(relative_error(at::cat(parts, 2), full), 1e-3);  // exponents of hundreds, in float32
}

TEST(Performer, KeysWithoutTheirStateTakeTheReference) {
  const AttentionSpec spec = performer();
  const AttentionInputs in = random_inputs(spec, 1, 4, 9).to(at::kFloat);
  EXPECT_EQ(attention(spec, in.q, in.k, in.v, in.tensors).path.name, PathName::reference);
  EXPECT_ERROR(UnsupportedError, attention(spec, in.q, in.k, in.v, in.tensors, {}, Path::fused),
               "earlier keys", "automatic");
}

TEST(Performer, RefusesWhatHasNoMeaningByName) {
  const auto refused = [](const std::function<void(AttentionSpec&)>& change, const char* name) {
    AttentionSpec spec = performer();
    change(spec);
    EXPECT_ERROR(UnsupportedError, spec.check(), "performer", name);
  };
  refused([](auto& s) { s.mask.causal = false; }, "mask.causal");
  refused([](auto& s) { s.mask.window = 8; }, "mask.window");
  refused([](auto& s) { s.soft_cap = 30.0; }, "soft_cap");
  refused([](auto& s) { s.multi_token.before = {2, 3}; }, "multi_token");
  refused([](auto& s) { s.head_mix.after = HeadMixSpec::Kind::full; }, "head_mix");
  refused([](auto& s) { s.focus.gate = FocusSpec::Gate::log, s.focus.groups = 4; }, "focus");
  refused([](auto& s) { s.routing.clusters = 4; }, "routing");
  refused([](auto& s) { s.blocks.size = 4; }, "blocks");
  refused([](auto& s) { s.bias.kind = BiasSpec::Kind::alibi; }, "bias");
  refused([](auto& s) { s.sink_logit = true; }, "sink_logit");
  refused([](auto& s) { s.dropout = 0.1; }, "dropout");
  refused([](auto& s) { s.differential = true; }, "differential");
  refused([](auto& s) { s.performer.epsilon = 1e-4; }, "stabiliser: global");
  AttentionSpec idle = small_spec();
  idle.performer.epsilon = 1e-4;
  EXPECT_ERROR(ConfigError, idle.check(), "performer.features");
  EXPECT_ERROR(ConfigError, performer(4, 2, 8, 0, 70000).check(), "performer.features", "70000");
  EXPECT_ERROR(UnsupportedError, cache_streams(published_spec(1e-4), at::kFloat), "epsilon");
  const AttentionSpec spec = performer();
  AttentionInputs in = random_inputs(spec, 1, 4);
  in.tensors.features_md = at::ones({23, 8}, at::kDouble);
  EXPECT_ERROR(ShapeError, attention(spec, in.q, in.k, in.v, in.tensors), "features", "[24, 8]");
  EXPECT_EQ(describe_pipeline(spec), "performer 24");
}

}  // namespace
}  // namespace fovea::performer_test
