// The CUDA attention kernels, emulated on the host, against the formulas in float64: index maps,
// swizzles, fragments, masks, and the host side from the contract's structs to launches.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "fovea/kernels/cuda/attention/shapes.h"
#include "tests/support/cuda/emulated_machine.h"
#include "tests/support/expect_error.h"
#include "tests/support/pointwise_truth.h"

namespace fovea::cuda_attention_test {
namespace {

using namespace fovea::testing;
PointwiseSettings settings(kernels::AttentionSizes sizes) {
  PointwiseSettings s{.sizes = sizes};
  s.scale = 0.125;
  s.backend = &emulated_backend();
  return s;
}

// By both generations of kernels.
void expect_truth_everywhere(const PointwiseSettings& s, const std::string& what) {
  for (const auto& [machine, name] : {std::pair{kHopper, "wgmma"}, {kAmpere, "mma"}}) {
    const On on(machine);
    expect_truth<BFloat16>(s, what + " by " + name);
  }
}

TEST(CudaAttention, CausalTextsOfOddLengthAndSharedKeyHeads) {
  expect_truth_everywhere(settings({1, 2, 1, 197, 197, 64, 64}), "causal");
  PointwiseSettings wide = settings({1, 1, 1, 131, 131, 128, 128});
  wide.lse_gradient = false;
  expect_truth_everywhere(wide, "head size 128");
}

TEST(CudaAttention, QueriesThatAreTheLastOfTheKeys) {
  expect_truth_everywhere(settings({2, 1, 1, 65, 265, 64, 64}), "continued text");
}

TEST(CudaAttention, EveryPairWithoutACausalMask) {
  PointwiseSettings s = settings({1, 2, 1, 77, 201, 64, 64});
  s.mask.causal = false;
  expect_truth_everywhere(s, "full");
}

TEST(CudaAttention, ALearnedTemperatureAndItsGradient) {
  PointwiseSettings s = settings({2, 1, 1, 130, 130, 64, 64});
  s.tau = true;
  expect_truth_everywhere(s, "temperature");
}

TEST(CudaAttention, ASoftCapBelowAndAboveTheScores) {
  PointwiseSettings s = settings({1, 1, 1, 150, 150, 64, 64});
  for (const double cap : {0.7, 9.0}) {
    s.soft_cap = cap;
    expect_truth_everywhere(s, "soft-cap " + std::to_string(cap));
  }
}

TEST(CudaAttention, AlibiAndASinkLogit) {
  PointwiseSettings s = settings({1, 2, 1, 150, 150, 64, 64});
  s.alibi = s.sink = true;
  expect_truth_everywhere(s, "alibi, sink logit");
}

TEST(CudaAttention, WindowsWithAndWithoutSinks) {
  PointwiseSettings s = settings({1, 1, 1, 270, 270, 64, 64});
  for (const int64_t sinks : {0, 4}) {
    s.mask = {.window = 70, .sinks = sinks};
    expect_truth_everywhere(s, "window");
  }
}

TEST(CudaAttention, PackedDocuments) {
  PointwiseSettings s = settings({1, 1, 1, 280, 280, 64, 64});
  s.documents = 3;
  expect_truth_everywhere(s, "documents");
}

TEST(CudaAttention, AllSettingsTogether) {
  PointwiseSettings s = settings({1, 2, 1, 200, 200, 64, 64});
  s.tau = s.alibi = s.sink = true;
  s.soft_cap = 2.0, s.documents = 2, s.mask.window = 60, s.mask.sinks = 3;
  expect_truth_everywhere(s, "everything");
}

TEST(CudaAttention, CombinationsRunOnAKernelThatKnowsMore) {
  PointwiseSettings s = settings({1, 1, 1, 140, 140, 64, 64});
  s.documents = 2, s.tau = true;
  expect_truth_everywhere(s, "documents and temperature");
  s = settings({1, 1, 1, 140, 140, 64, 64});
  s.mask.window = 50, s.documents = 2;
  expect_truth_everywhere(s, "documents and window");
}

using Form = kernels::PairGate::Form;
kernels::PairGate gate(Form form, int64_t columns) {
  const float offset = form == Form::weight || form == Form::capped_weight ? 1e-6f : -0.7f;
  return {.form = form, .offset = offset, .window = 40, .sinks = 2, .columns = columns};
}

TEST(CudaAttention, SoftGatesOfFocusAndTheirGradients) {
  for (const Form form :
       {Form::weight, Form::capped_weight, Form::sigmoid_weight, Form::sigmoid_logit}) {
    PointwiseSettings s = settings({2, 1, 1, 140, 140, 64, 64});
    s.gate = gate(form, 8);
    expect_truth_everywhere(s, "gate " + std::to_string(static_cast<int>(form)));
  }
}

TEST(CudaAttention, SoftGatesBesideOtherSettings) {
  for (const Form form : {Form::weight, Form::sigmoid_weight, Form::sigmoid_logit}) {
    const std::string name = "gate " + std::to_string(static_cast<int>(form));
    PointwiseSettings s = settings({1, 2, 1, 150, 150, 64, 64});
    s.gate = gate(form, 11);
    s.tau = s.alibi = s.sink = true;
    s.documents = 2, s.mask.window = 60, s.mask.sinks = 3;
    expect_truth_everywhere(s, name + " and everything");
    s = settings({1, 1, 1, 70, 200, 64, 64});
    s.gate = gate(form, 3);
    s.gate.window = 1, s.gate.sinks = 0;
    expect_truth_everywhere(s, name + " of the last queries");
  }
}

TEST(CudaAttention, SoftGatesOfPackedDocumentsAndWideHeads) {
  PointwiseSettings s = settings({1, 1, 1, 200, 200, 128, 128});
  s.gate = gate(Form::weight, 5);
  s.documents = 2;
  const On on(kHopper);
  expect_truth<BFloat16>(s, "gate, documents, head size 128");
}

TEST(CudaAttention, ScratchGoesBack) {
  const int64_t before = scratch_in_use();
  PointwiseProblem<BFloat16>(settings({1, 1, 1, 40, 40, 64, 64})).by_kernels();
  EXPECT_EQ(scratch_in_use(), before);  // one document: nothing is kept on the device
}

kernels::AttentionForward<BFloat16> question(int64_t head_dim, int64_t value_dim) {
  return {.sizes = {1, 1, 1, 8, 8, head_dim, value_dim}};
}

TEST(CudaAttention, SaysWhyItDoesNotRunACall) {
  const kernels::Backend& backend = emulated_backend();
  EXPECT_EQ(backend.why_not(question(64, 64)), std::nullopt);
  EXPECT_EQ(backend.why_not(question(128, 128)), std::nullopt);
  EXPECT_NE(backend.why_not(question(96, 96))->find("64 and 128"), std::string::npos);
  EXPECT_NE(backend.why_not(question(64, 128))->find("one width"), std::string::npos);
  auto drops = question(64, 64);
  drops.rule.dropout = 0.1f;
  EXPECT_NE(backend.why_not(drops)->find("dropout"), std::string::npos);
  EXPECT_ERROR(UnsupportedError, backend.run(drops), "dropout");
  const float number = 0.0f;
  auto biased = question(64, 64);
  biased.rule.distance_bias = &number;
  EXPECT_NE(backend.why_not(biased)->find("T5"), std::string::npos);
  auto gated = question(64, 64);
  gated.rule.gate = gate(Form::weight, 17);
  EXPECT_NE(backend.why_not(gated)->find("16 columns"), std::string::npos);
  gated.rule.gate.columns = 16;
  EXPECT_EQ(backend.why_not(gated), std::nullopt);
  gated.rule.soft_cap = 1.0f;
  EXPECT_NE(backend.why_not(gated)->find("soft-cap"), std::string::npos);
  float stats = 0.0f;
  auto told = question(64, 64);
  told.stats = &stats;
  EXPECT_NE(backend.why_not(told)->find("telemetry"), std::string::npos);
  EXPECT_TRUE(backend.why_not(kernels::AttentionForward<float>{}).has_value());
  const On on({.major = 7, .minor = 5, .shared_bytes = 64 * 1024});
  EXPECT_NE(backend.why_not(question(64, 64))->find("7.5"), std::string::npos);
}

TEST(CudaAttention, ACardWithLittleSharedMemoryLacksTheWideKernels) {
  const kernels::Backend& backend = emulated_backend();
  const std::vector<TokenPlace> places{{0, 0}, {0, 1}};
  const Visits visits = make_visits({}, places, places, backend.tile_sizes());
  auto wide = question(128, 128);
  wide.sizes.queries = wide.sizes.keys = 2;
  wide.visits = {&visits, 1};
  const On on({.major = 8, .minor = 9, .shared_bytes = 99 * 1024});
  EXPECT_TRUE(backend.why_not(wide).has_value());
  wide.sizes.head_dim = wide.sizes.value_dim = 64;
  EXPECT_EQ(backend.why_not(wide), std::nullopt);
}

TEST(CudaAttention, TilesFitTheSharedMemoryOfTheirCards) {
  using namespace kernels::cuda;
  EXPECT_LE(ForwardMmaShape<128>::kShared, 163 * 1024);  // an A100
  EXPECT_LE(BackwardMmaShape<128>::kShared, 163 * 1024);
  EXPECT_LE((ForwardWgmmaShape<128, false>::kShared), 227 * 1024);
  EXPECT_LE(BackwardWgmmaShape<128>::kShared, 227 * 1024);
  EXPECT_LE(BackwardWgmmaShape<64>::kShared, 227 * 1024);
}

}  // namespace
}  // namespace fovea::cuda_attention_test
