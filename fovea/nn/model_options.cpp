// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/model_options.h"

#include <algorithm>
#include <array>

namespace fovea {
namespace {

constexpr std::array<std::string_view, 5> kNorms{"rms", "layer", "layer_no_bias", "rms_weightless",
                                                 "layer_weightless"};
constexpr std::array<std::string_view, 6> kBlocks{"pre",    "post",     "sandwich",
                                                  "output", "parallel", "parallel_two"};
constexpr std::array<std::string_view, 11> kFeedForwards{
    "relu", "relu_squared", "gelu",  "gelu_tanh",  "silu",  "elu",
    "glu",  "reglu",        "geglu", "geglu_tanh", "swiglu"};
constexpr std::array<std::string_view, 6> kQkNorms{"none",       "head_rms", "full_rms",
                                                   "head_layer", "l2",       "weightless"};
constexpr std::array<std::string_view, 4> kPositions{"rope", "none", "sinusoidal", "learned"};
constexpr std::array<std::string_view, 5> kInits{"width", "fan_in", "torch", "normal", "gpt2"};

}  // namespace

std::span<const std::string_view> enum_names(NormKind) { return kNorms; }
std::span<const std::string_view> enum_names(BlockLayout) { return kBlocks; }
std::span<const std::string_view> enum_names(FeedForward) { return kFeedForwards; }
std::span<const std::string_view> enum_names(QkNorm) { return kQkNorms; }
std::span<const std::string_view> enum_names(Positions) { return kPositions; }
std::span<const std::string_view> enum_names(InitSpec::Kind) { return kInits; }

bool gated(FeedForward kind) { return kind >= FeedForward::glu; }

void InitSpec::describe(FieldVisitor& v) {
  v.choice({"kind", "start of the matrices: 1/sqrt(width), 1/sqrt(inputs), torch's, or fixed"},
           kind);
  v.real({"std", "standard deviation of normal and gpt2", ranges::kPositive}, std);
}

void BiasKeys::describe(FieldVisitor& v) {
  v.boolean({"qkv", "on the projections to queries, keys and values"}, qkv);
  v.boolean({"output", "on attention's output projection"}, output);
  v.boolean({"feed_forward", "on the feed-forward's matrices"}, feed_forward);
}

bool FullLayers::contains(int64_t layer) const {
  return (every > 0 && (layer + 1) % every == 0) ||
         std::ranges::find(layers, layer) != layers.end();
}

void FullLayers::describe(FieldVisitor& v) {
  v.integer({"every", "n: every n-th layer sees everything; 0 = none by rule", {0, 1024}}, every);
  v.integers({"layers", "further layers that do, counted from 0", ranges::kLayerIndices}, layers);
  v.boolean({"positions", "false: these layers have no RoPE (NoPE, spec 6.5)"}, positions);
}

}  // namespace fovea
