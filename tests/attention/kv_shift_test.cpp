// KV shifting: the special case of Multi-Token's convolution that it is, gradients, documents, the
// cache, refusals. Paths, batches and decoding of it run with those of every spec (all_specs()).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/specs/kv_shift.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "fovea/attention/decode/cached_attention.h"
#include "fovea/attention/stages.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"

namespace fovea::kv_shift_test {
namespace {

using namespace fovea::testing;

AttentionSpec shifting() {
  AttentionSpec spec = small_spec();
  spec.kv_shift = {.keys = true, .values = true};
  return spec;
}

// Kernels (a2, a1, 0) on the logits and (0, b1, b2) on the weights of the query heads of each key
// head, spec 3.2: s'_ij = a1 s_ij + a2 s_i(j-1), P'_ij = b1 P_ij + b2 P_i(j+1).
AttentionTensors as_kernels(const AttentionSpec& spec, const AttentionTensors& shift) {
  const int64_t repeats = spec.heads / spec.kv_heads;
  const at::Tensor keys = shift.key_shift_g2.repeat_interleave(repeats, 0),
                   values = shift.value_shift_g2.repeat_interleave(repeats, 0);
  const at::Tensor zero = at::zeros({spec.heads}, keys.options());
  AttentionTensors kernels;
  kernels.kernel_before_hqk =
      at::stack({keys.select(1, 1), keys.select(1, 0), zero}, 1).unsqueeze(1);
  kernels.kernel_after_hqk =
      at::stack({zero, values.select(1, 0), values.select(1, 1)}, 1).unsqueeze(1);
  return kernels;
}

TEST(KvShift, IsAConvolutionOverKeysOfMultiTokenAttention) {
  AttentionSpec convolution = small_spec();
  convolution.multi_token = {.before = {1, 3}, .after = {1, 3}};
  for (const AttentionContext& context : {AttentionContext{}, packed_context({4, 1, 12, 6})}) {
    const AttentionInputs in = random_inputs(shifting(), 2, 23);
    const at::Tensor shifted =
        attention(shifting(), in.q, in.k, in.v, in.tensors, context).out_bhte;
    const at::Tensor convolved =
        attention(convolution, in.q, in.k, in.v, as_kernels(convolution, in.tensors), context)
            .out_bhte;
    EXPECT_LT((shifted - convolved).abs().max().item<double>(), 1e-12);
  }
}

TEST(KvShift, RunsOnTheKernelsAndNeutralWeightsChangeNoBit) {
  const AttentionInputs in = random_inputs(shifting(), 1, 40).to(at::kFloat);
  EXPECT_TRUE(is_ours(attention(shifting(), in.q, in.k, in.v, in.tensors).path.name));
  AttentionTensors neutral;
  neutral.key_shift_g2 = neutral.value_shift_g2 = at::tensor({1.0f, 0.0f}).expand({2, 2});
  const at::Tensor plain = attention(small_spec(), in.q, in.k, in.v).out_bhte;
  EXPECT_TRUE(at::equal(attention(shifting(), in.q, in.k, in.v, neutral).out_bhte, plain));
  EXPECT_EQ(describe_pipeline(shifting()), "kv_shift");
}

TEST(KvShift, GradientsReachKeysValuesAndWeights) {
  const AttentionInputs in = random_inputs(shifting(), 1, 6).with_gradient();
  expect_gradients(
      [&](const std::vector<at::Tensor>& x) {
        AttentionTensors tensors;
        tensors.key_shift_g2 = x[3], tensors.value_shift_g2 = x[4];
        return attention(shifting(), x[0], x[1], x[2], tensors, packed_context({2, 4}))
            .out_bhte.square()
            .sum();
      },
      in.leaves(), "kv shift", 1e-5, 1e-6);
}

// What one document holds reaches no other, not even by 0 times infinity.
TEST(KvShift, DocumentsStayApart) {
  const AttentionContext context = packed_context({5, 7});
  AttentionInputs in = random_inputs(shifting(), 1, 12);
  const at::Tensor before = attention(shifting(), in.q, in.k, in.v, in.tensors, context).out_bhte;
  in.k.select(2, 4).fill_(std::numeric_limits<double>::quiet_NaN());
  in.v.select(2, 4).fill_(std::numeric_limits<double>::infinity());
  const at::Tensor after = attention(shifting(), in.q, in.k, in.v, in.tensors, context).out_bhte;
  EXPECT_LT(relative_error(after.narrow(2, 5, 7), before.narrow(2, 5, 7)), 1e-12);
}

// A cache holds shifted rows and, of the others, the last ones.
TEST(KvShift, TheCacheKeepsSomeRowsOfTheTextAndGoesBack) {
  constexpr int64_t kText = 60;
  const AttentionInputs in = random_inputs(shifting(), 1, kText);
  const at::Tensor full = attention(shifting(), in.q, in.k, in.v, in.tensors).out_bhte;
  AttentionCache cache(cache_streams(shifting(), at::kDouble), 1, kText);
  const auto feed = [&](int64_t begin, int64_t n) {
    const AttentionInputs some = in.tokens(begin, n);
    return cached_attention(shifting(), cache, some.q, some.k, some.v, in.tensors, Path::automatic)
        .out_bhte;
  };
  EXPECT_LT(relative_error(feed(0, 5), full.narrow(2, 0, 5)), 1e-12);
  EXPECT_LT(relative_error(feed(5, 1), full.narrow(2, 5, 1)), 1e-12);
  cache.truncate(5);
  EXPECT_LT(relative_error(feed(5, 4), full.narrow(2, 5, 4)), 1e-12);
  for (int64_t i = 9; i < kText; ++i)
    EXPECT_LT(relative_error(feed(i, 1), full.narrow(2, i, 1)), 1e-12) << i;
  EXPECT_LE(cache.rows("unshifted_keys").size(1), 8);
}

TEST(KvShift, WrongShapesAndIdleKeysAreRefusedByName) {
  AttentionInputs in = random_inputs(shifting(), 1, 4);
  in.tensors.value_shift_g2 = at::ones({4, 2}, at::kDouble);
  EXPECT_ERROR(ShapeError, attention(shifting(), in.q, in.k, in.v, in.tensors), "value_shift",
               "[2, 2]");
  in.tensors.value_shift_g2 = at::Tensor();
  EXPECT_ERROR(ShapeError, attention(shifting(), in.q, in.k, in.v, in.tensors), "value_shift",
               "kv_shift");
  AttentionSpec idle = small_spec();
  idle.kv_shift.start = 0.5;
  EXPECT_ERROR(ConfigError, idle.check(), "kv_shift.start", "0.5");
}

}  // namespace
}  // namespace fovea::kv_shift_test
