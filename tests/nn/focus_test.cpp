// Focus in the decoder: parameters, state that observe() alone changes, calibration, the losses
// that need no backward pass through the base, ways against collapse (spec 11, Table 8).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <bit>
#include <map>

#include "fovea/attention/mechanisms/focus.h"
#include "fovea/attention/mechanisms/sinkhorn.h"
#include "fovea/nn/transformer.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"

namespace fovea::focus_test {
namespace {

using namespace fovea::testing;
using Gate = FocusSpec::Gate;

constexpr int64_t kVocab = 50;

ModelConfig focused(Gate gate = Gate::log) {
  ModelConfig c;
  c.layers = 2, c.width = 24, c.heads = 4, c.kv_heads = 2, c.ffn_width = 40, c.context = 64;
  c.attention.spec.focus = {
      .gate = gate, .groups = 4, .top_k = 1, .window = 4, .sinks = 1, .width = 6};
  return c;
}

ModelInput batch(uint64_t seed, int64_t rows = 2, int64_t length = 40) {
  ModelInput input;
  input.tokens_bt = at::randint(0, kVocab, {rows, length}, at::detail::createCPUGenerator(seed),
                                at::TensorOptions(at::kLong));
  input.training = true;
  return input;
}

at::Tensor targets_of(const ModelInput& input) { return at::roll(input.tokens_bt, -1, 1); }

const at::Tensor& value(const Transformer& model, const std::string& rest, int64_t layer = 1) {
  return model.parameters()
      .find(fmt::format("model.layers.{}.self_attn.focus.{}", layer, rest))
      ->value;
}

std::map<std::string, at::Tensor> values(const Transformer& model) {
  std::map<std::string, at::Tensor> all;
  for (const Parameter& p : model.parameters().all()) all[p.name] = p.value.detach().clone();
  return all;
}

ForwardInfo forward(const Transformer& model, const ModelInput& input) {
  ForwardInfo info;
  model.hidden(input, &info);
  return info;
}

/// `batch` potentials of layer 1.
at::Tensor potentials_of(const Transformer& model, const ForwardInfo& info) {
  const int64_t rounds = model.config().layer_attention(1).focus.rounds;
  return sinkhorn_potentials(info.focus[1].scores_nk, rounds);
}

// 11.1: L (d_g D + K d_g) parameters: GPT-2 with K = 4 and d_g = 16.
TEST(FocusModel, AddsAsManyParametersAsThePaperCounts) {
  ModelConfig c;
  c.layers = 12, c.width = 768, c.heads = 12;
  const int64_t plain = parameter_count(c.resolved(kVocab));
  for (const auto& [width, groups, count] : {std::tuple<int64_t, int64_t, int64_t>{16, 4, 148224},
                                             {32, 4, 296448},
                                             {128, 4, 1185792},
                                             {768, 4, 7114752}}) {
    c.attention.spec.focus = {.gate = Gate::log, .groups = groups, .width = width};
    EXPECT_EQ(parameter_count(c.resolved(kVocab)) - plain, count);
  }
}

TEST(FocusModel, CentroidsStartAsDirections) {
  const Transformer model(focused().resolved(kVocab), 3);
  const at::Tensor c = value(model, "centroids");
  EXPECT_LT((c.square().sum(-1) - 1.0).abs().max().item<double>(), 1e-5);
  EXPECT_GT((c - value(model, "centroids", 0)).abs().max().item<double>(), 0.1);
}

// U-14: h is the input of the attention, after the norm.
TEST(FocusModel, GroupsAreOfTheNormedInputOfTheAttention) {
  Transformer model(focused().resolved(kVocab), 3);
  const at::NoGradGuard no_grad;
  at::Tensor gain = model.parameters().find("model.layers.0.input_layernorm.weight")->value;
  gain.copy_(at::linspace(0.5, 2.0, 24));
  ModelInput input = batch(1, 1);
  input.training = false;
  const at::Tensor x =
      at::embedding(model.parameters().find("model.embed_tokens.weight")->value, input.tokens_bt);
  const at::Tensor h = x * at::rsqrt(x.square().mean(-1, true) + 1e-5) * gain;
  const LayerFocus focus{.weight = value(model, "weight", 0),
                         .centroids = value(model, "centroids", 0),
                         .mean = value(model, "mean", 0),
                         .scale = value(model, "scale", 0)};
  const at::Tensor z = focus_features(focus.parameters(), h);
  EXPECT_LT((model.look(input)[0].groups.features_btg - z).abs().max().item<double>(), 1e-5);
}

// Seam 2: a forward pass changes nothing; observe() changes state alone.
TEST(FocusModel, ForwardIsPureAndObserveChangesStateAlone) {
  Transformer model(focused().resolved(kVocab), 3);
  const auto start = values(model);
  std::vector<ForwardInfo> infos{forward(model, batch(1)), forward(model, batch(2))};
  for (const auto& [name, x] : values(model)) EXPECT_TRUE(x.equal(start.at(name))) << name;
  model.observe(infos, 0.9);
  for (const auto& [name, x] : values(model)) {
    const bool state = name.ends_with("potentials") || name.ends_with("updates");
    EXPECT_EQ(x.equal(start.at(name)), !state) << name;
  }
}

// 11.3: b is the mean of the micro-batches' centred potentials; the first update copies.
TEST(FocusModel, PotentialsAreAnAverageOverStepsThatTheFirstStepStarts) {
  Transformer model(focused().resolved(kVocab), 3);
  std::vector<ForwardInfo> first{forward(model, batch(1)), forward(model, batch(2))};
  model.observe(first, 0.75);
  const at::Tensor mean = (potentials_of(model, first[0]) + potentials_of(model, first[1])) / 2.0;
  EXPECT_LT((value(model, "potentials") - mean).abs().max().item<double>(), 1e-6);
  EXPECT_NEAR(mean.mean().item<double>(), 0.0, 1e-5);
  std::vector<ForwardInfo> second{forward(model, batch(3))};
  model.observe(second, 0.75);
  const at::Tensor expected = 0.75 * mean + 0.25 * potentials_of(model, second[0]);
  EXPECT_LT((value(model, "potentials") - expected).abs().max().item<double>(), 1e-6);
  EXPECT_EQ(value(model, "updates").item<float>(), 2.0f);
}

// 11.7.
TEST(FocusModel, DecayOfThePotentialsFollowsTheNumberOfSteps) {
  EXPECT_DOUBLE_EQ(potential_decay(30), 0.8);
  EXPECT_DOUBLE_EQ(potential_decay(600), 0.95);
  EXPECT_DOUBLE_EQ(potential_decay(100000), 0.99);
  EXPECT_DOUBLE_EQ(potential_decay(0), 0.99);
}

// 11.7, U-24: after calibration the input has mean 0 and size 1, whatever it was before.
TEST(FocusModel, CalibrationStandardisesTheInputOfEveryLayer) {
  Transformer model(focused().resolved(kVocab), 3);
  {
    const at::NoGradGuard no_grad;
    model.parameters().find("model.layers.1.input_layernorm.weight")->value.mul_(0.05);
  }
  const auto spread = [&] {
    return potentials_of(model, forward(model, batch(1))).abs().max().item<double>();
  };
  const double before = spread();
  const std::vector<ModelInput> batches{batch(1), batch(2)};
  model.calibrate(batches);
  EXPECT_GT(spread(), 4.0 * before);
  EXPECT_NEAR(value(model, "scale").item<double>(), 20.0, 4.0);
}

// 11.7: L = -mean ln sum_j P_ij m_ij; neutral groups keep everything; gradients reach groups alone.
TEST(FocusModel, KeptMassLossIsTheLogOfTheKeptMassAndTrainsGroupsAlone) {
  Transformer model(focused().resolved(kVocab), 3);
  model.parameters().train_only(
      [](const Parameter& p) { return p.name.find(".focus.") != std::string::npos; });
  const ModelInput input = batch(1, 1, 30);
  const at::Tensor targets = targets_of(input);
  ForwardInfo info;
  const LossResult loss = model.objective("kept_mass", input, targets, 0.0, &info);
  double expected = 0.0;
  for (int64_t layer = 0; layer < 2; ++layer) {
    model.compute().focus = FocusMode::off;
    const at::Tensor full = model.attention_maps(input)[static_cast<size_t>(layer)].to(at::kDouble);
    ModelConfig one = focused();  // the layer's input is that of the model without Focus
    one.attention.focus.layers = {layer};
    const at::Tensor gated = Transformer(one.resolved(kVocab), 3)
                                 .attention_maps(input)[static_cast<size_t>(layer)]
                                 .to(at::kDouble);
    // map of the gated layer is P m / sum(P m): at the diagonal m = 1, so sum(P m) = P_ii / map_ii.
    const at::Tensor kept = full.diagonal(0, 1, 2) / gated.diagonal(0, 1, 2);
    expected -= kept.log().mean().item<double>();
  }
  EXPECT_NEAR(loss.loss.item<double>(), expected, 1e-4);
  EXPECT_EQ(loss.targets.item<int64_t>(), 30);
  EXPECT_TRUE(info.focus[0].defined() && info.focus[1].defined());
  loss.loss.backward();
  for (const Parameter& p : model.parameters().all()) {
    const bool learns = p.name.ends_with("focus.weight") || p.name.ends_with("focus.centroids");
    EXPECT_EQ(p.value.grad().defined(), learns) << p.name;
    if (learns) {
      EXPECT_GT(p.value.grad().abs().max().item<double>(), 0.0) << p.name;
    }
  }
}

// Widths with kernels: soft gates train and are evaluated by the fused path, with the reference's
// numbers and gradients; hard masks are not part of it.
TEST(FocusModel, SoftGatesRunOnTheFusedPathWithTheGradientsOfTheReference) {
  for (const Gate gate : {Gate::log, Gate::mul, Gate::identity, Gate::logsig}) {
    ModelConfig config = focused(gate);
    config.width = 32;  // heads of 8
    const ModelInput input = batch(1);
    std::vector<at::Tensor> losses, slopes;
    for (const Path path : {Path::automatic, Path::reference}) {
      Transformer model(config.resolved(kVocab), 3);
      model.compute().attention_path = path;
      EXPECT_EQ(forward(model, input).path.name,
                path == Path::automatic ? PathName::fused : PathName::reference);
      const at::Tensor loss = model.loss(input, targets_of(input)).loss;
      loss.backward();
      losses.push_back(loss.detach());
      slopes.push_back(value(model, "weight").grad());
    }
    EXPECT_NEAR(losses[0].item<double>(), losses[1].item<double>(), 1e-5);
    EXPECT_GT(slopes[1].abs().max().item<double>(), 0.0);
    EXPECT_LT(relative_error(slopes[0], slopes[1]), 1e-3) << enum_name(gate);
  }
}

TEST(FocusModel, AnObjectiveThatNoMechanismBringsIsRefusedByName) {
  const Transformer model(focused().resolved(kVocab), 3);
  const ModelInput input = batch(1);
  EXPECT_ERROR(UnsupportedError, model.objective("sharpness", input, targets_of(input)),
               "sharpness");
}

TEST(FocusModel, KeptMassFallsWhenGroupsLearn) {
  Transformer model(focused().resolved(kVocab), 3);
  model.parameters().train_only(
      [](const Parameter& p) { return p.name.find(".focus.") != std::string::npos; });
  const ModelInput input = batch(1);
  const auto loss = [&] { return model.objective("kept_mass", input, targets_of(input)); };
  const double before = loss().loss.item<double>();
  for (int step = 0; step < 10; ++step) {
    loss().loss.backward();
    const at::NoGradGuard no_grad;
    for (Parameter& p : model.parameters().all()) {
      if (!p.value.grad().defined()) continue;
      p.value.sub_(p.value.grad(), 0.05);
      p.value.mutable_grad().reset();
    }
  }
  EXPECT_LT(loss().loss.item<double>(), before);
}

// 11.7: KL is 0 where nothing is pruned, positive elsewhere, and its gradient reaches the groups.
TEST(FocusModel, DistillationComparesTheHardModelWithTheFullOne) {
  ModelConfig near = focused();
  near.attention.spec.focus.window = 64;
  const ModelInput input = batch(1);
  const Transformer same(near.resolved(kVocab), 3);
  EXPECT_NEAR(same.objective("distillation", input, targets_of(input)).loss.item<double>(), 0.0,
              1e-6);
  Transformer model(focused().resolved(kVocab), 3);
  model.parameters().train_only(
      [](const Parameter& p) { return p.name.find(".focus.") != std::string::npos; });
  at::Tensor targets = targets_of(input);
  targets.narrow(1, 0, 10).fill_(-1);
  const LossResult loss = model.objective("distillation", input, targets);
  EXPECT_EQ(loss.targets.item<int64_t>(), 60);
  model.compute().focus = FocusMode::off;
  const at::Tensor full = at::log_softmax(model.logits(model.hidden(input)), -1);
  model.compute().focus = FocusMode::straight_through;
  const at::Tensor hard = at::log_softmax(model.logits(model.hidden(input)), -1);
  const at::Tensor kl = (full.exp() * (full - hard)).sum(-1).narrow(1, 10, 30);
  EXPECT_NEAR(loss.loss.item<double>(), kl.mean().item<double>(), 1e-5);
  EXPECT_GT(loss.loss.item<double>(), 0.0);
  loss.loss.backward();
  const at::Tensor gradient = value(model, "weight").grad().clone();
  for (Parameter& p : model.parameters().all()) p.value.mutable_grad().reset();
  kl.mean().backward();
  EXPECT_LT((gradient - value(model, "weight").grad()).abs().max().item<double>(), 1e-5);
  EXPECT_GT(gradient.abs().max().item<double>(), 0.0);
}

TEST(FocusModel, ModesPruneKeepOrIgnoreTheGroups) {
  Transformer model(focused().resolved(kVocab), 3);
  const ModelInput input = batch(1);
  const auto states = [&](FocusMode mode) {
    model.compute().focus = mode;
    return model.hidden(input).detach();
  };
  const at::Tensor soft = states(FocusMode::configured), hard = states(FocusMode::hard),
                   through = states(FocusMode::straight_through), off = states(FocusMode::off);
  EXPECT_LT((hard - through).abs().max().item<double>(), 1e-3);
  EXPECT_GT((soft - hard).abs().max().item<double>(), 1e-2);
  EXPECT_GT((off - hard).abs().max().item<double>(), 1e-2);
  ModelConfig plain = focused();
  plain.attention.focus = {}, plain.attention.spec.focus = {};
  plain.attention.spec.focus = {};
  EXPECT_TRUE(Transformer(plain.resolved(kVocab), 3).hidden(input).detach().equal(off));
  model.compute().focus = FocusMode::hard;
  const PairsKept kept = forward(model, input).focus[0].pairs;
  EXPECT_GT(kept.all, kept.distant);
  EXPECT_LT(kept.all, 1.0);
}

// U-26: random groups keep the pairs of independent choices; fewer groups a token keep fewer.
TEST(FocusModel, RandomGroupsAndOtherTopKsChangeThePairsKept) {
  Transformer model(focused().resolved(kVocab), 3);
  const ModelInput input = batch(1);
  const auto kept = [&](FocusMode mode, int64_t top_k) {
    model.compute().focus = mode;
    model.compute().focus_change.top_k = top_k;
    return forward(model, input).focus[0].pairs.distant;
  };
  EXPECT_NEAR(kept(FocusMode::random, 0), expected_pairs(4, 1), 0.06);
  EXPECT_NEAR(kept(FocusMode::random, 2), expected_pairs(4, 2), 0.06);
  EXPECT_LT(kept(FocusMode::hard, 1), kept(FocusMode::hard, 2));
  EXPECT_EQ(kept(FocusMode::hard, 3), 1.0);
  model.compute().focus = FocusMode::random;
  DecodeState state = model.make_decode_state(1, 4);
  EXPECT_ERROR(UnsupportedError,
               model.decode(input.tokens_bt.narrow(0, 0, 1).narrow(1, 0, 2), state), "random");
}

// Groups by a hash keep pairs of the same token, and as many others as random ones.
TEST(FocusModel, HashGroupsFollowTheTokenAndTheLayer) {
  const at::Tensor tokens = at::arange(4000).remainder(1000).view({4, 1000});
  for (const int64_t k : {1, 2}) {
    const at::Tensor members = hashed_members(tokens, 8, k, 1);
    EXPECT_TRUE(members[0].equal(members[3]));
    EXPECT_FALSE(members.equal(hashed_members(tokens, 8, k, 2)));
    const at::Tensor share = members[0].unsqueeze(0).bitwise_and(members[0].unsqueeze(1)).ne(0);
    EXPECT_NEAR(share.to(at::kDouble).mean().item<double>(), expected_pairs(8, k), 0.02);
    int64_t bits = 0;
    for (int64_t n = 0; n < 1000; ++n)
      bits += std::popcount(static_cast<uint64_t>(members[0][n].item<int64_t>()));
    EXPECT_EQ(bits, 1000 * k);
  }
  Transformer model(focused().resolved(kVocab), 3);
  const ModelInput input = batch(1);
  model.compute().focus = FocusMode::hash;
  const PairsKept kept = forward(model, input).focus[0].pairs;
  EXPECT_GT(kept.distant, 0.0);
  EXPECT_LT(kept.all, 1.0);
  DecodeState state = model.make_decode_state(1, 4);
  EXPECT_ERROR(UnsupportedError,
               model.decode(input.tokens_bt.narrow(0, 0, 1).narrow(1, 0, 2), state), "hash");
}

// Table 8: stop-gradient on inputs closes the way into the residual stream.
TEST(FocusModel, StopGradientKeepsTheGateOutOfTheResidualStream) {
  const auto gradient = [&](bool stop) {
    ModelConfig c = focused();
    c.attention.focus.stop_gradient = stop;
    c.attention.focus.entropy_weight = 1.0;
    Transformer model(c.resolved(kVocab), 3);
    ModelConfig without = c;
    without.attention.focus.entropy_weight = 0.0;
    Transformer base(without.resolved(kVocab), 3);
    const ModelInput input = batch(1);
    model.loss(input, targets_of(input)).loss.backward();
    base.loss(input, targets_of(input)).loss.backward();
    const char* name = "model.embed_tokens.weight";
    return (model.parameters().find(name)->value.grad() -
            base.parameters().find(name)->value.grad())
        .abs()
        .max()
        .item<double>();
  };
  EXPECT_GT(gradient(false), 1e-6);
  EXPECT_EQ(gradient(true), 0.0);
}

// Table 8: entropy and balance losses.
TEST(FocusModel, EntropyAndBalanceLossesAreAddedInTraining) {
  const at::Tensor sure = at::eye(4), spread = at::full({4, 4}, 0.25);
  FocusSettings settings;
  EXPECT_FALSE(group_losses(settings, sure.unsqueeze(0)).defined());
  settings.entropy_weight = 2.0;
  EXPECT_NEAR(group_losses(settings, sure.unsqueeze(0)).item<double>(), 0.0, 1e-5);
  EXPECT_NEAR(group_losses(settings, spread.unsqueeze(0)).item<double>(), 2.0 * std::log(4.0),
              1e-5);
  settings = {};
  settings.balance_weight = 3.0;
  EXPECT_NEAR(group_losses(settings, sure.unsqueeze(0)).item<double>(), 0.0, 1e-5);
  const at::Tensor one = sure.narrow(0, 2, 1).expand({4, 4});
  EXPECT_NEAR(group_losses(settings, one.unsqueeze(0)).item<double>(), 3.0 * std::log(4.0), 1e-4);
  ModelConfig c = focused();
  c.attention.focus.balance_weight = 1.0;
  Transformer model(c.resolved(kVocab), 3);
  model.compute().checkpoint_layers = true;
  const ModelInput input = batch(1);
  EXPECT_ERROR(UnsupportedError, model.loss(input, targets_of(input)), "balance_weight",
               "gradient_checkpointing");
}

// Table 8: EMA centroids move to the mean of their tokens; reclustering finds the tokens' clusters.
TEST(FocusModel, CentroidsFollowTheirTokensOrRestartWhereAsked) {
  const AttentionSpec spec = focused().resolved(kVocab).layer_attention(0);
  const auto fresh = [&](const FocusSettings& settings) {
    ParameterRegistry registry(1);
    return add_focus(registry, spec, settings, 0, 24);
  };
  FocusObservation seen;
  seen.scores_nk = at::zeros({80, 4});
  const at::Tensor target = at::eye(6).narrow(0, 0, 4);
  seen.sums_kg = target * 10.0;
  seen.masses_k = at::full({4}, 5.0);
  FocusSettings settings;
  settings.centroid_decay = 0.75;
  LayerFocus focus = fresh(settings);
  const at::Tensor before = focus.centroids.detach().clone();
  EXPECT_FALSE(focus.centroids.requires_grad());
  observe_layer(spec, settings, focus, {&seen, 1}, 0.9, 0.0);
  EXPECT_LT((focus.centroids - (0.75 * before + 0.25 * target)).abs().max().item<double>(), 1e-5);
  settings = {};
  settings.recluster_interval = 2;
  focus = fresh(settings);
  seen.sample_ng = target.repeat({20, 1}) + 0.01 * at::sin(at::arange(480)).view({80, 6});
  observe_layer(spec, settings, focus, {&seen, 1}, 0.9, 0.0);
  const at::Tensor untouched = focus.centroids.detach().clone();
  observe_layer(spec, settings, focus, {&seen, 1}, 0.9, 0.0);
  EXPECT_FALSE(focus.centroids.detach().equal(untouched));
  EXPECT_GT(
      std::get<0>(at::matmul(focus.centroids.detach(), target.t()).max(0)).min().item<double>(),
      0.99);  // every cluster has its centroid
}

// 11.2: lambda of `logsig` moves to its last value by itself, evenly in ln lambda; it is state.
TEST(FocusModel, TheStrengthOfLogsigIsAnnealedOnRequest) {
  ModelConfig c = focused(Gate::logsig);
  c.attention.spec.focus.strength = 2.0;
  c.attention.focus.final_strength = 50.0;
  Transformer model(c.resolved(kVocab), 3);
  const auto strength = [&] { return std::exp(value(model, "log_strength").item<double>()); };
  EXPECT_TRUE(model.parameters().find("model.layers.1.self_attn.focus.log_strength")->state);
  EXPECT_NEAR(strength(), 2.0, 1e-5);
  const std::vector<ForwardInfo> infos{forward(model, batch(1))};
  model.observe(infos, 0.9, 0.5);
  EXPECT_NEAR(strength(), 10.0, 1e-4);
  const at::Tensor sharper = model.hidden(batch(1));
  model.observe(infos, 0.9, 1.0);
  EXPECT_NEAR(strength(), 50.0, 1e-3);
  EXPECT_FALSE(model.hidden(batch(1)).equal(sharper));
  c.attention.spec.focus.gate = Gate::log;
  EXPECT_ERROR(ConfigError, c.resolved(kVocab), "final_strength", "logsig");
}

// A learned strength that grows without end acts as the largest one.
TEST(FocusModel, TheLearnedStrengthOfLogsigIsBounded) {
  Transformer model(focused(Gate::logsig).resolved(kVocab), 3);
  const at::NoGradGuard no_gradient;
  value(model, "log_strength").fill_(std::log(kMostFocusStrength));
  const at::Tensor largest = model.hidden(batch(1));
  value(model, "log_strength").fill_(1e6);
  EXPECT_TRUE(model.hidden(batch(1)).equal(largest));
  EXPECT_TRUE(largest.isfinite().all().item<bool>());
}

// U-22: in windowed layers on request alone; 11.2: the mask is then that of both.
TEST(FocusModel, ActsInWindowedLayersOnRequestAlone) {
  ModelConfig c = focused();
  c.attention.spec.mask.window = 16;
  EXPECT_ERROR(ConfigError, c.resolved(kVocab), "windowed_layers", "window");
  c.attention.focus.windowed_layers = true;
  EXPECT_TRUE(c.resolved(kVocab).layer_attention(0).focus.active());
  c.attention.focus.layers = {1};
  EXPECT_FALSE(c.resolved(kVocab).layer_attention(0).focus.active());
  c.attention.focus.layers = {2};
  EXPECT_ERROR(ConfigError, c.resolved(kVocab), "focus.layers", "2");
}

TEST(FocusModel, LookingShowsMapsGroupsAndStatisticsOfEveryLayer) {
  Transformer model(focused(Gate::log).resolved(kVocab), 3);
  const ModelInput input = batch(1, 1, 20);
  const std::vector<LayerView> views = model.look(input);
  ASSERT_EQ(views.size(), 2u);
  for (int64_t layer = 0; layer < 2; ++layer) {
    const LayerView& view = views[static_cast<size_t>(layer)];
    EXPECT_LT((view.weights_hqs - model.attention_maps(input)[static_cast<size_t>(layer)])
                  .abs()
                  .max()
                  .item<double>(),
              1e-6);
    EXPECT_EQ(view.stats.entropy_h.size(0), 4);
    EXPECT_EQ(view.groups.groups.groups_btk.sizes(), at::IntArrayRef({1, 20, 4}));
    EXPECT_EQ(view.groups.groups.members_bt.sizes(), at::IntArrayRef({1, 20}));
  }
  EXPECT_ERROR(ShapeError, model.look(batch(1)), "one text");
}

TEST(FocusModel, RefusesImpossibleSettingsByKey) {
  const auto refused = [](const std::function<void(FocusSettings&)>& change, const char* key,
                          int64_t top_k = 1) {
    ModelConfig c = focused();
    c.attention.spec.focus.top_k = top_k;
    change(c.attention.focus);
    return throws_naming<ConfigError>([&] { (void)c.resolved(kVocab); }, {key});
  };
  EXPECT_TRUE(refused([](FocusSettings& f) { f.ema_decay = 1.0; }, "ema_decay"));
  EXPECT_TRUE(refused([](FocusSettings& f) { f.centroid_decay = -0.1; }, "centroid_decay"));
  EXPECT_TRUE(refused([](FocusSettings& f) { f.entropy_weight = -1.0; }, "entropy_weight"));
  EXPECT_TRUE(refused([](FocusSettings& f) { f.balance_weight = -1.0; }, "balance_weight"));
  EXPECT_TRUE(refused([](FocusSettings& f) { f.recluster_interval = -1; }, "recluster_interval"));
  EXPECT_TRUE(refused([](FocusSettings&) {}, "top_k", 9));
  ModelConfig plain = focused();
  plain.attention.focus = {}, plain.attention.spec.focus = {};
  const Transformer model(plain.resolved(kVocab), 3);
  const ModelInput input = batch(1);
  EXPECT_ERROR(UnsupportedError, model.objective("kept_mass", input, targets_of(input)), "focus");
  EXPECT_ERROR(UnsupportedError, model.objective("distillation", input, targets_of(input)),
               "focus");
}

}  // namespace
}  // namespace fovea::focus_test
