// Models whose matrices are packed (fovea/nn/matrix.h, fovea/nn/weight_fill.h).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/matrix.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "fovea/nn/matmul.h"
#include "fovea/nn/ops.h"
#include "fovea/nn/weight_fill.h"
#include "tests/support/expect_error.h"

namespace fovea::matrix_test {
namespace {

using kernels::Activations;
using kernels::WeightFormat;

constexpr int64_t kVocab = 50, kTokens = 12;
constexpr WeightFormat kPacked[] = {WeightFormat::q8_0, WeightFormat::q4_0, WeightFormat::q4_1};

Transformer small(bool tied) {
  ModelConfig c;
  c.layers = 2;
  c.width = 64;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 16;
  c.ffn_width = 96;
  c.context = kTokens;
  c.tied = tied;
  return Transformer(c.resolved(kVocab), 3);
}

at::Tensor tokens(int64_t b) {
  return at::randint(0, kVocab, {b, kTokens}, at::detail::createCPUGenerator(5),
                     at::TensorOptions(at::kLong));
}

at::Tensor decoded(const Transformer& model, const at::Tensor& ids, PathName path) {
  DecodeState state = model.make_decode_state(ids.size(0), ids.size(1));
  std::vector<at::Tensor> all;
  for (int64_t i = 0; i < ids.size(1); ++i) {
    all.push_back(model.decode(ids.narrow(1, i, 1), state, true));
    EXPECT_EQ(state.path.name, path) << state.path.reason.text();
  }
  return at::cat(all, 1);
}

/// The same model with the numbers that `packed` stands for, in float32.
Transformer unpacked_model(const Transformer& packed, bool tied) {
  const at::NoGradGuard no_grad;
  Transformer plain = small(tied);
  for (Parameter& p : plain.parameters().all())
    p.value.copy_(unpacked(packed.parameters().find(p.name)->value, at::kFloat));
  return plain;
}

TEST(PackedModels, DecodeWithTheBitsOfTheSameWeightsInFloat32) {
  for (const bool tied : {true, false}) {
    for (const WeightFormat format : kPacked) {
      SCOPED_TRACE(enum_names(format)[static_cast<size_t>(format)]);
      Transformer packed = small(tied);
      hold_matrices(packed, {.packed = format});
      Transformer plain = unpacked_model(packed, tied);
      for (const int64_t batch : {1, 3}) {
        const at::Tensor ids = tokens(batch);
        for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
          packed.compute().dtype = plain.compute().dtype = dtype;
          EXPECT_TRUE(at::equal(decoded(packed, ids, PathName::fused_decoder),
                                decoded(plain, ids, PathName::fused_decoder)));
        }
        packed.compute() = plain.compute() = {.fused_decoder = false};
        EXPECT_TRUE(at::equal(decoded(packed, ids, PathName::by_layers),
                              decoded(plain, ids, PathName::by_layers)));
        packed.compute() = plain.compute() = {};
      }
    }
  }
}

TEST(PackedModels, LongInputsSeeTheSameWeights) {
  const at::NoGradGuard no_grad;
  const at::Tensor ids = tokens(2);
  const ModelInput input{.tokens_bt = ids};
  for (const WeightFormat format : kPacked) {
    Transformer packed = small(false);
    hold_matrices(packed, {.packed = format});
    const Transformer plain = unpacked_model(packed, false);
    const at::Tensor hidden = plain.hidden(input);
    EXPECT_TRUE(at::allclose(packed.hidden(input), hidden, 1e-5, 1e-5));
    EXPECT_TRUE(at::allclose(packed.logits(hidden), plain.logits(hidden), 1e-5, 1e-5));
    EXPECT_TRUE(
        at::allclose(packed.token_nll(input, ids), plain.token_nll(input, ids), 1e-5, 1e-5));
  }
}

TEST(PackedModels, ProductsOfInt8ReadTheRoundedActivations) {
  const at::NoGradGuard no_grad;
  for (const WeightFormat format : kPacked) {
    at::Tensor packed = at::empty(packed_shape(format, {40, 96}), at::kByte);
    pack(at::randn({40, 96}), format, packed);
    const at::Tensor x = at::randn({3, 96}), read = as_read(x, packed, Activations::int8);
    EXPECT_FALSE(at::equal(read, x));
    EXPECT_TRUE(at::equal(read, as_read(read, packed, Activations::int8)));
    EXPECT_TRUE(at::equal(as_read(x, packed, Activations::exact), x));
    EXPECT_TRUE(at::equal(as_read(x, at::randn({40, 96}), Activations::int8), x));
    const at::Tensor truth = packed_product(read, {packed});
    EXPECT_TRUE(at::equal(packed_product(x, {packed}, Activations::int8), truth));
    EXPECT_TRUE(at::allclose(few_rows_product(x, {packed}, at::kFloat, Activations::int8), truth,
                             1e-5, 1e-5));
    // Beside plain weights, which read what is given.
    const at::Tensor plain = at::randn({8, 96}),
                     both = at::cat({truth, at::matmul(x, plain.t())}, 1);
    EXPECT_TRUE(
        at::allclose(packed_product(x, {packed, plain}, Activations::int8), both, 1e-5, 1e-5));
    EXPECT_TRUE(at::allclose(few_rows_product(x, {packed, plain}, at::kFloat, Activations::int8),
                             both, 1e-5, 1e-5));
  }
}

TEST(PackedModels, ShortPromptsAreReadWithoutUnpackingAndExactlyUnlessInt8IsAskedFor) {
  const at::NoGradGuard no_grad;
  at::Tensor packed = at::empty(packed_shape(WeightFormat::q4_1, {40, 96}), at::kByte);
  pack(at::randn({40, 96}), WeightFormat::q4_1, packed);
  const at::Tensor x = at::randn({65, 96}), some = x.narrow(0, 0, 64);
  EXPECT_TRUE(is_few_rows(some, {packed}));
  EXPECT_FALSE(is_few_rows(x, {packed}));
  EXPECT_FALSE(is_few_rows(some, {packed, at::randn({8, 96})}));
  const at::Tensor exact = few_rows_product(some, {packed}, at::kFloat);
  EXPECT_TRUE(at::allclose(exact, packed_product(some, {packed}), 1e-5, 1e-5));
  EXPECT_TRUE(at::equal(few_rows_product(some, {packed}, at::kFloat, Activations::int16), exact));
  EXPECT_FALSE(
      at::equal(few_rows_product(some.narrow(0, 0, 4), {packed}, at::kFloat, Activations::int16),
                exact.narrow(0, 0, 4)));
  for (const int64_t row : {0, 15, 16, 17, 40, 63})
    EXPECT_TRUE(at::equal(few_rows_product(some.narrow(0, row, 1), {packed}, at::kFloat),
                          exact.narrow(0, row, 1)));
}

TEST(PackedModels, TextsDecodedWithRoundedActivationsAreAsAmongOthers) {
  struct Rounding {
    Activations activations;
    double least, most, other_paths;  // distances from exact, and between paths
  };
  const at::Tensor ids = tokens(3);
  const auto check = [&](WeightFormat format, const Rounding& rounding) {
    Transformer model = small(true);
    hold_matrices(model, {.packed = format});
    const at::Tensor exact = decoded(model, ids, PathName::fused_decoder);
    model.compute().activations = rounding.activations;
    const at::Tensor together = decoded(model, ids, PathName::fused_decoder);
    for (int64_t n = 0; n < ids.size(0); ++n) {
      EXPECT_TRUE(at::equal(together.narrow(0, n, 1),
                            decoded(model, ids.narrow(0, n, 1), PathName::fused_decoder)));
    }
    const auto distance = [&](const at::Tensor& from, const at::Tensor& to) {
      return ((from - to).norm() / to.norm()).item<double>();
    };
    EXPECT_GT(distance(together, exact), rounding.least);
    EXPECT_LT(distance(together, exact), rounding.most);
    // A whole pass and the layers one by one round the same numbers, up to ties.
    const at::NoGradGuard no_grad;
    EXPECT_LT(distance(model.logits(model.hidden({.tokens_bt = ids})), together),
              rounding.other_paths);
    model.compute().fused_decoder = false;
    EXPECT_LT(distance(decoded(model, ids, PathName::by_layers), together), rounding.other_paths);
  };
  for (const WeightFormat format : kPacked) {
    check(format, {Activations::int8, 1e-4, 0.02, 0.01});
    check(format, {Activations::int16, 1e-8, 3e-4, 3e-4});
  }
}

// Perplexities of a random model are as good as nothing; its logits tell what packing loses.
TEST(PackedModels, FinerFormatsLoseLess) {
  const at::NoGradGuard no_grad;
  const ModelInput input{.tokens_bt = tokens(2)};
  const Transformer plain = small(true);
  const at::Tensor truth = plain.logits(plain.hidden(input));
  const auto loss = [&](WeightFormat format) {
    Transformer packed = small(true);
    hold_matrices(packed, {.packed = format});
    return ((packed.logits(packed.hidden(input)) - truth).norm() / truth.norm()).item<double>();
  };
  EXPECT_LT(loss(WeightFormat::q8_0), 0.02);
  for (const WeightFormat four_bits : {WeightFormat::q4_0, WeightFormat::q4_1}) {
    EXPECT_LT(loss(four_bits), 0.4);
    EXPECT_LT(loss(WeightFormat::q8_0), loss(four_bits) / 5);
  }
}

TEST(PackedModels, CountTheirParametersAndAreNotTrainable) {
  Transformer model = small(false);
  const int64_t count = model.parameters().count();
  hold_matrices(model, {.packed = WeightFormat::q4_1});
  EXPECT_EQ(model.parameters().count(), count);
  EXPECT_EQ(model.parameters().count(/*only_trainable=*/true), 0);
  const at::Tensor& up = model.parameters().find("model.layers.1.mlp.up_proj.weight")->value;
  EXPECT_EQ(up.sizes(), at::IntArrayRef({96, 2, 20}));
  EXPECT_EQ(matrix_inputs(up), 64);
  EXPECT_EQ(model.parameters().find("model.norm.weight")->value.scalar_type(), at::kFloat);
}

TEST(PackedModels, WhatCannotBePackedIsRefused) {
  ModelConfig c;
  c.layers = 1, c.width = 48, c.heads = 3, c.head_dim = 16, c.ffn_width = 64;
  Transformer odd(c.resolved(kVocab), 1);
  EXPECT_ERROR(ShapeError, hold_matrices(odd, {.packed = WeightFormat::q8_0}), "q8_0", "48 inputs");
  Transformer large = small(true);
  {
    const at::NoGradGuard no_grad;
    large.parameters().find("model.layers.0.mlp.up_proj.weight")->value[3][4] = 1e6;
  }
  EXPECT_ERROR(NumericalError, hold_matrices(large, {.packed = WeightFormat::q4_0}), "q4_0",
               "1000000");
}

TEST(Matrices, ThoseOfOneProductAreNeighbours) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Transformer before = small(true);
    Transformer model = small(true);
    hold_matrices(model, {.plain = dtype});
    const auto of = [](const Transformer& m, std::string_view name) {
      return m.parameters()
          .find(fmt::format("model.layers.1.{}_proj.weight", name))
          ->value.detach();
    };
    const at::NoGradGuard no_grad;
    const at::Tensor x = at::randn({20, 64}).to(dtype);
    for (const std::vector<std::string_view>& names :
         {std::vector<std::string_view>{"self_attn.q", "self_attn.k", "self_attn.v"},
          {"mlp.gate", "mlp.up"},
          {"self_attn.v", "self_attn.k"}}) {  // no product reads these two in this order
      std::vector<at::Tensor> matrices, copies;
      for (const std::string_view name : names) {
        matrices.push_back(of(model, name));
        copies.push_back(of(before, name).to(dtype).clone());
        EXPECT_TRUE(at::equal(matrices.back(), copies.back())) << name;
      }
      const auto* const second =
          static_cast<const std::byte*>(matrices[0].const_data_ptr()) + matrices[0].nbytes();
      EXPECT_EQ(second == matrices[1].const_data_ptr(), names.back() != "self_attn.k");
      EXPECT_TRUE(at::equal(stacked_linear(x, matrices), stacked_linear(x, copies)));
    }
  }
}

TEST(Matrices, NonFiniteScalesAreFound) {
  at::Tensor packed = at::empty(packed_shape(WeightFormat::q4_1, {3, 64}), at::kByte);
  pack(at::randn({3, 64}), WeightFormat::q4_1, packed);
  EXPECT_TRUE(is_finite(packed));
  for (const int64_t byte : {1, 7}) {  // the upper half of a d and of an m of the row
    const at::Tensor broken = packed.clone();
    broken.view({3, -1})[2][byte] = 0x7C;  // infinity where the lower half is 0, else NaN
    EXPECT_FALSE(is_finite(broken));
  }
}

TEST(Matrices, OnlyFormatsOfKernelsAreNamed) {
  EXPECT_EQ(format_of(at::ones({2, 3})), WeightFormat::float32);
  EXPECT_EQ(format_of(at::ones({2, 3}, at::kBFloat16)), WeightFormat::bfloat16);
  EXPECT_EQ(format_of(at::ones({2, 3}).t()), std::nullopt);
  EXPECT_EQ(format_of(at::ones({2, 3}, at::kHalf)), std::nullopt);
  EXPECT_EQ(format_of(at::ones({2, 1, 33}, at::kByte)), std::nullopt);
  EXPECT_EQ(format_of(at::ones({2, 1, 34}, at::kByte)), WeightFormat::q8_0);
  EXPECT_ERROR(UnsupportedError, weight_rows(at::ones({2, 3}, at::kHalf)), "f32, bf16, q8_0",
               "Half");
}

}  // namespace
}  // namespace fovea::matrix_test
