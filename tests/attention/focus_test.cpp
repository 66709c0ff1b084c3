// Focus: groups of tokens, Sinkhorn, gates, decompositions, pairs kept (spec 11, 13.17, 13.18).
// Scalar loops, gradients, causality, packing and decoding of its gates are in the tests of every
// stage.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/focus.h"

#include <gtest/gtest.h>

#include "fovea/attention/cache/cache.h"
#include "fovea/attention/mechanisms/sinkhorn.h"
#include "tests/attention/focus_parts.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"
#include "tests/support/scalar_attention.h"

namespace fovea::focus_test {
namespace {

using namespace fovea::testing;
using Gate = FocusSpec::Gate;
using Potentials = FocusSpec::Potentials;

constexpr Gate kGates[] = {Gate::mul, Gate::log, Gate::logsig, Gate::identity, Gate::hard};

AttentionSpec focus_spec(Gate gate, FocusSpec focus = {.groups = 4, .window = 3, .sinks = 1}) {
  AttentionSpec spec = small_spec();
  spec.focus = focus;
  spec.focus.gate = gate;
  return spec;
}

at::Tensor output(const AttentionSpec& spec, const AttentionInputs& in,
                  const AttentionContext& context = {}, Path path = Path::reference) {
  return attention(spec, in.q, in.k, in.v, in.tensors, context, path).out_bhte;
}

FocusParameters parameters(int64_t groups, int64_t width, int64_t input, uint64_t seed = 3) {
  return {random_normal({width, input}, seed, 0.4), {}, random_normal({groups, width}, seed + 1)};
}

// 13.1: short texts, or groups that all meet, are plain attention; so are the paths' numbers.
TEST(Focus, IsPlainAttentionWhereNoPairIsDistantOrAllGroupsMeet) {
  const AttentionSpec plain = small_spec();
  for (const Gate gate : kGates) {
    const AttentionSpec spec = focus_spec(gate, {.groups = 4, .window = 20});
    const AttentionInputs in = random_inputs(spec, 2, 20);
    for (const Path path : {Path::automatic, Path::reference})
      EXPECT_LT(relative_error(output(spec, in, {}, path), scalar_attention(plain, in).out), 1e-12);
    EXPECT_EQ(attention(spec, in.q, in.k, in.v, in.tensors).path.name, PathName::torch_sdpa);
  }
  const AttentionSpec spec = focus_spec(Gate::hard, {.groups = 5, .top_k = 3, .window = 1});
  const AttentionInputs in = random_inputs(spec, 2, 20);
  for (const Path path : {Path::automatic, Path::reference})
    EXPECT_LT(relative_error(output(spec, in, {}, path), scalar_attention(plain, in).out), 1e-12);
}

TEST(Focus, LogGateWithOneGroupIsPlainAttention) {
  const AttentionSpec spec = focus_spec(Gate::log, {.groups = 1, .top_k = 1, .window = 1});
  const AttentionInputs in = random_inputs(spec, 1, 30);
  EXPECT_LT(relative_error(output(spec, in), scalar_attention(small_spec(), in).out), 1e-5);
}

TEST(Focus, IdentityGateStartsAsPlainAttentionAtUniformAssignments) {
  const AttentionSpec spec = focus_spec(Gate::identity);
  AttentionInputs in = random_inputs(spec, 1, 30);
  in.tensors.groups_bsk = at::full({1, 30, 4}, 0.25, at::kDouble);
  EXPECT_LT(relative_error(output(spec, in), scalar_attention(small_spec(), in).out), 1e-5);
  const AttentionSpec log = focus_spec(Gate::log);
  EXPECT_GT(relative_error(output(log, in), scalar_attention(small_spec(), in).out), 1e-2);
}

// 11.2: `mul` cannot prune: at a = 0 logits are halved, and negative ones rise.
TEST(Focus, MulGateHalvesLogitsOfStrangersWhileLogRemovesThem) {
  for (const Gate gate : {Gate::mul, Gate::log}) {
    const AttentionSpec spec = focus_spec(gate, {.groups = 2, .window = 1, .sinks = 0});
    AttentionInputs in = random_inputs(spec, 1, 2);
    in.tensors.groups_bsk = at::eye(2, at::kDouble).unsqueeze(0);  // strangers
    const std::vector<int64_t> head{0}, row{1};
    const double weight =
        attention_rows(spec, in.q, in.k, in.tensors, {}, head, row).flatten()[0].item<double>();
    const at::Tensor s = at::matmul(in.q[0][0][1], in.k[0][0].t()) * spec.logit_scale();
    const double near = std::exp(s[1].item<double>()), far = std::exp(0.5 * s[0].item<double>());
    if (gate == Gate::mul) {
      EXPECT_NEAR(weight, far / (far + near), 1e-6);
    } else {
      EXPECT_LT(weight, 1e-4);
    }
  }
}

// U-8: the forward pass of `hard` (to epsilon), the gradient of `log`'s ln(a).
TEST(Focus, StraightThroughHasTheValueOfHardAndAGradientForHiddenPairs) {
  const FocusSpec focus{.groups = 4, .top_k = 1, .window = 2, .sinks = 0};
  const AttentionSpec through = focus_spec(Gate::straight_through, focus),
                      hard = focus_spec(Gate::hard, focus);
  AttentionInputs in = random_inputs(through, 1, 16);
  AttentionInputs rule = in;
  rule.tensors.groups_bsk = at::Tensor();
  EXPECT_LT(relative_error(output(through, in), output(hard, rule)), 1e-4);
  in = in.with_gradient();
  const at::Tensor probe = random_normal({1, 4, 16, 8}, 9);
  const auto grad = gradients((output(through, in) * probe).sum(), {in.tensors.groups_bsk})[0];
  // The same composition with a free factor m on every pair: d/dm at the hard rule.
  const AttentionSpec plain = small_spec();
  at::Tensor factor =
      have_common_group(in.tensors.members_bs, in.tensors.members_bs).to(at::kDouble) +
      focus.epsilon;
  factor = factor.contiguous().set_requires_grad(true);
  const at::Tensor distance = at::arange(16).unsqueeze(1) - at::arange(16).unsqueeze(0);
  const at::Tensor logits =
      at::matmul(in.q.detach(), in.k.detach().repeat_interleave(2, 1).mT()) * plain.logit_scale() +
      factor.log().masked_fill(distance < 2, 0.0);
  const at::Tensor p =
      at::softmax(logits.masked_fill(distance < 0, -std::numeric_limits<double>::infinity()), -1);
  const at::Tensor out = at::matmul(p, in.v.detach().repeat_interleave(2, 1));
  const at::Tensor of_factor = gradients((out * probe).sum(), {factor})[0][0][0];
  const at::Tensor g = in.tensors.groups_bsk.detach()[0];
  EXPECT_LT(relative_error(grad[0], at::matmul(of_factor, g) + at::matmul(of_factor.t(), g)), 1e-9);
  EXPECT_GT(grad.abs().max().item<double>(), 1e-3);
}

// 11.1: parameters L (d_g D + K d_g).
TEST(Focus, FoldedStandardisationGivesTheSameScores) {
  const at::Tensor h = random_normal({3, 40, 6}, 1, 0.2) + 1.5;
  const InputStatistics stats = input_statistics(h.flatten(0, 1));
  const FocusSpec spec{.groups = 4, .width = 5};
  const FocusParameters p = parameters(4, 5, 6);
  const at::Tensor standard = (h - stats.mean_c.to(at::kDouble)) * stats.scale.to(at::kDouble);
  EXPECT_NEAR(standard.square().mean().item<double>(), 1.0, 1e-5);
  const FocusParameters fold = folded(p, stats.mean_c.to(at::kDouble), stats.scale.to(at::kDouble));
  EXPECT_LT(relative_error(focus_scores(spec, fold, focus_features(fold, h)),
                           focus_scores(spec, p, focus_features(p, standard))),
            1e-12);
}

TEST(Focus, TiesOfTheTopGroupsGoToTheLowerIndex) {
  const at::Tensor scores = at::tensor({1.0, 3.0, 3.0, 3.0, 0.0, 0.0}, at::kDouble).view({2, 3});
  const at::Tensor expected = at::tensor(std::vector<int64_t>{0b110, 0b011});
  EXPECT_TRUE(top_members(scores, 2).equal(expected));
  const at::Tensor last = at::zeros({1, 64}, at::kDouble);
  last[0][63] = 1.0;
  EXPECT_EQ(top_members(last, 1).item<int64_t>(), std::numeric_limits<int64_t>::min());
}

// 11.3, 13.17.
TEST(Sinkhorn, PotentialFormEqualsIteratedNormalisation) {
  const at::Tensor s = random_normal({37, 5}, 1, 2.0);
  for (const int64_t rounds : {1, 3, 10}) {
    at::Tensor q = s.exp();
    for (int64_t n = 0; n < rounds; ++n) {
      q = q / q.sum(0, true);
      q = q / q.sum(1, true);
    }
    const at::Tensor b = sinkhorn_potentials(s, rounds);
    EXPECT_LT(relative_error(at::softmax(s + b, -1), q), 1e-12) << rounds;
    EXPECT_NEAR(b.mean().item<double>(), 0.0, 1e-12);
  }
  const at::Tensor g = at::softmax(s + sinkhorn_potentials(s, 200), -1);
  EXPECT_LT((g.sum(0) - 37.0 / 5.0).abs().max().item<double>(), 1e-6);  // balanced
}

TEST(Sinkhorn, LargeScoresStayFiniteInFloat32) {
  const at::Tensor s = random_normal({50, 8}, 1, 90.0).to(at::kFloat);
  const at::Tensor g = at::softmax(s + sinkhorn_potentials(s, 10), -1);
  EXPECT_TRUE(at::isfinite(g).all().item<bool>());
  EXPECT_LT((g.sum(-1) - 1.0).abs().max().item<double>(), 1e-5);
}

at::Tensor groups_of(const FocusSpec& spec, const at::Tensor& scores,
                     const AttentionContext& context = {}) {
  const at::Tensor ema = random_normal({spec.groups}, 5);
  return group_tokens(spec, scores, token_potentials(spec, scores, context, ema)).groups_btk;
}

// 13.3: `sequence` and `batch` leak the future; `ema`, `chunk` and softmax do not.
TEST(Sinkhorn, OnlyEmaAndChunkAndSoftmaxAreCausal) {
  const at::Tensor scores = random_normal({2, 40, 4}, 1, 3.0);
  at::Tensor changed = scores.clone();
  changed.narrow(1, 20, 20).mul_(-2.0);
  const auto leaks = [&](FocusSpec spec) {
    spec.groups = 4;
    spec.chunk = 16;
    const at::Tensor before = groups_of(spec, scores).narrow(1, 0, 20),
                     after = groups_of(spec, changed).narrow(1, 0, 20);
    return !before.equal(after);
  };
  EXPECT_FALSE(leaks({.potentials = Potentials::ema}));
  EXPECT_FALSE(leaks({.potentials = Potentials::chunk}));
  EXPECT_FALSE(leaks({.assignment = FocusSpec::Assignment::softmax}));
  EXPECT_TRUE(leaks({.potentials = Potentials::sequence}));
  EXPECT_TRUE(leaks({.potentials = Potentials::batch}));
}

// 9.10: potentials of a packed document are its own.
TEST(Sinkhorn, PackedDocumentsHaveTheGroupsTheyHaveAlone) {
  const at::Tensor scores = random_normal({2, 50, 4}, 1, 3.0);
  const AttentionContext packed = packed_context({17, 33});
  for (const Potentials potentials : {Potentials::chunk, Potentials::sequence}) {
    const FocusSpec spec{.groups = 4, .potentials = potentials, .chunk = 8};
    const at::Tensor together = groups_of(spec, scores, packed);
    EXPECT_LT(relative_error(together.narrow(1, 0, 17), groups_of(spec, scores.narrow(1, 0, 17))),
              1e-12);
    EXPECT_LT(relative_error(together.narrow(1, 17, 33), groups_of(spec, scores.narrow(1, 17, 33))),
              1e-12);
  }
}

// 11.3: the first chunk has b = 0, a later one the potentials of everything before it.
TEST(Sinkhorn, AChunkTakesThePotentialsOfEverythingBeforeIt) {
  const FocusSpec spec{.groups = 3, .potentials = Potentials::chunk, .chunk = 10};
  const at::Tensor scores = random_normal({1, 25, 3}, 1, 2.0);
  const at::Tensor b = token_potentials(spec, scores, {}, {})[0];
  for (int64_t i = 0; i < 25; ++i) {
    const at::Tensor before = sinkhorn_potentials(scores[0].narrow(0, 0, i / 10 * 10), 10);
    EXPECT_LT((b[i] - before).abs().max().item<double>(), 1e-12);
  }
  EXPECT_EQ(b[9].abs().max().item<double>(), 0.0);
}

TEST(Sinkhorn, CachedPotentialsEqualThoseOfTheWholeTextAndTheFutureIsRefused) {
  AttentionSpec spec = focus_spec(Gate::log, {.groups = 3, .window = 2});
  spec.focus.potentials = Potentials::chunk;
  spec.focus.chunk = 8;
  const at::Tensor scores = random_normal({2, 30, 3}, 1, 2.0);
  const at::Tensor whole = token_potentials(spec.focus, scores, {}, {});
  AttentionCache cache(cache_streams(spec, at::kDouble), 2, 30);
  std::vector<at::Tensor> parts;
  for (const auto& [begin, n] : {std::pair<int64_t, int64_t>{0, 11}, {11, 1}, {12, 7}, {19, 11}})
    parts.push_back(cached_potentials(spec.focus, scores.narrow(1, begin, n), {}, cache));
  EXPECT_LT(relative_error(at::cat(parts, 1), whole), 1e-12);
  spec.focus.potentials = Potentials::sequence;
  EXPECT_ERROR(UnsupportedError, cached_potentials(spec.focus, scores, {}, cache), "sequence",
               "ema");
}

// 11.5, 13.17.
TEST(FocusParts, BothSchemesEqualTheDenseMaskForEveryNumberOfGroups) {
  for (const int64_t k : {1, 2, 3}) {
    AttentionSpec spec = focus_spec(Gate::hard, {.groups = 8, .top_k = k, .window = 4, .sinks = 2});
    spec.soft_cap = 3.0;
    spec.bias.kind = BiasSpec::Kind::alibi;
    for (const AttentionContext& context : {AttentionContext{}, packed_context({30, 1, 29})}) {
      const AttentionInputs in = random_inputs(spec, 2, 60);
      AttentionContext with_lse = context;
      with_lse.want_lse = true;
      const AttentionResult dense =
          reference_attention(spec, in.q, in.k, in.v, in.tensors, with_lse);
      for (const FocusScheme scheme :
           {FocusScheme::canonical_group, FocusScheme::membership_classes}) {
        const AttentionPart parts =
            focus_by_parts(spec, in.q, in.k, in.v, in.tensors.members_bs, context, scheme);
        EXPECT_LT(relative_error(parts.out_bhte, dense.out_bhte), 1e-12) << k;
        EXPECT_LT(relative_error(parts.lse_bht, dense.lse_bht), 1e-12) << k;
      }
    }
  }
}

// 11.5: w = 1 leaves rows without a stranger that is near; such parts must vanish, not be NaN.
TEST(FocusParts, EmptyPartsAreNeutral) {
  const AttentionSpec spec =
      focus_spec(Gate::hard, {.groups = 8, .top_k = 1, .window = 1, .sinks = 0});
  const AttentionInputs in = random_inputs(spec, 1, 12);
  for (const FocusScheme scheme : {FocusScheme::canonical_group, FocusScheme::membership_classes}) {
    const AttentionPart part =
        focus_by_parts(spec, in.q, in.k, in.v, in.tensors.members_bs, {}, scheme);
    EXPECT_LT(relative_error(part.out_bhte, output(spec, in)), 1e-12);
  }
  const AttentionPart none{at::zeros({1, 1, 2, 3}), at::full({1, 1, 2}, -HUGE_VAL)};
  const AttentionPart merged = merge_parts(none, none);
  EXPECT_TRUE(merged.out_bhte.eq(0.0).all().item<bool>());
  EXPECT_TRUE(at::isneginf(merged.lse_bht).all().item<bool>());
}

struct PairSets {
  at::Tensor shared, local;
};

PairSets pair_sets(const AttentionSpec& spec, const AttentionInputs& in) {
  const int64_t t = in.q.size(2);
  const at::Tensor distance = at::arange(t).unsqueeze(1) - at::arange(t).unsqueeze(0);
  return {have_common_group(in.tensors.members_bs, in.tensors.members_bs),
          distance.lt(spec.focus.window).view({1, 1, t, t})};
}

// 11.5: a pair that shares two groups is counted twice when every group runs by itself.
TEST(FocusParts, RunningEveryGroupByItselfCountsPairsTwice) {
  const AttentionSpec spec =
      focus_spec(Gate::hard, {.groups = 4, .top_k = 2, .window = 2, .sinks = 0});
  const AttentionInputs in = random_inputs(spec, 1, 40);
  const auto [shared, local] = pair_sets(spec, in);
  AttentionSpec plain = spec;
  plain.focus = {};
  AttentionPart sum =
      attend_pairs(plain, in.q, in.k, in.v, {}, local.logical_and(shared.logical_not()));
  for (int64_t k = 0; k < 4; ++k) {
    const at::Tensor member = in.tensors.members_bs.bitwise_and(int64_t{1} << k);
    sum = merge_parts(sum,
                      attend_pairs(plain, in.q, in.k, in.v, {}, have_common_group(member, member)));
  }
  EXPECT_GT(relative_error(sum.out_bhte, output(spec, in)), 0.05);
}

// The paper's Appendix D: ln(e^a + e^b - e^c) of overlapping sets and what they share. Written so
// it leaves the range of float32 at logits that the disjoint merge handles.
TEST(FocusParts, SubtractingTheOverlapInLogSpaceFailsWhereADisjointMergeDoesNot) {
  const AttentionSpec spec =
      focus_spec(Gate::hard, {.groups = 4, .top_k = 1, .window = 8, .sinks = 0});
  AttentionInputs in = random_inputs(spec, 1, 64);
  in.q = in.q * 60.0;
  AttentionContext with_lse;
  with_lse.want_lse = true;
  const at::Tensor truth =
      reference_attention(spec, in.q, in.k, in.v, in.tensors, with_lse).lse_bht;
  const AttentionInputs low = in.to(at::kFloat);
  const auto [shared, local] = pair_sets(spec, in);
  AttentionSpec plain = spec;
  plain.focus = {};
  const auto part = [&](const at::Tensor& pairs) {
    return attend_pairs(plain, low.q, low.k, low.v, {}, pairs);
  };
  const at::Tensor a = part(shared).lse_bht, b = part(local).lse_bht,
                   c = part(shared.logical_and(local)).lse_bht;
  const at::Tensor subtracted = (a.exp() + b.exp() - c.exp()).log();
  EXPECT_FALSE(at::isfinite(subtracted).all().item<bool>());
  const AttentionPart disjoint =
      merge_parts(part(shared), part(local.logical_and(shared.logical_not())));
  EXPECT_LT(relative_error(disjoint.lse_bht, truth), 1e-6);
}

// 11.4, 13.18.
TEST(PairsKept, OfIndependentChoicesAreTheTablesValues) {
  EXPECT_NEAR(expected_pairs(4, 1), 0.25, 1e-12);
  EXPECT_NEAR(expected_pairs(4, 2), 0.8333, 1e-4);
  EXPECT_EQ(expected_pairs(4, 3), 1.0);
  EXPECT_NEAR(expected_pairs(8, 2), 0.4643, 1e-4);
  EXPECT_NEAR(expected_pairs(8, 4), 0.9857, 1e-4);
  for (const auto& [groups, k] : {std::pair<int64_t, int64_t>{4, 1}, {4, 2}, {8, 2}, {8, 3}}) {
    const FocusSpec spec{.gate = Gate::hard, .groups = groups, .top_k = k, .window = 1, .sinks = 0};
    const PairsKept kept = pairs_kept(spec, random_members({2, 700}, groups, k, 3), {});
    EXPECT_NEAR(kept.distant, expected_pairs(groups, k), 0.02) << groups << " " << k;
  }
}

TEST(PairsKept, CountsEveryPairOfTheMaskOnce) {
  const AttentionSpec spec = focus_spec(Gate::hard, {.groups = 6, .window = 5, .sinks = 2});
  const AttentionInputs in = random_inputs(spec, 2, 300);
  for (const AttentionContext& context : {AttentionContext{}, packed_context({120, 180})}) {
    int64_t pairs = 0, kept = 0, distant = 0, distant_kept = 0;
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t i = 0; i < 300; ++i)
        for (int64_t j = 0; j <= i; ++j) {
          const bool packed = context.key_documents_bs.defined();
          const int64_t begin = packed && i >= 120 ? 120 : 0;
          if (j < begin) continue;
          const bool local = i - j < 5 || j - begin < 2;
          const bool meet = (in.tensors.members_bs[b][i].item<int64_t>() &
                             in.tensors.members_bs[b][j].item<int64_t>()) != 0;
          pairs += 1, kept += local || meet, distant += !local, distant_kept += !local && meet;
        }
    const PairsKept got = pairs_kept(spec.focus, in.tensors.members_bs, context);
    EXPECT_DOUBLE_EQ(got.all, static_cast<double>(kept) / static_cast<double>(pairs));
    EXPECT_DOUBLE_EQ(got.distant, static_cast<double>(distant_kept) / static_cast<double>(distant));
  }
}

// Table 8: each way of collapsing shows in its number.
TEST(FocusStatistics, ShowTheThreeWaysOfCollapsing) {
  const FocusSpec spec{.groups = 4, .width = 4};
  const FocusParameters healthy{{}, {}, at::eye(4, at::kDouble)};
  const at::Tensor z = at::eye(4, at::kDouble).repeat({25, 1}).unsqueeze(0);
  const auto of = [&](const FocusParameters& p, const at::Tensor& features) {
    return focus_statistics(p, features,
                            group_tokens(spec, focus_scores(spec, p, features), {}).groups_btk);
  };
  const FocusStatistics well = of(healthy, z);
  EXPECT_NEAR(well.centroid_cosine, 0.0, 1e-12);
  EXPECT_NEAR(well.hidden_cosine, 1.0, 1e-12);
  EXPECT_NEAR(well.effective_rank, 4.0, 1e-9);
  EXPECT_NEAR(well.largest_hard, 0.25, 1e-12);
  EXPECT_NEAR(well.hard_entropy, 1.0, 1e-12);
  EXPECT_GT(well.confidence, 0.99);
  const FocusParameters drifted{{}, {}, at::eye(4, at::kDouble) * 0.01 + 1.0};  // A
  EXPECT_GT(of(drifted, z).centroid_cosine, 0.99);
  const at::Tensor shifted = z * 0.1 + healthy.centroids_kg[2];  // B
  EXPECT_NEAR(of(healthy, shifted).largest_hard, 1.0, 1e-12);
  EXPECT_GT(of(healthy, shifted).hidden_cosine, 0.98);
  EXPECT_LT(of(healthy, shifted).hard_entropy, 1e-9);
  const at::Tensor flat = z.narrow(2, 0, 1) * at::ones({4}, at::kDouble);  // C
  EXPECT_NEAR(of(healthy, flat).effective_rank, 1.0, 1e-6);
}

TEST(Focus, RefusesImpossibleSettingsAndShapesByName) {
  const auto refused = [](const FocusSpec& focus, const std::vector<std::string>& parts) {
    AttentionSpec spec = small_spec();
    spec.focus = focus;
    return throws_naming<ConfigError>([&] { spec.check(); }, parts);
  };
  EXPECT_TRUE(refused({.groups = 65}, {"focus.groups", "64", "65"}));
  EXPECT_TRUE(refused({.groups = 0}, {"focus.groups"}));
  EXPECT_TRUE(refused({.groups = 4, .top_k = 5}, {"focus.top_k", "4", "5"}));
  EXPECT_TRUE(refused({.window = 0}, {"focus.window", "0"}));
  EXPECT_TRUE(refused({.sinks = -1}, {"focus.sinks"}));
  EXPECT_TRUE(refused({.width = 0}, {"focus.width"}));
  EXPECT_TRUE(refused({.temperature = 0.0}, {"focus.temperature"}));
  EXPECT_TRUE(refused({.strength = -1.0}, {"focus.strength"}));
  EXPECT_TRUE(refused({.strength = 1e5}, {"focus.strength", "10000"}));
  EXPECT_TRUE(refused({.threshold = 2.0}, {"focus.threshold"}));
  EXPECT_TRUE(refused({.epsilon = 0.0}, {"focus.epsilon"}));
  EXPECT_TRUE(refused({.rounds = 0}, {"focus.rounds"}));
  EXPECT_TRUE(refused({.chunk = 0}, {"focus.chunk"}));
  AttentionSpec spec = focus_spec(Gate::log);
  spec.mask.causal = false;
  EXPECT_ERROR(UnsupportedError, spec.check(), "focus", "causal");
  spec = focus_spec(Gate::log);
  spec.mask = {.sparsity = MaskRule::Sparsity::fixed, .block = 4};
  EXPECT_ERROR(UnsupportedError, spec.check(), "focus", "fixed");
  spec = focus_spec(Gate::hard);
  AttentionInputs in = random_inputs(spec, 1, 6);
  in.tensors.members_bs = in.tensors.members_bs.to(at::kDouble);
  EXPECT_ERROR(ShapeError, output(spec, in), "members", "int64");
  in.tensors.members_bs = at::Tensor();
  EXPECT_ERROR(ShapeError, output(spec, in), "members", "hard");
  const FocusParameters p = parameters(4, 5, 6);
  EXPECT_ERROR(ShapeError, focus_features(p, at::zeros({1, 2, 7}, at::kDouble)), "7");
  EXPECT_ERROR(ShapeError, focus_scores({.groups = 8}, p, at::zeros({1, 2, 5}, at::kDouble)),
               "centroids", "8");
}

TEST(Focus, FusedPathSaysWhichGateHasNoKernel) {
  FocusSpec many;
  many.groups = 22, many.window = 4;
  const AttentionSpec spec = focus_spec(Gate::straight_through, many);
  const AttentionInputs in = random_inputs(spec, 1, 20).to(at::kFloat);
  EXPECT_ERROR(UnsupportedError, output(spec, in, {}, Path::fused), "focus straight_through", "21",
               "22");
}

}  // namespace
}  // namespace fovea::focus_test
