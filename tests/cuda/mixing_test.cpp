// The CUDA mixing kernels, emulated on the host, against the formulas in float64: convolutions of
// queries and keys, mixes of heads, both; slabs, frames, documents, shared key heads, gradients.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/support/cuda/emulated_machine.h"
#include "tests/support/expect_error.h"
#include "tests/support/mixing_problem.h"
#include "tests/support/pointwise_problem.h"

namespace fovea::cuda_mixing_test {
namespace {

using namespace fovea::testing;

MixingSettings settings(kernels::AttentionSizes sizes) {
  MixingSettings s{.sizes = sizes};
  s.scale = 0.125;
  s.backend = &emulated_backend();
  return s;
}

// Scores are float16 between stages, products bfloat16.
void expect_truth(const MixingSettings& s, const std::string& what) {
  const MixingProblem<BFloat16> problem(s);
  const MixingOutputs truth = problem.outputs_by_formula(), got = problem.outputs_by_kernels();
  EXPECT_LT(numbers_error(got.out, truth.out), 8e-3) << what;
  EXPECT_LT(numbers_error(got.lse, truth.lse), 2e-3) << what;
  MixingOperands expected = problem.gradients_by_formula(),
                 found = problem.gradients_by_kernels(got);
  const auto gradients = found.named(), names = expected.named();
  for (size_t n = 0; n < names.size(); ++n) {
    ASSERT_EQ(gradients[n].second->size(), names[n].second->size());
    EXPECT_LT(numbers_error(*gradients[n].second, *names[n].second), 1.2e-2)
        << what << ": " << names[n].first;
  }
  EXPECT_EQ(bytes_written_beyond_scratch(), 0) << what;
}

// M-3, M-4, M-17.
TEST(CudaMixing, ConvolutionsBeforeAndAfterTheSoftmax) {
  MixingSettings s = settings({1, 2, 1, 131, 131, 64, 64});
  s.before = {6, 11}, s.after = {4, 12};
  expect_truth(s, "before and after");
}

TEST(CudaMixing, OneConvolutionAloneAtHeadSize96) {
  MixingSettings s = settings({2, 1, 1, 75, 75, 96, 96});
  s.before = {3, 5};
  expect_truth(s, "before");
  s.before = {}, s.after = {6, 15};
  s.lse_gradient = false;
  expect_truth(s, "after");
}

// M-11.
TEST(CudaMixing, ConvolutionsOfPackedDocuments) {
  MixingSettings s = settings({1, 2, 1, 150, 150, 64, 64});
  s.before = {6, 11}, s.after = {5, 4}, s.documents = 4;
  expect_truth(s, "documents");
}

// M-5: (out, in) before the softmax, (in, out) after it.
TEST(CudaMixing, MixesOfGroupsOfHeads) {
  MixingSettings s = settings({1, 6, 2, 75, 75, 64, 64});
  s.mix_before = 2, s.mix_after = 3;
  expect_truth(s, "groups of 2 and 3");
}

TEST(CudaMixing, MoreHeadsThanOneMatrixHas) {
  MixingSettings s = settings({1, 20, 5, 40, 40, 64, 64});
  s.mix_after = 4;
  expect_truth(s, "20 heads");
}

TEST(CudaMixing, SeveralSlabsOfMixedHeads) {
  kernels::cuda::Machine small = kHopper;
  small.slab_bytes = 1;
  const On on(small);
  MixingSettings s = settings({1, 4, 2, 140, 140, 64, 64});
  s.mix_before = s.mix_after = 4, s.documents = 2;
  expect_truth(s, "slabs");
}

TEST(CudaMixing, WholeMultiTokenLayersInOneFrameAndInTwo) {
  MixingSettings s = settings({2, 2, 1, 75, 75, 64, 64});
  s.before = {6, 11}, s.after = {6, 11}, s.mix_before = s.mix_after = 2;
  expect_truth(s, "one frame");
  kernels::cuda::Machine small = kHopper;
  small.slab_bytes = 1;
  const On on(small);
  s = settings({1, 2, 1, 270, 270, 64, 64});
  s.before = {6, 11}, s.after = {4, 9}, s.mix_after = 2, s.documents = 2;
  expect_truth(s, "two frames, documents");
}

TEST(CudaMixing, TheSecondRunHasTheSameBits) {
  MixingSettings s = settings({1, 2, 1, 75, 75, 64, 64});
  s.before = {6, 11}, s.after = {6, 11}, s.mix_before = s.mix_after = 2;
  const MixingProblem<BFloat16> problem(s);
  EXPECT_EQ(problem.outputs_by_kernels().out, problem.outputs_by_kernels().out);
}

TEST(CudaMixing, WhatTheKernelsLackIsRefused) {
  const auto reason = [](auto change) {
    MixingSettings s = settings({1, 4, 2, 40, 40, 64, 64});
    s.before = {6, 11};
    change(s);
    const MixingProblem<BFloat16> problem(s);
    const auto error = [&] {
      try {
        problem.outputs_by_kernels();
      } catch (const UnsupportedError& e) {
        return std::string(e.what());
      }
      return std::string();
    };
    return error();
  };
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(reason([](auto& s) { s.before = {7, 3}; }), "at most 6 queries");
  has(reason([](auto& s) { s.tau = true; }), "temperature");
  has(reason([](auto& s) { s.sink = true; }), "sink logit");
  has(reason([](auto& s) { s.dropout = 0.1; }), "dropout");
  has(reason([](auto& s) { s.equation = kernels::KernelEquation::eq4; }), "eq5");
  has(reason([](auto& s) { s.after = {2, 2}, s.renormalise = true; }), "renormalise");
  has(reason([](auto& s) { s.mask.window = 9; }), "causal masks alone");
  has(reason([](auto& s) { s.groups = 4; }), "hard Focus");
  has(reason([](auto& s) { s.gate = kernels::PairGate::Form::weight; }), "soft gate of Focus");
  has(reason([](auto& s) { s.sizes.queries = 30; }), "queries that are all keys");
  has(reason([](auto& s) { s.sizes.head_dim = s.sizes.value_dim = 80; }), "64, 96 and 128");
  const On on(kAmpere);
  has(reason([](auto&) {}), "9.0");
}

}  // namespace
}  // namespace fovea::cuda_mixing_test
